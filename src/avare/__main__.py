"""``python -m avare``: the same as the command ``avare``."""

import sys

from avare.experiments.cli import main

if __name__ == "__main__":
    sys.exit(main())
