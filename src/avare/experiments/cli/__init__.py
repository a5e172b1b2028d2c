"""The command ``avare``."""

import sys
from collections.abc import Sequence

from avare._interrupts import INTERRUPTED, interruptible


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with some arguments, by default those of the process; return its exit code.

    After Ctrl-C it is 130, whatever the code that was interrupted made of it, and 128 + the number of the signal after
    another request to end. A second one ends the process at once.
    """
    try:
        from avare.experiments.cli.application import run
    except ImportError as error:
        print(f"avare: the command line needs {error.name}: pip install 'avare[experiments]'", file=sys.stderr)
        return 1
    interrupts: list[int] = []
    try:
        with interruptible() as interrupts:
            code = run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        print("avare: interrupted", file=sys.stderr)
        code = INTERRUPTED
    return 128 + interrupts[0] if interrupts else code
