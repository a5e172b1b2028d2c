"""Ctrl-C in the command ``avare``: it ends with code 130 and one line, not with a traceback.

One handler serves the whole process. The first Ctrl-C during a subcommand raises an exception, so that runs under way
are cancelled. At any other time, and the second time, Ctrl-C ends the process at once.

The package imports this module first, because the rest takes a second, in which Ctrl-C would end in Python's own way.
Nothing happens in any other program.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit code."""
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_SOON = 0.05  # seconds
_SHOW_CURSOR = b"\x1b[?25h"  # a display of progress may have hidden it


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. A plain ``KeyboardInterrupt`` that has passed an ``exec`` makes Python end by the signal itself."""


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Handle Ctrl-C while there is nothing to lose: nothing has been run, or what was run is stored."""
    with suppress(OSError):
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"avare: interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Make the first Ctrl-C raise `Interrupted` and the second one end the process; yield the signals that came.

    A request to end, SIGTERM or SIGHUP, does the same, unless it is ignored or has a handler.
    The interrupted code may swallow the exception: the list still has the signal. Where Python itself does, as in a
    destructor, the signal is sent once more, soon. After a complete command nothing is left to interrupt, and the
    process ignores Ctrl-C. A program with a handler of its own keeps it.
    """
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before not in (signal.default_int_handler, end_at_once):
        yield came
        return

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            end_at_once(number, frame)
        raise Interrupted

    def ignored(unraisable: Any) -> None:
        if unraisable.exc_type is Interrupted and came:
            threading.Timer(_SOON, os.kill, (os.getpid(), came.pop())).start()
        else:
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, ignored
    signal.signal(signal.SIGINT, handle)
    ending = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]
    for each in ending:
        signal.signal(each, handle)
    try:
        yield came
    finally:
        sys.unraisablehook = hook
        for each in ending:
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN if before is end_at_once and not came else before)


def is_command() -> bool:
    """Whether this process is ``avare`` or ``python -m avare``; its worker processes are not."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # until Python has found the module
        return "avare" in sys.orig_argv
    return os.path.basename(name) in ("avare", "avare.exe") and name in sys.orig_argv


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, end_at_once)
