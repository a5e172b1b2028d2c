"""The table at the top of README.md and docs/index.md, from the stored results: ``python benchmarks/readme_table.py``.

What you have, what to use, what you get, and what you would use otherwise. Run it after a benchmark has been measured
again; a test compares both pages with the stored results.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import RESULTS
from which_loader import UNIFORM, Script, scripts_of

ROOT = Path(__file__).parents[1]
PAGES = {ROOT / "README.md": "", ROOT / "docs" / "index.md": "../"}
"""The pages, and how a link of theirs begins."""
MARK = "<!-- made by benchmarks/readme_table.py -->"
ACCURACY = "1e-06"  # of linear models
_SLACK = 0.005  # seconds: a fit that takes so little more counts as equal
_ERRORS = 2.0  # standard errors that make a difference
_LOADERS = "([table](benchmarks/results/which_loader.md))"
BY_ERROR = IF_RARE = "Passes"
"""The loaders that the guide recommends: for classifiers, and for rare events."""
CALLS = {
    "Passes": "`update()`",
    "score": "[`score=`](docs/torch.md#a-pool-freshly-scored)",
}


class Row(NamedTuple):
    """A row of the table."""

    have: str
    use: str
    get: str
    otherwise: str


HEADINGS = Row("You have", "Use", "You get, measured", "Instead of")


def main() -> None:
    """Write the table into both pages."""
    for page in PAGES:
        page.write_text(written(page))
    print(block(""))


def written(page: Path) -> str:
    """Return the text of a page with the table between its two marks."""
    before, _, rest = page.read_text().partition(MARK)
    after = rest.partition(MARK)[2]
    return f"{before}{MARK}\n\n{block(PAGES[page])}\n\n{MARK}{after}"


def block(prefix: str) -> str:
    """Return the table, with links that begin with a prefix."""
    scripts = scripts_of(stored("which_loader"))
    rows = [linear(), posteriors(), rare(scripts), training_loss(scripts), test_error(scripts), paper(), keep_uniform()]
    lines: list[Sequence[str]] = [HEADINGS, ["---"] * len(HEADINGS), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("](", f"]({prefix}")


def stored(name: str) -> dict[str, Any]:
    """Return a stored result."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


# --- rows -----------------------------------------------------------------------------------


def linear() -> Row:
    """Compare fits of linear models with the fastest other solver of each problem."""
    rows = [each["targets"][ACCURACY] for each in stored("linear_shapes")["shapes"]]
    rows = [row for row in rows if row["rival"]]
    ratios = np.array([row["seconds"] / row["other"] for row in rows])
    close = np.array([row["seconds"] <= row["other"] + _SLACK for row in rows])
    return Row(
        have="a linear model",
        use="[`AvareClassifier`, `AvareRegressor`](docs/linear.md)",
        get=f"{np.median(ratios):.2f} × its seconds in the median of {len(rows)} random problems at an "
        "accuracy of 10⁻⁶, at most 2 × (or 5 ms more) in "
        f"{100.0 * np.mean((ratios <= 2.0) | close):.0f} %; certified, without scaling or tuning "
        "([table](benchmarks/results/linear_shapes.md))",
        otherwise="the fastest of scikit-learn, liblinear, skglm and Cyanure for each problem, at its best setting",
    )


def posteriors() -> Row:
    """Judge posteriors by their errors, and compare draws per second with NUTS."""
    result = stored("random_posteriors")
    rows = [row for row in result["rows"] if row["solver"] == "sghmc"]
    error = float(np.median([abs(row["sd"] - 1.0) for row in rows]))
    silent = sum((not 0.7 <= row["sd"] <= 1.3 or row["mean"] > 0.5) and not row["warnings"] for row in rows)
    speeds = [
        row["ess"] / row["processor"] / (row["nuts"]["ess"] / row["nuts"]["processor"]) for row in result["compared"]
    ]
    return Row(
        have="a posterior of such a model",
        use="[`avare.sghmc`](docs/sampling.md)",
        get=f"{np.median(speeds):.1f} × its effective draws per processor second (median of {len(speeds)} posteriors); "
        f"standard deviations right to {100.0 * error:.1f} % (median of {len(rows)}), {silent} wrong without a warning "
        "([table](benchmarks/results/random_posteriors.md))",
        otherwise="NUTS of BlackJAX",
    )


def rare(scripts: dict[str, Script]) -> Row:
    """Compare F1 where a class is rare."""
    script = scripts["rare"]
    ours = script.end(IF_RARE, "test_f1")
    epochs, seconds = script.end(UNIFORM, "test_f1"), script.uniform(IF_RARE, "test_f1")
    return Row(
        have="a net, and rare events (1 % positives)",
        use=f"[`ImportanceLoader`](docs/torch.md) with {CALLS[IF_RARE]}",
        get=f"F1 {ours.text(1.0, 3)} {_LOADERS}",
        otherwise=f"`DataLoader(shuffle=True)`: F1 {epochs.text(1.0, 3)} in the same epochs, {seconds.text(1.0, 3)} in "
        "the same seconds",
    )


def training_loss(scripts: dict[str, Script]) -> Row:
    """Compare training losses of nets after the same seconds."""
    ours, scored = (
        [script.ratio(loader, "train_loss") for script in scripts.values()] for loader in (BY_ERROR, "score")
    )
    return Row(
        have="a net, judged by its training loss",
        use=f"`ImportanceLoader` with {CALLS[BY_ERROR]} or {CALLS['score']}",
        get=f"{min(ours):.2f} to {max(ours):.2f} × its training loss, {min(scored):.2f} to {max(scored):.2f} × with "
        f"`score=`, on {len(ours)} nets with augmentation, annealed {_LOADERS}",
        otherwise="`DataLoader(shuffle=True)` in the same seconds",
    )


def test_error(scripts: dict[str, Script]) -> Row:
    """Compare test errors and training losses of nets after the same seconds."""
    apart = [script.difference(BY_ERROR, "test_error") for script in scripts.values()]
    better = sum(each.mean < -_ERRORS * each.error for each in apart)
    worse = sum(each.mean > _ERRORS * each.error for each in apart)
    low, high = (f"{100.0 * pick(each.mean for each in apart):+.2f}".replace("-", "−") for pick in (min, max))
    others = [100.0 * script.difference("InfoBatch", "test_error").mean for script in scripts.values()]
    return Row(
        have="a net, judged by its test error",
        use=f"`ImportanceLoader` with {CALLS[BY_ERROR]}",
        get=f"{low} to {high} points of test error on {len(apart)} nets with augmentation, annealed ({better} better "
        f"and {worse} worse by {_ERRORS:g} standard errors) {_LOADERS}",
        otherwise="`DataLoader(shuffle=True)` in the same seconds; with InfoBatch "
        f"{min(others):+.2f} to {max(others):+.2f} points".replace("-", "−"),
    )


def paper() -> Row:
    """Count the numbers of the paper that agree with ours."""
    verdicts = [row["verdict"] for row in stored("paper/numbers")["check"]]
    agree, differ = verdicts.count("agrees"), verdicts.count("differs")
    return Row(
        have="the paper to check or extend",
        use="[`avare reproduce all`](docs/experiments.md)",
        get=f"{agree} of {agree + differ} of its statements confirmed; [the others](docs/experiments.md#results) are "
        "explained",
        otherwise="your own code",
    )


def keep_uniform() -> Row:
    """Say when shuffled batches are better."""
    seconds = stored("which_loader")["seconds"]
    loops = [*seconds["small"].values(), *seconds["steps"].values()]
    added = [1e3 * (each[BY_ERROR] - each[UNIFORM]) for each in loops]
    return Row(
        have="**none of these**",
        use="`DataLoader(shuffle=True)`",
        get="Keep it if gradient norms are alike (`avt.diagnose` says so after an epoch), if you train for two or "
        "three epochs only, or if a step takes less than half a millisecond: `update()` adds up to "
        f"{max(added):.1f} ms.",
        otherwise="",
    )


if __name__ == "__main__":
    main()
