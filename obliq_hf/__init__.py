"""obliq_hf: retrieval by what a text does not say."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
