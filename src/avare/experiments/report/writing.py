"""The whole report, from a store."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from avare._files import failing_as, remove_left_overs, write_whole
from avare.experiments import base
from avare.experiments.base import Summary
from avare.experiments.datasets.files import check_folder
from avare.experiments.document import Panel, Section, printable
from avare.experiments.report import charts, page
from avare.experiments.store import Result, Store, count, merged, together
from avare.plotting.charts import Style, styles_of

_LONGEST_NAME = 80  # letters of a file


@dataclass(frozen=True, eq=False)
class ReportContents:
    """What a report shows."""

    summaries: Mapping[str, Summary]  # by the name of the experiment
    shown: tuple[Result, ...]
    skipped: tuple[str, ...] = ()  # files, and why

    @classmethod
    def of(cls, results: Sequence[Result]) -> "ReportContents":
        """Summarise results, each experiment its own."""
        summaries = {}
        for name in base.names():
            own = [each for each in results if base.of_kind(each.kind).name == name]
            if own and (summary := base.get(name).summarise(own)) is not None:
                summaries[name] = summary
        return cls(summaries, tuple(each for each in results if each.shown))

    @cached_property
    def styles(self) -> dict[str, Style]:
        """The styles of all labels in the charts of figures and panels."""
        rows = [row for each in self.summaries.values() for figure in each.figures.values() for row in figure.rows]
        panels = [panel for each in self.summaries.values() for panel in each.panels]
        return styles_of(chart for several in (*rows, *(panel.charts for panel in panels)) for chart in several)


def write(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Make figures, tables, numbers and a web page from stored results; nothing is run.

    ``out`` gets ``figures/`` (PNG and SVG), ``tables/`` (CSV and Markdown), ``numbers.json`` and ``index.html``, one
    file that needs no network. Files of these names are replaced, each whole or not at all; others stay.

    Parameters
    ----------
    store : path
        The folder of a store; it is only read. Damaged files are skipped, and named on the page and in
        ``numbers.json``.
    out : path
        Where to write; the folder is made if necessary. If this fails, the ``OSError`` names it.
    say : callable, optional
        Called with a line about each skipped file.

    Returns
    -------
    Path
        The page.

    Examples
    --------
    >>> import tempfile
    >>> from avare.experiments import Store, compare, obtain
    >>> data, loss = obtain("synthetic")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = compare(data, loss, Store(folder), samplers=["Uniform"], epochs=2, runs=1, batch_size=10)
    ...     write(folder, f"{folder}/report").name
    'index.html'
    """
    contents = gather(store)
    try:
        pictures = _pictures(contents)
    except (ImportError, OSError):
        raise
    except Exception:  # of an odd record
        contents = gather(store, drawn=True)
        pictures = _pictures(contents)
    for each in contents.skipped:
        say(f"{each}; skipped")
    folder = Path(out)
    with failing_as(OSError, f"{folder}: cannot write the report"):
        for place in (folder, folder / "figures", folder / "tables"):
            place.mkdir(parents=True, exist_ok=True)
            remove_left_overs(place)
        for path, content in {**_texts(contents), **pictures}.items():
            write_whole(folder / path, content)
    return folder / "index.html"


def gather(store: str | os.PathLike[str], *, drawn: bool = False) -> ReportContents:
    """Read a store and summarise its records. Those that cannot be shown are passed over, and named.

    With ``drawn``, it must be possible to draw the figures too. A store without a record that can be shown is a
    ``ValueError``.
    """
    place = Store(store)
    check_folder(f"store = {str(store)!r}", place.folder)
    found, skipped = place.read()
    attempts = []

    def attempt(members: Sequence[Result]) -> None:
        attempts.append(ReportContents.of(members))
        _texts(attempts[-1])
        if drawn:
            _pictures(attempts[-1])

    sound, odd = base.showable(found, attempt)
    contents = ReportContents.of(sound) if odd else attempts[-1]
    skipped = sorted([*skipped, *odd])
    skipped += [
        f"{each.stored['key']}.json: status = {each.status!r}: the run has not finished"
        for each in sound
        if not each.shown
    ]
    if not contents.shown:
        words = f"; {count(len(skipped), 'file')} skipped, such as {skipped[0]}" if skipped else ""
        raise ValueError(f"store = {str(store)!r}: holds no record of a finished run{words}")
    return replace(contents, skipped=tuple(map(printable, skipped)))


def _texts(contents: ReportContents) -> dict[str, bytes]:
    """Return the page, the numbers and the tables, by their paths."""
    numbers = merged(summary.numbers for summary in contents.summaries.values())
    numbers["where"] = [{**place, "records": each} for place, each in _places(contents.shown)]
    numbers["skipped"] = list(contents.skipped)
    text = json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False)
    files = {"numbers.json": f"{text}\n", "index.html": page_of(contents)}
    for summary in contents.summaries.values():
        for name, table in summary.tables.items():
            files[f"tables/{file_name(name)}.csv"] = table.as_csv()
            files[f"tables/{file_name(name)}.md"] = table.as_markdown()
    return {path: text.encode() for path, text in files.items()}


def _pictures(contents: ReportContents) -> dict[str, bytes]:
    """Return the figures, by their paths."""
    return {
        f"figures/{file_name(name)}.{ending}": drawn
        for summary in contents.summaries.values()
        for name, figure in summary.figures.items()
        for ending, drawn in charts.render(figure, contents.styles).items()
    }


def file_name(text: str) -> str:
    """Return a name of a file that is in its folder, whatever the text: what had to be changed gets a hash.

    >>> file_name("compare-auto"), file_name("../a b")
    ('compare-auto', '-a-b-4bc9c733')
    """
    safe = re.sub(r"[^\w=+-]+", "-", text)[:_LONGEST_NAME]
    return safe if safe == text else f"{safe}-{hashlib.sha256(ascii(text).encode()).hexdigest()[:8]}"


def page_of(contents: ReportContents) -> str:
    """Return the page."""
    return page.render(panels_of(contents), contents.styles, lead=_lead(contents), notices=_notices(contents))


# --- what concerns all experiments ----------------------------------------------------------


def panels_of(contents: ReportContents) -> list[Panel]:
    """Return all tabs: those with charts, those with tables only, and how everything was run."""
    panels: list[Panel] = []
    for name, summary in contents.summaries.items():
        taken = {panel.title for panel in panels}
        for panel in summary.panels:
            title = f"{panel.title} ({name})" if panel.title in taken else panel.title
            panels.append(replace(panel, title=title))
    places = tuple({"records": number, **place} for place, number in _places(contents.shown))
    details = [section for summary in contents.summaries.values() for section in summary.details]
    how = Panel("How it was run", (Section("Machine and versions", places), *details))
    return [*sorted(panels, key=lambda panel: not panel.charts), how]


def _lead(contents: ReportContents) -> str:
    leads = {name: summary.lead for name, summary in contents.summaries.items() if summary.lead}
    words = [f"{name}: {lead}" if len(leads) > 1 else lead for name, lead in leads.items()]
    days = sorted({str(each.where["date"])[:10] for each in contents.shown if each.where.get("date")})
    dates = " to ".join(dict.fromkeys(days[:1] + days[-1:]))
    return f"{'; '.join(words) or count(len(contents.shown), 'record')}{', ' if dates else ''}{dates}."


def _notices(contents: ReportContents) -> list[str]:
    notices = [text for summary in contents.summaries.values() for text in summary.notices]
    if contents.skipped:
        verb = "are" if len(contents.skipped) > 1 else "is"
        words = f"{count(len(contents.skipped), 'file')} of the store {verb} left out:"
        notices.append("\n".join([words, *contents.skipped]))
    return notices


def _places(results: Sequence[Result]) -> list[tuple[dict[str, Any], int]]:
    """Return where the records were made, and how many at each place, most first."""
    found = together(results, lambda each: {key: value for key, value in each.where.items() if key != "date"})
    return sorted(((place, len(members)) for place, members in found), key=lambda pair: -pair[1])
