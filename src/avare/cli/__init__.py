"""The command ``avare``."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from avare._interrupts import INTERRUPTED as INTERRUPTED
from avare._interrupts import Interrupted, end_at_once


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with some arguments, by default those of the process; return its exit code.

    After Ctrl-C it is 130, whatever the code that was interrupted made of it. A second Ctrl-C ends the process at once.
    """
    try:
        try:
            from avare.cli.application import run
        except ImportError as error:
            print(f"avare: the command line needs {error.name}: pip install 'avare[experiments]'", file=sys.stderr)
            return 1
        with _interruptible() as interrupts:
            code = run(list(sys.argv[1:] if arguments is None else arguments))
        return INTERRUPTED if interrupts else code
    except KeyboardInterrupt:
        print("avare: interrupted", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Make the first Ctrl-C raise ``KeyboardInterrupt`` and the second one end the process; yield those that came.

    The code that is interrupted may ignore the exception: the list still tells. After a command that is complete
    nothing is left to interrupt, and the process ignores Ctrl-C.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before not in (signal.default_int_handler, end_at_once):
        yield []
        return
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            end_at_once(number, frame)
        raise Interrupted

    signal.signal(signal.SIGINT, handle)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN if before is end_at_once and not came else before)
