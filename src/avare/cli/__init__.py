"""The command ``avare``."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    Parameters
    ----------
    arguments
        Without the command's own name; by default those it was called with.
    """
    try:
        from avare.cli.application import run
    except ImportError as error:
        print(f"avare: the command line needs {error.name}: pip install 'avare[experiments]'", file=sys.stderr)
        return 1
    return run(list(sys.argv[1:] if arguments is None else arguments))
