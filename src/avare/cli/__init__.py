"""The command ``avare``."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with some arguments, by default those of the process; return its exit code."""
    try:
        from avare.cli.application import run
    except ImportError as error:
        print(f"avare: the command line needs {error.name}: pip install 'avare[experiments]'", file=sys.stderr)
        return 1
    return run(list(sys.argv[1:] if arguments is None else arguments))
