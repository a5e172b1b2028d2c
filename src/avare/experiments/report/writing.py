"""The whole report, from a store."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from avare._files import failing_as, remove_left_overs, write_whole
from avare.experiments import base
from avare.experiments.base import Summary
from avare.experiments.datasets.files import check_folder
from avare.experiments.document import Panel, Section
from avare.experiments.report import page
from avare.experiments.report.charts import render
from avare.experiments.report.tables import as_csv, as_markdown
from avare.experiments.store import Result, Store, count, merged, together
from avare.plotting.charts import Chart, styles_of


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What a report shows."""

    summaries: Mapping[str, Summary]  # by the name of the experiment
    shown: tuple[Result, ...]
    skipped: tuple[str, ...]  # files, and why

    @property
    def charts(self) -> list[Chart]:
        """All charts of figures and panels."""
        rows = [row for each in self.summaries.values() for figure in each.figures.values() for row in figure.rows]
        panels = [panel for each in self.summaries.values() for panel in each.panels]
        return [chart for charts in (*rows, *(panel.charts for panel in panels)) for chart in charts]


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
    for each in contents.skipped:
        say(f"{each}; skipped")
    folder, styles = Path(out), styles_of(contents.charts)
    numbers = json.dumps(_numbers(contents), indent=1, ensure_ascii=False, allow_nan=False)
    files = {"numbers.json": f"{numbers}\n".encode(), "index.html": page_of(contents).encode()}
    with failing_as(OSError, f"{folder}: cannot write the report"):
        for place in (folder, folder / "figures", folder / "tables"):
            place.mkdir(parents=True, exist_ok=True)
            remove_left_overs(place)
        for summary in contents.summaries.values():
            for name, table in summary.tables.items():
                files[f"tables/{name}.csv"] = as_csv(table).encode()
                files[f"tables/{name}.md"] = as_markdown(table).encode()
            for name, figure in summary.figures.items():
                files |= {f"figures/{name}.{ending}": drawn for ending, drawn in render(figure, styles).items()}
        for path, content in files.items():
            write_whole(folder / path, content)
    return folder / "index.html"


def page_of(contents: Contents) -> str:
    """Return the page."""
    styles = styles_of(contents.charts)
    return page.render(panels_of(contents), styles, lead=_lead(contents), notices=_notices(contents))


def gather(store: str | os.PathLike[str]) -> Contents:
    """Read a store and summarise its records, by experiment.

    A store without a record that can be shown is a ``ValueError``.
    """
    place = Store(store)
    check_folder(f"store = {str(store)!r}", place.folder)
    found, skipped = place.read()
    results, odd = base.parsed(found)
    known = {name: base.get(name).summarise(members) for name, members in results.items()}
    everything = sorted((each for members in results.values() for each in members), key=lambda each: each.stored["key"])
    skipped = sorted([*skipped, *odd])
    skipped += [
        f"{each.stored['key']}.json: status = {each.status!r}: the run has not finished"
        for each in everything
        if not each.shown
    ]
    shown = tuple(each for each in everything if each.shown)
    if not shown:
        words = f"; {count(len(skipped), 'file')} skipped, such as {skipped[0]}" if skipped else ""
        raise ValueError(f"store = {str(store)!r}: holds no record of a finished run{words}")
    summaries = {name: summary for name, summary in known.items() if summary is not None}
    return Contents(summaries, shown, tuple(skipped))


# --- what concerns all experiments ----------------------------------------------------------


def panels_of(contents: Contents) -> list[Panel]:
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


def _numbers(contents: Contents) -> dict[str, Any]:
    return {
        **merged(summary.numbers for summary in contents.summaries.values()),
        "where": [{**place, "records": each} for place, each in _places(contents.shown)],
        "skipped": list(contents.skipped),
    }


def _lead(contents: Contents) -> str:
    leads = {name: summary.lead for name, summary in contents.summaries.items() if summary.lead}
    words = [f"{name}: {lead}" if len(leads) > 1 else lead for name, lead in leads.items()]
    days = sorted({str(each.where["date"])[:10] for each in contents.shown if each.where.get("date")})
    dates = " to ".join(dict.fromkeys(days[:1] + days[-1:]))
    return f"{'; '.join(words) or count(len(contents.shown), 'record')}{', ' if dates else ''}{dates}."


def _notices(contents: Contents) -> list[str]:
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
