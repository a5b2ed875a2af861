from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import logging
from obliq_hf.logs import show_logs

show_logs(logging.WARNING)
own = logging.getLogger("with_a_handler")
own.addHandler(logging.StreamHandler())
logging.getLogger("with_a_handler.part").warning("from a library")
logging.getLogger("obliq_hf.part").warning("from us")
loud = logging.getLogger("loud")
loud.setLevel(logging.DEBUG)
loud.info("not asked for")
"""


def test_each_message_is_shown_once_and_loud_libraries_are_quiet() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == ["from a library", "WARNING obliq_hf.part: from us"]
