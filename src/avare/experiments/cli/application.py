"""The subcommands: their options, and what they print."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import avare
from avare import _validation as validation
from avare import problems, samplers
from avare._interrupts import INTERRUPTED
from avare.experiments import base, datasets
from avare.experiments.base import RUNS, Experiment, Request, Summary
from avare.experiments.cli.output import Bar, Display, console, say, show
from avare.experiments.comparison import compare as compare_samplers
from avare.experiments.data import Data, obtain, prepared
from avare.experiments.datasets.files import LIMIT, check_folder
from avare.experiments.diagnosis import diagnose as diagnose_data
from avare.experiments.document import Table, printable
from avare.experiments.report import write as write_report
from avare.experiments.runner import execute
from avare.experiments.sgd_runs import RULES, OwnSteps
from avare.experiments.store import Store, merged

application = typer.Typer(
    help="Adaptive importance sampling for stochastic gradients: the paper's experiments, and your data.",
    epilog="With --debug, every command shows the traceback of an error.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


sets = typer.Typer(help="The named datasets, and where their files are.", rich_markup_mode=None)
application.add_typer(sets, name="datasets")

Machine = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of results: runs/ is the store, report/ the page.")]
Folder = Annotated[Path | None, typer.Option("--data", help="Folder to search first for dataset files.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="How many runs to do at a time.")]
Samplers = Annotated[str | None, typer.Option("--samplers", help="Names, separated by commas.")]
Source = Annotated[str, typer.Argument(metavar="DATA", help="A named dataset, or the path of a file.")]
LossOption = Annotated[str | None, typer.Option("--loss", help=f"One of {', '.join(problems.names())}.")]
Target = Annotated[str | None, typer.Option("--target", help="Column of the targets, in a CSV or Parquet file.")]
Names = list[str] | None
Drop = Annotated[Names, typer.Option("--drop", help="Columns to leave out, separated by commas; can be repeated.")]
Categories = Annotated[Names, typer.Option("--categories", help="Columns of numbers to treat as categories.")]
Limit = Annotated[float, typer.Option("--limit", help="Largest size of an unpacked file, in bytes.")]
SetName = Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(datasets.names())}.")]
L2 = Annotated[float, typer.Option("--l2", min=0.0, help="Strength of the l2 penalty on the whole sum.")]
Raw = Annotated[bool, typer.Option("--raw", help="Keep columns as they are: not standardised, without an intercept.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Examples drawn per step, by default 128.")]


def _by_word() -> dict[str, Experiment]:
    """Return the experiments, by the words that run them or parts of them."""
    experiments = [base.get(name) for name in base.names()]
    return {word: each for each in experiments for word in ((each.name,) if each.words is None else each.words)}


def run(arguments: list[str]) -> int:
    """Run a subcommand; return the exit code. An error is one line on the standard error stream."""
    try:
        found = application([each for each in arguments if each != "--debug"], prog_name="avare", standalone_mode=False)
        if found == INTERRUPTED:  # Typer has caught the exception
            print("avare: interrupted", file=sys.stderr)
        return found if isinstance(found, int) else 0
    except Exception as error:
        if "--debug" in arguments:
            raise
        usage = getattr(error, "format_message", None)  # of what Typer raises
        text = usage() if usage is not None else str(error)
        expected = usage is not None or isinstance(error, ValueError | TypeError | OSError | ImportError)
        if not expected or not text:
            text = f"{type(error).__name__}: {text} (--debug shows where)"
        print(f"avare: {printable(' '.join(text.split()))}", file=sys.stderr)
        return INTERRUPTED if isinstance(error, InterruptedError) else int(getattr(error, "exit_code", 1))


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
    what: Annotated[Names, typer.Argument(metavar="[WHAT]...", help=f"Some of {', '.join(_by_word())}.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, help=f"Runs of each setting, by default {RUNS}.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Epochs per run.")] = None,
    steps: Annotated[Literal["decreasing", "constant", "both"], typer.Option(help="Step sizes.")] = "both",
    samplers: Samplers = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer runs and epochs: roughly two minutes.")] = False,
    plan: Annotated[Path | None, typer.Option(help="File with settings, for experiments that take one.")] = None,
    data: Folder = None,
    jobs: Jobs = 2,
    out: Out = Path("results"),
    machine: Machine = False,
) -> None:
    """Run experiments, by default the paper's, and write a report. Started again, it does only what is missing."""
    wanted, known = what or ["all"], _by_word()
    for word in wanted:
        validation.choice("reproduce", word, known)
    chosen = list(dict.fromkeys(known[word] for word in known if word in wanted))
    if plan is not None and not any("plan" in each.takes for each in chosen):
        raise ValueError(f"--plan: {', '.join(wanted)} takes none")
    names = () if samplers is None else _sampler_names(samplers)
    rules = RULES if steps == "both" else (steps,)
    how_much: dict[str, Any] = {"runs": runs, "epochs": epochs, "quick": quick, "jobs": jobs, "progress": True}
    settings = Request(words=tuple(wanted), rules=rules, samplers=names, plan=plan, folder=data, **how_much)
    store = Store(out / "runs")
    with _stored(store):
        stages = [each.stages(settings) for each in chosen]
        records = execute(stages, store, jobs=jobs, watch=Display(console(stderr=True)))
    found = [each.closing([one for one in records if one["spec"]["experiment"] in each.kinds]) for each in chosen]
    _finish(found, machine, store, out)


@application.command()
def compare(
    data: Source,
    loss: LossOption = None,
    samplers: Samplers = "Uniform,Calibrated",
    target: Target = None,
    drop: Drop = None,
    categories: Categories = None,
    limit: Limit = LIMIT,
    folder: Folder = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs per run.")] = 20,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of each sampler, one per seed.")] = 5,
    batch_size: BatchSize = None,
    l2: L2 = 1.0,
    raw: Raw = False,
    test: Annotated[float, typer.Option("--test", min=0.0, max=0.99, help="Share of rows to hold out.")] = 0.0,
    steps: Annotated[OwnSteps, typer.Option("--steps", help="Found for each sampler (auto), or the paper's.")] = "auto",
    out: Out = Path("results"),
    jobs: Jobs = 2,
    machine: Machine = False,
) -> None:
    """Run samplers side by side on a named dataset or your own file, and write a report."""
    names = _sampler_names(samplers or "")
    columns: dict[str, Any] = {"target": target, "drop": drop or (), "categories": categories or (), "limit": limit}
    found, chosen = _obtain(data, machine, loss=loss, folder=folder, **columns)
    settings: dict[str, Any] = {"l2": l2, "batch_size": batch_size, "epochs": epochs, "runs": runs, "jobs": jobs}
    settings |= {"steps": steps, "watch": Display(console(stderr=True))}
    store = Store(out / "runs")
    with _stored(store):
        records = compare_samplers(prepared(found, raw=raw, test=test), chosen, store, samplers=names, **settings)
    _finish([base.get("compare").closing(records)], machine, store, out, columns=list(found.notes))


@application.command()
def diagnose(
    data: Source,
    loss: LossOption = None,
    target: Target = None,
    drop: Drop = None,
    categories: Categories = None,
    limit: Limit = LIMIT,
    l2: L2 = 1.0,
    batch_size: BatchSize = None,
    raw: Raw = False,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs per run.")] = 20,
    runs: Annotated[int | None, typer.Option(min=2, help="Runs of each sampler, by default 5 or 20.")] = None,
    folder: Folder = None,
    machine: Machine = False,
) -> None:
    """Should I use this? An answer in seconds, from short runs on some of your rows."""
    columns: dict[str, Any] = {"target": target, "drop": drop or (), "categories": categories or (), "limit": limit}
    found, chosen = _obtain(data, machine, loss=loss, folder=folder, **columns)
    settings: dict[str, Any] = {"l2": l2, "batch_size": batch_size, "epochs": epochs, "runs": runs}
    with closing(Bar(console(stderr=True), "diagnosis", 1.0)) as bar:
        result = diagnose_data(prepared(found, raw=raw), chosen, count=bar.show, **settings)
    show(machine, {**result.as_dict(), "columns": list(found.notes)}, result.parts())


@application.command()
def report(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A folder of results, or its store, runs/.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write; by default next to the store.")] = None,
    machine: Machine = False,
) -> None:
    """Write figures, tables and a page from stored results; nothing is run."""
    folder = store / "runs" if (store / "runs").is_dir() else store
    check_folder(str(folder), folder)
    beside = Path(os.path.normpath(folder / ".." / "report"))
    page = _report(folder, out or beside)
    show(machine, {"page": page}, [f"Page: {page}"])


@sets.callback(invoke_without_command=True)
def _sets(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_sets()


@sets.command("list")
def list_sets(folder: Folder = None, machine: Machine = False) -> None:
    """List the datasets, and whether their files are here."""
    rows = []
    for name in datasets.names():
        files = datasets.where(name, folder=folder).values()
        here = f"{sum(path is not None for path in files)} of {len(files)} files" if files else "built in"
        rows.append({"name": name, "here": here})
    show(machine, rows, [Table.of("", "name; here", rows)])


@sets.command()
def fetch(name: SetName, folder: Folder = None, machine: Machine = False) -> None:
    """Download the missing files of a dataset, and print where all are."""
    datasets.fetch(name, folder=folder, progress=sys.stderr.isatty())
    where(name, folder, machine)


@sets.command()
def where(name: SetName, folder: Folder = None, machine: Machine = False) -> None:
    """Print where the files of a dataset are."""
    files = datasets.where(name, folder=folder)
    lines = [f"{file}: {path or 'not here; `avare datasets fetch` downloads it'}" for file, path in files.items()]
    show(machine, files, lines or ["It has no files: it is built in."])


# --- what they share -----------------------------------------------------------------------


@contextmanager
def _stored(store: Store) -> Iterator[None]:
    """Around runs: say what is stored on Ctrl-C, and which files were damaged."""
    before = set(store.damaged())
    try:
        yield
    except KeyboardInterrupt:
        kept = len(list(store.folder.glob("*.json")))
        raise InterruptedError(f"interrupted; {kept} results are stored, and the same command resumes") from None
    finally:
        for path in sorted(set(store.damaged()) - before):
            print(f"avare: {path.name}: was damaged, is renamed, and its run is done again", file=sys.stderr)


def _report(store: Path, out: Path) -> Path:
    screen = console(stderr=True)
    with screen.status("writing the report ..."):
        return write_report(store, out, say=lambda line: say(screen, f"avare: {line}"))


def _obtain(source: str, machine: bool, **options: Any) -> tuple[Data, str]:
    """Load the data, and print at once what was done to its columns."""
    found, chosen = obtain(source, progress=sys.stderr.isatty(), **options)
    if found.notes and not machine:
        say(console(stderr=False), "\n  ".join([f"Columns of {source}:", *found.notes]))
    return found, chosen


def _sampler_names(text: str) -> tuple[str, ...]:
    """Return the samplers in a list of names, in any case."""
    known = {name.lower(): name for name in samplers.names()}
    wanted = [known.get(name.strip().lower(), name.strip()) for name in text.split(",")]
    return tuple(dict.fromkeys(validation.choice("--samplers", name, samplers.names()) for name in wanted))


# --- output --------------------------------------------------------------------------------


def _finish(found: Sequence[Summary | None], machine: bool, store: Store, out: Path, **more: Any) -> None:
    """Show what runs have found, and where their files are."""
    page, known = _report(store.folder, out / "report"), [each for each in found if each is not None]
    value = {**merged(each.numbers for each in known), **more, "store": store.folder, "page": page}
    parts = [part for each in known for part in each.parts]
    show(machine, value, [*parts, f"Results: {store.folder}", f"Page: {page}"])
