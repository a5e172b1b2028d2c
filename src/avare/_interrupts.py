"""Ctrl-C in the command ``avare``: it ends with code 130 and one line, not with a traceback.

The package imports this module first, because the rest takes a second, in which Ctrl-C would end in Python's own way.
Nothing happens in any other program.
"""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h"  # a display of progress may have hidden it


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. A plain ``KeyboardInterrupt`` that has passed an ``exec`` makes Python end by the signal itself."""


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Handle Ctrl-C while there is nothing to lose: nothing has been run, or what was run is stored."""
    with suppress(OSError):
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"avare: interrupted\n")
    os._exit(INTERRUPTED)


def is_command() -> bool:
    """Whether this process is ``avare`` or ``python -m avare``; its worker processes are not."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # until Python has found the module
        return "avare" in sys.orig_argv
    return os.path.basename(name) in ("avare", "avare.exe") and name in sys.orig_argv


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, end_at_once)
