"""How commands show log messages."""

from __future__ import annotations

import logging

__all__ = ["show_logs"]


def show_logs(level: int) -> None:
    """Show messages from this level on, each once, on standard error.

    Libraries that set their own loggers to DEBUG stay quiet, and what a library shows by a handler
    of its own is not shown again.

    Args:
        level: As :mod:`logging` numbers them.
    """
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.addFilter(lambda record: not logging.getLogger(record.name.partition(".")[0]).handlers)
    logging.basicConfig(
        level=level, handlers=[handler], format="%(levelname)s %(name)s: %(message)s"
    )
