"""The command ``avare``."""

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with some arguments, by default those of the process; return its exit code.

    After Ctrl-C it is 130, whatever the code that was interrupted made of it.
    """
    wished = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal wished
        wished = True
        raise KeyboardInterrupt

    is_ours = threading.current_thread() is threading.main_thread()
    is_ours = is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_ours:
            signal.signal(signal.SIGINT, end)
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        return INTERRUPTED if wished else code
    except KeyboardInterrupt:
        print("avare: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(arguments: list[str]) -> int:
    try:
        from avare.cli.application import run
    except ImportError as error:
        print(f"avare: the command line needs {error.name}: pip install 'avare[experiments]'", file=sys.stderr)
        return 1
    return run(arguments)
