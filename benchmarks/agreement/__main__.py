"""Compare stored results with every number of the paper: ``python benchmarks/agreement results``.

The exit code is 1 if something differs by more than the stated tolerance, and 2 if only runs are missing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agreement import checking
from avare.experiments import Result, Store, Table
from avare.experiments.base import RUNS, get, showable
from avare.experiments.cli.output import show
from avare.experiments.paper import SETTINGS


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the paper's numbers and ours; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of results, of which runs/ is the store; it is only read")
    parser.add_argument("datasets", nargs="*", choices=[[], *SETTINGS], help="by default all")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each setting that a verdict needs")
    parser.add_argument("--json", action="store_true", help="print JSON for machines instead of text")
    chosen = parser.parse_args(arguments)
    found, skipped = Store(chosen.out / "runs").read()
    experiment = get("paper")

    def of_paper(results: Sequence[Result]) -> list[Result]:
        return [each for each in results if each.kind in experiment.kinds]

    results, odd = showable(found, lambda each: experiment.summarise(of_paper(each)))
    ours = of_paper(results)
    for each in (*skipped, *odd):
        print(f"{each}; skipped", file=sys.stderr)
    rows, paper = checking.check(ours, chosen.datasets or tuple(SETTINGS), chosen.runs), checking.published()
    counts, code = checking.tally(rows), checking.exit_code(rows)
    parts: list[str | Table] = [checking.check_table(rows), f"Source: {paper['source']}. {paper['smoothness_note']}"]
    parts.append(checking.tally_words(rows))
    if counts["missing"]:
        names = " ".join(chosen.datasets) or "all"
        parts.append(f"Run what is missing: avare reproduce {names} --runs {chosen.runs} --out {chosen.out}")
    left_out = [*skipped, *odd]
    value = {"rows": [row.as_dict() for row in rows], **counts, "skipped": left_out, "exit_code": code}
    show(chosen.json, value, parts)
    return code


if __name__ == "__main__":
    sys.exit(main())
