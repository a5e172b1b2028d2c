"""The command `avare`, with our own experiments: `python benchmarks reproduce loaders`, `nets`, `sampling` or `theory`.

With it, the page of the paper's experiments has the paper's numbers beside ours. Experiments register themselves, as
anybody's does: see docs/experiments.md.
"""

import sys

import agreement as agreement
import loader_runs as loader_runs
import nets as nets
import regret as regret
import sampling as sampling
from avare.experiments.cli import main

if __name__ == "__main__":
    sys.exit(main())
