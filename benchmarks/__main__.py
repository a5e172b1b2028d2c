"""The command `avare`, with our own experiments: `python benchmarks reproduce nets`, `sampling` or `theory`.

They register themselves, as anybody's experiment does: see docs/experiments.md.
"""

import sys

import nets as nets
import regret as regret
import sampling as sampling
from avare.cli import main

if __name__ == "__main__":
    sys.exit(main())
