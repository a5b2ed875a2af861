"""The fixtures of tests that publish."""

from __future__ import annotations

from hub_fixtures import fresh_process, hub, online, waits

__all__ = ["fresh_process", "hub", "online", "waits"]
