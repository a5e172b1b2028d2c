"""The subcommands: what they take, and what they print."""

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import avare
from avare import datasets, samplers
from avare.cli.display import display, duration
from avare.experiments import comparison
from avare.experiments.data import LOSSES, Loss, obtain
from avare.experiments.diagnosis import diagnose
from avare.experiments.nets import plan as nets
from avare.experiments.paper import checking
from avare.experiments.paper import plan as reproduction
from avare.experiments.paper.plan import BOUNDS, RULES, RUNS, SETTINGS, Extent, Rule
from avare.experiments.runs import doubt_of_optimum
from avare.experiments.store import Record, Store

INTERRUPTED = 130
_WIDE = 200  # columns where nobody looks: a table is not folded for a file

application = typer.Typer(
    help="Adaptive importance sampling for stochastic gradients: the paper's experiments, and your data.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
sets = typer.Typer(help="The named datasets: which there are, and where.", rich_markup_mode=None)
application.add_typer(sets, name="datasets")


class Steps(StrEnum):
    """Step sizes."""

    decreasing = "decreasing"
    constant = "constant"
    both = "both"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Each of them."""
        return RULES if self is Steps.both else tuple(rule for rule in RULES if rule == self.value)


Machine = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of results: runs/ is the store, report/ the page.")]
Folder = Annotated[Path | None, typer.Option("--data", help="Folder to look into first for the files of datasets.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="How many runs at a time.")]
Dask = Annotated[str | None, typer.Option("--dask", help="Address of a Dask scheduler, to run there.")]
Samplers = Annotated[str, typer.Option("--samplers", help="Names, separated by commas.")]
Source = Annotated[str, typer.Argument(metavar="DATA", help="A named dataset, or the path of a file.")]
LossName = Annotated[str, typer.Option("--loss", help=f"auto, {', '.join(LOSSES)}.")]
Target = Annotated[str | None, typer.Option("--target", help="Column of the targets, in a CSV or Parquet file.")]
L2 = Annotated[float, typer.Option("--l2", min=0.0, help="Of the l2 term in all, not by example.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Draws a step.")]


def run(arguments: list[str]) -> int:
    """Run a subcommand; return the exit code. Errors are one line on the standard error stream."""
    try:
        found = application(arguments, prog_name="avare", standalone_mode=False)
        return found if isinstance(found, int) else 0
    except Exception as error:
        if "--debug" in arguments:
            raise
        usage = getattr(error, "format_message", None)  # of what Typer raises
        text = usage() if usage is not None else str(error)
        expected = usage is not None or isinstance(error, ValueError | TypeError | OSError | ImportError)
        if not expected or not text:
            text = f"{type(error).__name__}: {text} (--debug shows where)"
        print(f"avare: {' '.join(text.split())}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))


@application.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(avare.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


@application.command()
def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            help=f"Any of {', '.join(reproduction.PARTS)}; all of these; nets, which is not among them and takes an "
            "hour by itself; or check, and then any datasets.",
        ),
    ] = None,
    runs: Annotated[int | None, typer.Option("--runs", min=1, help=f"Seeds of each; {RUNS} by default.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Of each run; 100 by default.")] = None,
    steps: Annotated[Steps, typer.Option("--steps", help="Step sizes.")] = Steps.both,
    samplers: Samplers = "Uniform,Mabs,Vrb,Avare",
    jobs: Jobs = 2,
    out: Out = Path("results"),
    data: Folder = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer runs and epochs: about two minutes.")] = False,
    dask: Dask = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="What nets runs: a file like avare/experiments/nets/plan.toml.")
    ] = None,
    machine: Machine = False,
    debug: Debug = False,
) -> int:
    """Run the paper's experiments and write a report; or check what was stored against the paper.

    `nets` is not of the paper: samplers side by side on small neural networks. It needs PyTorch, and its
    runs, epochs, steps and samplers are those of its plan.

    Started again, it does only what is missing. `check` ends with 1 if something differs from the
    paper, and else with 2 if runs are missing.
    """
    wanted = what or ["all"]
    if wanted[0] == "check":
        return _check(wanted[1:], RUNS if runs is None else runs, out, machine)
    with_nets = "nets" in wanted
    if plan is not None and not with_nets:
        raise ValueError("--plan: is for nets, which is not asked for")
    nets_plan = nets.read_plan(plan, quick=quick) if with_nets else None
    if with_nets:
        nets.require_torch()
    parts = reproduction.parts_of([part for part in wanted if part != "nets"])
    names = _names(samplers)
    extent = Extent.quick(steps.rules, names) if quick else Extent(rules=steps.rules, samplers=names)
    if runs is not None or epochs is not None:
        extent = Extent(
            extent.runs if runs is None else runs,
            extent.epochs if epochs is None else epochs,
            extent.rules,
            extent.samplers,
            extent.theory_steps,
        )
    store = Store(out / "runs")
    console = _console(stderr=True)
    folder = None if data is None else str(data)
    records: list[Record] = []
    trained: list[Record] = []
    with _stored(store, console):
        if parts:
            watch = display(console, jobs)
            records = reproduction.reproduce(
                parts, store, extent=extent, folder=folder, jobs=jobs, dask=dask, watch=watch
            )
        if nets_plan is not None:
            costs = nets.estimate(nets_plan)
            seconds = math.fsum(cost.seconds for cost in costs) / jobs
            about = f", about {duration(seconds)} if none is stored" if seconds > 0.0 else ""
            print(f"nets: {sum(cost.runs for cost in costs)} runs in all{about}", file=sys.stderr)
            watch = display(console, jobs)
            trained = nets.run_nets(store, plan=nets_plan, folder=folder, jobs=jobs, dask=dask, watch=watch)
    page = _report(store.folder, out / "report", console, RUNS if runs is None else runs)
    rows, exponents, facts = comparison.summary(records), _exponents(records), checking.facts(records)
    of_nets = nets.summary(trained)
    if machine:
        found = {"runs": rows, "facts": facts, "exponents": exponents, "nets": of_nets}
        _print_json({**found, "store": store.folder, "page": page})
    else:
        _print_summary(rows)
        _print_facts(facts)
        _print_doubts(records)
        _print_sooner(row for row in rows if row["sampler"] == "Avare")
        _print_nets(of_nets)
        for method, (mean, deviation, bound) in exponents.items():
            print(f"{method}: the regret grows as t^{mean:.2f} (±{deviation:.2f}); the theorem allows t^{bound:.2f}")
        _print_places(store, page)
    return 0


@application.command()
def compare(
    data: Source,
    loss: LossName = "auto",
    samplers: Samplers = "Uniform,Avare",
    target: Target = None,
    steps: Annotated[Steps, typer.Option("--steps", help="Step sizes.")] = Steps.decreasing,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of each run.")] = 20,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Seeds of each.")] = 3,
    batch_size: BatchSize = 128,
    l2: L2 = 1.0,
    replacement: Annotated[
        bool, typer.Option("--replacement/--no-replacement", help="How to draw, for samplers that can do both.")
    ] = True,
    jobs: Jobs = 2,
    out: Out = Path("results"),
    folder: Folder = None,
    dask: Dask = None,
    machine: Machine = False,
    debug: Debug = False,
) -> int:
    """Run samplers side by side on a named dataset or a file of yours, and write a report."""
    names = _names(samplers)
    found, chosen = _obtain(data, loss, target, folder)
    store = Store(out / "runs")
    console = _console(stderr=True)
    with _stored(store, console):
        records = comparison.compare(
            found,
            chosen,
            store,
            samplers=names,
            rules=steps.rules,
            epochs=epochs,
            runs=runs,
            batch_size=batch_size,
            l2=l2,
            replacement=replacement,
            jobs=jobs,
            dask=dask,
            watch=display(console, jobs),
        )
    page = _report(store.folder, out / "report", console)
    rows, facts = comparison.summary(records), {found.name: records[0]["facts"]}
    if machine:
        _print_json({"loss": chosen, "runs": rows, "facts": facts, "store": store.folder, "page": page})
    else:
        _print_summary(rows)
        _print_facts(facts)
        _print_doubts(records)
        print(f"Loss: {chosen}.")
        caution = records[-1]["spec"]["caution"]
        if caution > 1.0:
            print(
                f"Steps are {caution:g} times shorter than the paper's, which would overshoot: the rows have much in "
                "common, and batches are large."
            )
        _print_sooner(row for row in rows if row["sampler"] != "Uniform")
        _print_places(store, page)
    return 0


@application.command("diagnose")
def diagnose_command(
    data: Source,
    loss: LossName = "auto",
    target: Target = None,
    l2: L2 = 1.0,
    batch_size: BatchSize = 128,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of the short run.")] = 5,
    folder: Folder = None,
    machine: Machine = False,
    debug: Debug = False,
) -> int:
    """Should I use this? What there is to gain on your data, in seconds."""
    found, chosen = _obtain(data, loss, target, folder)
    console = _console(stderr=True)
    with console.status("looking at the data ...") as status:
        result = diagnose(
            found,
            chosen,
            l2=l2,
            batch_size=batch_size,
            epochs=epochs,
            say=lambda text: status.update(f"{text} ..."),
        )
    if machine:
        _print_json(result.as_dict())
        return 0
    part = "" if result.rows == result.n else f", of which {result.rows:,} were looked at"
    print(f"{result.dataset}: {result.n:,} examples{part}, {result.loss}, {result.dim:,} coefficients")
    table = Table("", "gain to be had", "realised by Avare")
    for epoch, gain, realised in zip(result.epochs, result.gains, result.realised, strict=True):
        table.add_row(f"epoch {epoch}", f"{gain:.2f}", f"{realised:.2f}")
    table.add_row("optimum", f"{result.gain_at_optimum:.2f}", "")
    _print_table(table)
    print(f"Smoothness, largest over mean: {result.smoothness_ratio:.2f}")
    print(result.words)
    return 0


@application.command()
def report(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A folder of results, or its store, runs/.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write; beside the store by default.")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Seeds of each that the paper's check wants.")] = RUNS,
    machine: Machine = False,
    debug: Debug = False,
) -> int:
    """Write figures, tables and a page from stored results; nothing is run."""
    folder = store / "runs" if (store / "runs").is_dir() else store
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    console = _console(stderr=True)
    page = _report(folder, _parent(folder) / "report" if out is None else out, console, runs)
    if page is None:
        return 1
    if machine:
        _print_json({"page": page})
    else:
        print(f"Page: {page}")
    return 0


@sets.command("list")
def list_sets(folder: Folder = None, machine: Machine = False, debug: Debug = False) -> int:
    """Which there are, and whether their files are here."""
    rows = []
    for name in datasets.names():
        files = datasets.where(name, folder=folder)
        here = sum(path is not None for path in files.values())
        state = "built in" if not files else "here" if here == len(files) else f"{here} of {len(files)} files here"
        rows.append({"name": name, "state": state})
    if machine:
        _print_json(rows)
    else:
        table = Table("name", "state")
        for row in rows:
            table.add_row(row["name"], row["state"])
        _print_table(table)
    return 0


Name = Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(datasets.names())}.")]


@sets.command()
def fetch(name: Name, folder: Folder = None, machine: Machine = False, debug: Debug = False) -> int:
    """Bring all files of a dataset here, if need be, and say where they are."""
    return _print_files(datasets.fetch(name, folder=folder, progress=sys.stderr.isatty()), machine)


@sets.command()
def where(name: Name, folder: Folder = None, machine: Machine = False, debug: Debug = False) -> int:
    """Where the files of a dataset are."""
    return _print_files(datasets.where(name, folder=folder), machine)


# --- what they share -----------------------------------------------------------------------


def _check(names: Sequence[str], runs: int, out: Path, machine: bool) -> int:
    for name in names:
        if name not in SETTINGS:
            raise ValueError(f"check {name!r}: must be one of {', '.join(SETTINGS)}")
    records, skipped = Store(out / "runs").read()
    for each in skipped:
        print(f"avare: {each}; passed over", file=sys.stderr)
    rows = checking.check(records, list(names) or list(SETTINGS), runs)
    counts, code = checking.tally(rows), checking.exit_code(rows)
    if machine:
        left_out = [{"file": each.name, "reason": each.reason} for each in skipped]
        _print_json({"rows": [row.as_dict() for row in rows], **counts, "skipped": left_out, "exit_code": code})
        return code
    table = Table("dataset", "steps", "sampler", "measure", "theirs", "ours", "may differ by", "verdict", "note")
    for row in rows:
        table.add_row(
            row.dataset,
            row.steps,
            row.sampler,
            ("log10 " if row.measure in checking.LOGARITHMS else "") + checking.MEASURE_NAMES[row.measure],
            _figure(row.theirs),
            _figure(row.ours),
            row.tolerance,
            row.verdict.upper() if row.verdict == "differs" else row.verdict,
            row.note,
        )
    _print_table(table)
    paper = checking.published()
    print(f"Theirs: {paper['source']}. {paper['smoothness_note']}")
    print(f"{counts['agrees']} agree, {counts['differs']} differ, {counts['missing']} missing")
    if counts["missing"]:
        print(f"What is missing is run by: avare reproduce {' '.join(names) or 'all'} --runs {runs} --out {out}")
    return code


def _figure(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.3g}" if abs(value) >= 1e4 else f"{value:.2f}"


@contextmanager
def _stored(store: Store, console: Console) -> Iterator[None]:
    """Around runs: says what happens to them on Ctrl-C, and what was found damaged."""
    before = set(store.damaged())
    try:
        yield
    except KeyboardInterrupt:
        kept = len(list(store.folder.glob("*.json")))
        print(
            f"avare: interrupted; {kept} results are stored, and the same command goes on from there", file=sys.stderr
        )
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for path in sorted(set(store.damaged()) - before):
            run_again = (store.folder / path.name[: path.name.index(".damaged")]).exists()
            end = "was run again" if run_again else "will be run again"
            print(f"avare: {path.name}: was damaged, is set aside, and {end}", file=sys.stderr)


def _parent(folder: Path) -> Path:
    """The folder that has this one in it, from here; a path such as "." does not say which."""
    return folder.parent if folder.name not in ("", "..") else Path(os.path.relpath(folder.resolve().parent))


def _report(store: Path, out: Path, console: Console, runs: int = RUNS) -> Path | None:
    try:
        reports = import_module("avare.report")
    except ImportError as error:
        missing = error.name if error.name and not error.name.startswith("avare") else "avare.report"
        print(f"avare: no page was made, for {missing} is not installed; the results are in {store}", file=sys.stderr)
        return None
    passed_over: list[str] = []
    with console.status("writing the report ..."):
        page = Path(reports.write(store, out, runs=runs, say=passed_over.append))
    for text in passed_over:
        print(f"avare: {text}", file=sys.stderr)
    return page


def _obtain(source: str, loss: str, target: str | None, folder: Path | None) -> Any:
    wanted: Loss | None = None
    if loss != "auto":
        matching = [each for each in LOSSES if each == loss]
        if not matching:
            raise ValueError(f"--loss {loss}: must be auto or one of {', '.join(LOSSES)}")
        wanted = matching[0]
    return obtain(
        source, loss=wanted, target=target, folder=None if folder is None else str(folder), progress=sys.stderr.isatty()
    )


def _names(text: str) -> list[str]:
    names = [comparison.known(name) for name in text.split(",") if name.strip()]
    for name in names:
        if name not in samplers.names():
            raise ValueError(f"--samplers {name}: must be some of {', '.join(samplers.names())}")
    if not names:
        raise ValueError("--samplers: names none")
    return list(dict.fromkeys(names))


def _exponents(records: Sequence[Record]) -> dict[str, tuple[float, float, float]]:
    """By method: the mean and deviation of the exponents of its runs, and the theorem's."""
    found = {}
    for method, bound in BOUNDS.items():
        values = [reproduction.exponent(record) for record in records if record["spec"].get("method") == method]
        if values:
            mean = math.fsum(values) / len(values)
            deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
            found[method] = (mean, deviation, float(bound))
    return found


def _print_summary(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    table = Table("dataset", "steps", "sampler", "runs", "epochs", "suboptimality", "relative error", "regret", "a run")
    for row in rows:
        values = [row["suboptimality"], row["relative_error"], row["regret"]]
        table.add_row(
            row["dataset"],
            row["steps"],
            row["sampler"],
            f"{row['runs']}" + (f" ({row['diverged']} diverged)" if row["diverged"] else ""),
            f"{row['epochs']}",
            *("-" if value is None else f"{value:.3g}" for value in values),
            duration(row["seconds"]) if row["seconds"] >= 10.0 else f"{row['seconds']:.1f} s",
        )
    _print_table(table)


def _print_sooner(rows: Iterable[Mapping[str, Any]]) -> None:
    """When samplers are where Uniform ends, in words."""
    for row in rows:
        if row["epochs_to_uniform"] is not None:
            print(
                f"{row['sampler']} on {row['dataset']}, {row['steps']} steps: is where Uniform ends after "
                f"{row['epochs_to_uniform']} of {row['epochs']} epochs."
            )
            if row["epochs_to_uniform"] > 0.9 * row["epochs"]:
                print(
                    "  Hardly sooner: a sampler saves noise, and with careful steps it may be the way still to go "
                    "that counts. More --epochs would tell."
                )


def _print_facts(facts: Mapping[str, Mapping[str, float]]) -> None:
    table = Table("dataset", "examples", "coefficients", "optimum", "gain at the optimum", "smoothness ratio")
    for name, fact in facts.items():
        table.add_row(
            name,
            f"{fact['n']:,}",
            f"{fact['dim']:,}",
            f"{fact['optimum']:.6g}",
            f"{fact['gain_at_optimum']:.3f}",
            f"{fact['smoothness_ratio']:.2f}",
        )
    if facts:
        _print_table(table)


def _print_doubts(records: Sequence[Record]) -> None:
    """Which optima were not found to the tolerance asked for."""
    for record in records:
        text = doubt_of_optimum(record["spec"], record.get("facts", {}))
        if text:
            print(text)


def _print_nets(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    table = Table("net", "sampler", "best setting", "runs", "training loss", "test error", "gain", "possible", "a run")
    for row in rows:
        table.add_row(
            row["model"],
            row["sampler"],
            f"{row['optimiser']} {row['step']:g} {row['rule']}, batches of {row['batch_size']}",
            f"{row['runs']}",
            _number(row["loss"], ".3g"),
            _number(row["test_error"], ".2%"),
            _number(row["gain"], ".2f"),
            _number(row["possible"], ".2f"),
            _number(row["seconds"], ".1f", " s"),
        )
    _print_table(table)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _print_places(store: Store, page: Path | None) -> None:
    print(f"Results: {store.folder}")
    if page is not None:
        print(f"Page: {page}")


def _print_files(files: Mapping[str, Path | None], machine: bool) -> int:
    if machine:
        _print_json(dict(files))
    elif not files:
        print("It has no files: it is built in.")
    else:
        for name, path in files.items():
            print(f"{name}: {path or 'not here; `avare datasets fetch` brings it'}")
    return 0


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=lambda each: str(each) if isinstance(each, Path) else repr(each)))


def _print_table(table: Table) -> None:
    _console(stderr=False).print(table)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_WIDE)
