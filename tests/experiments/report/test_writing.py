"""The whole report."""

import builtins
import errno
import html
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plotly import offline

import agreement
import stored_runs
from avare._optional import require
from avare.experiments import report
from avare.experiments.cli import main
from avare.experiments.document import Panel
from avare.experiments.report import charts
from avare.experiments.report.page import outline, render
from avare.experiments.report.writing import gather, page_of
from avare.experiments.store import key_of
from avare.plotting.charts import assign
from stored_runs import put, run


def test_only_the_verdict_looks_like_one() -> None:
    panel = Panel("Mine", (), lead=("Why so.", {"step sizes": "found"}), verdict=("Verdict: no difference.",))
    page = render([panel], {}, lead="", notices=())
    assert re.findall(r'<p class="verdict">(.*?)</p>', page) == ["Verdict: no difference."]
    assert "<p>Why so.</p>" in page and "<dt>step sizes</dt><dd>found</dd>" in page


def test_writes_all_and_says_where(tmp_path: Path) -> None:
    records = [run(sampler=sampler, seed=seed) for sampler in ("Avare", "Uniform") for seed in range(2)]
    records += [stored_runs.facts("mnist"), stored_runs.theory("sgd"), run("digits", experiment="compare")]
    store = put(tmp_path / "store", records)
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    index = report.write(str(store), tmp_path / "new" / "out")
    assert index == tmp_path / "new" / "out" / "index.html"
    assert {path.name for path in (index.parent / "tables").iterdir()} == {
        f"{name}.{ending}" for name in ("table1", "check", "reproduce", "compare", "theory") for ending in ("csv", "md")
    }
    assert {path.name for path in (index.parent / "figures").iterdir()} == {
        f"{name}.{ending}"
        for name in ("reproduce-decreasing", "compare-decreasing", "theory")
        for ending in ("png", "svg")
    }
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before  # only read
    numbers = json.loads((index.parent / "numbers.json").read_text())
    assert [group["title"] for group in numbers["groups"]] == ["MNIST"]
    assert [row["sampler"] for row in numbers["runs"]] == ["Avare", "Avare", "Uniform"]
    assert numbers["groups"][0]["series"][0]["regret"]["mean"][-1] == pytest.approx(1.425e11)
    assert numbers["theory"][0]["slope"] == pytest.approx(0.6)
    assert numbers["facts"][0]["gain_at_optimum"] == 5.088
    assert numbers["check"][-1]["verdict"] == "agrees" and numbers["skipped"] == []
    report.write(store, index.parent)  # once more, over the first


@pytest.mark.parametrize("name", ["figures/reproduce-decreasing.png", "tables/reproduce.md", "index.html"])
def test_a_full_disk_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, name: str
) -> None:
    if not name.startswith("figures"):
        request.getfixturevalue("no_pictures")
    out = tmp_path / "out"
    report.write(put(tmp_path / "store", [run(epochs=2)]), out)
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    put(tmp_path / "store", [run(epochs=2, seed=1)])
    opened: list[int] = []

    class Full(io.FileIO):
        """Half of what is written fits."""

        def write(self, content: Any) -> int:
            super().write(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_full(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if "/".join(Path(path).parts[len(out.parts) :]).replace("/.", "/").lstrip(".").startswith(name):
            opened.append(1)
            return Full(path, mode)
        return builtins.open(path, mode, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("avare._files.open", open_full, raising=False)
        with pytest.raises(OSError, match=f"^{out}: cannot write the report: No space left on device$"):
            report.write(tmp_path / "store", out)
    assert opened
    assert {path for path in out.rglob("*") if path.is_file()} == set(before)  # nothing is left beside them
    assert (out / name).read_bytes() == before[out / name]
    report.write(tmp_path / "store", out)
    assert (out / name).read_bytes() != before[out / name]


def test_where_no_report_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "runs", [run(epochs=2)])
    (tmp_path / "file").write_text("mine")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"avare: {tmp_path}/file: cannot write the report: File exists\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_missing_results_get_no_table(tmp_path: Path) -> None:
    record = run("digits", experiment="compare", epochs=2)
    record["trace"]["suboptimality"] = [None] * 3
    del record["where"], record["seconds"]
    index = report.write(put(tmp_path / "store", [record]), tmp_path / "out")
    assert {path.name for path in (index.parent / "tables").iterdir()} == {"compare.csv", "compare.md"}
    numbers = json.loads((index.parent / "numbers.json").read_text())
    assert numbers["runs"][0]["suboptimality"] is None
    text = html_of(index.read_text())
    assert "Against the paper" not in text and "Theory" not in text


def test_facts_about_own_data_are_not_checked(tmp_path: Path) -> None:
    facts = stored_runs.facts("mnist", spec={"dataset": "digits", "experiment": "optimum"})
    records = [facts, run("digits", experiment="compare")]
    index = report.write(put(tmp_path / "store", records), tmp_path / "out")
    tables = {path.name for path in (index.parent / "tables").iterdir()}
    assert tables == {"compare.csv", "compare.md", "facts.csv", "facts.md"}
    assert "| Digits | 60\u202f000 |" in (index.parent / "tables" / "facts.md").read_text()
    text = html_of(index.read_text())
    assert "Against the paper" not in text and "Every number" not in text


def test_runs_that_all_diverged_are_in_the_check(tmp_path: Path) -> None:
    diverged = {**run(), "status": "diverged"}
    contents = gather(put(tmp_path, [diverged, run("digits", experiment="compare")]))
    assert {row["dataset"] for row in contents.summaries["paper"].numbers["check"]} == {"mnist"}
    assert [panel.title for panel in contents.summaries["compare"].panels] == ["Digits"]
    assert [panel.title for panel in contents.summaries["paper"].panels] == ["Against the paper"]


def html_of(text: str) -> str:
    """The page without scripts."""
    return re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def rendered(folder: Path) -> str:
    return html_of(page_of(gather(folder)))


def test_damaged_records_are_mentioned_on_the_page(tmp_path: Path) -> None:
    store = put(tmp_path, [run(epochs=2)])
    (store / "broken<b>.json").write_text("{")
    (store / "notes.txt").write_text("not a record")
    text = rendered(store)
    assert "1 file of the store is left out" in text and "broken&lt;b&gt;.json: not a record" in text
    (store / "other.json").write_text("[]")
    assert "2 files of the store are left out" in rendered(store)


def test_an_optimum_that_was_not_found_is_mentioned_on_the_page(tmp_path: Path) -> None:
    found = stored_runs.facts("mnist", gradient_at_optimum=1e-6, gradient_allowed=1e-6)
    other = stored_runs.facts("ijcnn1")
    assert "not found to the requested tolerance" not in rendered(put(tmp_path / "found", [found, other]))
    early = stored_runs.facts("mnist", gradient_at_optimum=2e-3, gradient_allowed=1e-6)
    store = put(tmp_path / "early", [early, other])
    words = "The optimum of MNIST was not found to the requested tolerance: the norm of its gradient is 0.002, not "
    words += "1e-06. Suboptimalities are too small by at most 2e-06, and the gain at the optimum is approximate."
    assert rendered(store).count(f'<div class="notice" role="note">{words}</div>') == 1
    (store / "broken.json").write_text("{")
    assert words in rendered(store) and "1 file of the store is left out" in rendered(store)
    numbers = json.loads((report.write(store, tmp_path / "out").parent / "numbers.json").read_text())
    assert numbers["doubts"] == [words]


def test_skipped_files_are_named_and_left_as_they_are(tmp_path: Path) -> None:
    diverged = {**run(seed=2, epochs=2), "status": "diverged"}
    store = put(tmp_path / "store", [run(epochs=2), run(seed=1, epochs=2), diverged])
    damaged = store / f"{key_of(run(seed=1, epochs=2)['spec'])}.json"
    damaged.write_text(damaged.read_text().replace("12345.6", "12345.7"))
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    said: list[str] = []
    index = report.write(store, tmp_path / "out", say=said.append)
    names = [damaged.name, f"{key_of(diverged['spec'])}.json"]
    reasons = ["damaged: checksum or key do not match the contents", "status = 'diverged': the run has not finished"]
    assert said == [f"{name}: {reason}; skipped" for name, reason in zip(names, reasons, strict=True)]
    numbers = json.loads((index.parent / "numbers.json").read_text())
    assert [each.split(": ")[0] for each in numbers["skipped"]] == names
    assert numbers["groups"][0]["series"][0]["seeds"] == [0]  # neither is plotted
    text = html_of(index.read_text())
    assert all(name in text and reason in html.unescape(text) for name, reason in zip(names, reasons, strict=True))
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    assert "run for 2 epochs, the paper for 100; 1 diverged" in text


def test_the_page_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement.CheckedPaper, "runs", 3)
    store = stored_runs.full_store(tmp_path)
    text = rendered(store)
    for word in ("MNIST", "IJCNN1", "CIFAR10", "Synthetic", "Digits", "Theory", "Against the paper", "How it was run"):
        assert f">{word}</button>" in text
    words = "compare: 9 runs on 1 dataset; paper: 84 runs on 4 datasets; theory: 6 "
    assert words in text
    # The stored runs with constant steps end like those with decreasing steps: the paper's IJCNN1 does not.
    assert "Against the paper: 49 agree, 2 differ, 0 have too few runs.</p>" in text
    checks = gather(store).summaries["paper"].numbers["check"]
    keys = ("dataset", "steps", "sampler", "measure")
    wrong = {tuple(row[key] for key in keys) for row in checks if row["verdict"] == "differs"}
    assert wrong == {("ijcnn1", "constant", "Avare", "relative_error"), ("ijcnn1", "constant", "Avare", "regret")}
    assert "numpy 2.4.6" in text and "Some Processor, 2 cores" in text
    assert "left out" not in text and "Not in this store" not in text
    assert len(re.findall('role="tab" id=', text)) == len(re.findall('role="tabpanel" id=', text)) == 8


def test_the_page_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = rendered(put(tmp_path, [run("mnist", "Osmd", epochs=3), run("mnist", epochs=3)]))
    assert "Not in this store: IJCNN1, CIFAR10, Synthetic." in text
    assert "Against the paper: 0 agree, 0 differ, 22 have too few runs." in text
    assert "run for 3 epochs, the paper for 100" in text
    one = put(tmp_path / "more", [run("mnist", sampler) for sampler in ("Uniform", "Avare")])
    monkeypatch.setattr(agreement.CheckedPaper, "runs", 1)
    text = rendered(one)
    # Two relative errors and regrets and the order of the suboptimalities are judged; two relative errors and their
    # order are not, nor are the constant steps, nor Table 1.
    assert "Against the paper: 5 agree, 0 differ, 15 have too few runs." in text


def test_long_runs_are_thinned_on_the_page(tmp_path: Path) -> None:
    text = page_of(gather(put(tmp_path, [run(epochs=3000)])))
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0])
    x = data["charts"]["chart-1"]["series"][0]["x"]
    assert len(x) == 400 and x[0] == 0 and x[-1] == 3000


def test_the_page_names_no_host_outside_of_plotly(tmp_path: Path) -> None:
    text = page_of(gather(put(tmp_path, [run(epochs=2)])))
    own = text.replace(offline.get_plotlyjs(), "")
    assert len(own) < 100_000
    assert not re.findall(r"https?://", own) and "default-src 'none'" in own


def test_every_marker_has_an_outline() -> None:
    for style in assign(f"new{number}" for number in range(40)).values():
        heights = [float(corner.split(",")[1]) for corner in outline(style.marker).split()]
        assert len(heights) >= 3 and 2.0 < max(abs(height - 6.0) for height in heights) <= 6.0
    assert min(outline("^").split(), key=lambda corner: float(corner.split(",")[1])).startswith("16.0,")  # it points up


def test_import_needs_no_extra() -> None:
    program = "import sys, avare.experiments.report; print(' '.join(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "plotly"} & {name.split(".")[0] for name in found.stdout.split()}


# --- what is read ---------------------------------------------------------------------------


def test_sound_records_that_lack_something_are_named(tmp_path: Path) -> None:
    lacking = run(seed=1)
    lacking["trace"]["regret"] = []
    unknown = {**run(seed=2), "spec": {**run(seed=2)["spec"], "experiment": "other"}}
    bad = {"spec": {"experiment": ["x"]}}
    store = put(tmp_path, [run(), lacking, unknown, bad])
    (tmp_path / "0.json").touch()
    contents = gather(store)
    reasons = dict(each.split(": ", 1) for each in contents.skipped)
    assert len(contents.shown) == 1 and len(reasons) == 4
    assert reasons[f"{key_of(lacking['spec'])}.json"] == "trace has columns of different lengths, or none"
    words = "must be one of compare, optimum"
    assert reasons[f"{key_of(unknown['spec'])}.json"].startswith(f"spec['experiment'] = 'other': {words}")
    assert reasons[f"{key_of(bad['spec'])}.json"].startswith(f"spec['experiment'] = ['x']: {words}")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"store = '.*nowhere': there is no such folder"):
        gather(tmp_path / "nowhere")


def test_an_empty_store_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"store = .*: holds no record of a finished run$"):
        report.write(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"holds no record of a finished run; 1 file skipped, such as bad.json: not a record"
    ):
        gather(tmp_path)


def test_machines_and_dates(tmp_path: Path) -> None:
    records = [run(seed=0), run(seed=1), run(seed=2)]
    records[1]["where"] = {**stored_runs.WHERE, "processor": "Another", "date": "2026-11-18T00:00:00"}
    index = report.write(put(tmp_path / "store", records), tmp_path / "out")
    numbers = json.loads((index.parent / "numbers.json").read_text())
    assert [(place["records"], place["processor"]) for place in numbers["where"]] == [
        (2, "Some Processor, 2 cores"),
        (1, "Another"),
    ]
    assert "3 runs on 1 dataset, 2026-11-16 to 2026-11-18." in html_of(index.read_text())


def test_tabs_of_the_same_name_get_different_titles(tmp_path: Path) -> None:
    records = [run("mnist", experiment="compare"), run("mnist"), stored_runs.theory("sgd")]
    text = rendered(put(tmp_path, records))
    names = re.findall(r'data-name="[^"]*">([^<]*)</button>', text)
    assert names == ["MNIST", "MNIST (paper)", "Theory", "Against the paper", "How it was run"]


# --- what is odd ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"epochs": "many"},
        {"epochs": None},
        {"options": [1, 2]},
        {"loss": {"a": 1}},
        {"batch_size": [3]},
        {"dataset": "x" * 3000},
        {"sampler": "price$_$ [red]"},
        {"steps": ""},
        {"caution": "1"},
        {"dataset": "caf\udce9"},
        {"steps": "a/b"},
        {"steps": "x/../../../../escaped"},
        {"steps": "x" * 300},
        {"seed": "0"},
        {"epochs": []},
        {"epochs": 10**400},
    ],
    ids=lambda odd: str(odd)[:40],
)
def test_an_odd_record_does_not_stop_the_report(
    tmp_path: Path, request: pytest.FixtureRequest, odd: dict[str, Any]
) -> None:
    """It has a right key and checksum: it is shown, or passed over and named; the others are shown."""
    if not {"dataset", "sampler", "steps"} & odd.keys():  # the names that are in figures
        request.getfixturevalue("no_pictures")
    good = [run("digits", sampler, experiment="compare", epochs=3) for sampler in ("Avare", "Uniform")]
    other = run("digits", "Vrb", experiment="compare", epochs=3)
    other["spec"].update(odd)
    store = put(tmp_path / "store", [*good, other])
    said: list[str] = []
    (tmp_path / "out" / "figures" / "compare-x").mkdir(parents=True)
    index = report.write(store, tmp_path / "out", say=said.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]
    text = html_of(index.read_text())
    assert ">Digits" in text and "Avare" in text and "Uniform" in text
    for line in said:
        assert key_of(other["spec"]) in line and "cannot be shown: " in line
        assert key_of(other["spec"]) in text


@pytest.mark.usefixtures("no_pictures")
def test_records_that_are_odd_together_are_passed_over(tmp_path: Path) -> None:
    """A seed of another type, and parts of the wrong type: all else is shown."""
    records = [run("digits", name, seed, experiment="compare", epochs=3) for name in "AB" for seed in range(4)]
    odd = [run("digits", "A", experiment="compare", epochs=3), *(run("digits", "A", k, epochs=3) for k in (5, 6))]
    odd[0]["spec"]["seed"] = "0"
    odd[1]["seconds"], odd[2]["where"] = {"steps": "long"}, [3]
    contents = gather(put(tmp_path, [*odd, *records]))
    assert {key_of(each["spec"]) for each in odd} == {each.split(".json: ")[0] for each in contents.skipped}
    assert len(contents.shown) == len(records) and all("cannot be shown" in each for each in contents.skipped)


def test_a_record_that_cannot_be_drawn_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = charts.render

    def draw(figure: Any, styles: Any) -> Any:
        if "Odd" in styles:
            raise OverflowError("odd")
        return plain(figure, styles)

    monkeypatch.setattr(charts, "render", draw)
    store = put(tmp_path / "runs", [run("digits", name, experiment="compare", epochs=3) for name in ("Avare", "Odd")])
    said: list[str] = []
    text = html_of(report.write(store, tmp_path / "out", say=said.append).read_text())
    assert "Avare" in text and len(said) == 1 and "cannot be shown: OverflowError('odd')" in said[0]
    monkeypatch.setattr(charts, "render", lambda figure, styles: require("no_such_module", "drawing"))
    with pytest.raises(ImportError, match="drawing needs no_such_module"):  # no fault of a record
        report.write(store, tmp_path / "out")


# --- what a reader needs --------------------------------------------------------------------


def compared(sampler: str, seed: int = 0, **spec: Any) -> dict[str, Any]:
    """A run of a comparison, with the seconds of each epoch."""
    record = run("mine", sampler, seed, experiment="compare", epochs=4, loss="logistic", batch_size=32, **spec)
    record["trace"]["seconds"] = [0.5 * epoch for epoch in range(5)]
    return record


def test_a_tab_begins_with_the_verdict_and_the_setting(tmp_path: Path) -> None:
    text = rendered(put(tmp_path, [compared("Avare"), compared("Uniform")]))
    panel = text[text.index('id="panel-0"') :]
    verdict = re.findall('<p class="verdict">(.*?)</p>', panel)
    assert verdict[0].startswith("Verdict: Avare and Uniform, in epochs: inconclusive (1 run); try --runs 5.")
    assert panel.index('class="verdict"') < panel.index("<dt>dataset</dt><dd>mine</dd>") < panel.index("<h2>")
    assert "<dt>loss</dt><dd>logistic</dd>" in panel and "<dt>batch size</dt><dd>32</dd>" in panel
    assert "Suboptimality  f(x) − f*, over seconds" in panel and "Lower is better." in panel
    assert "A flatter line is better." in panel and '<th scope="col" class="number">seconds a run</th>' in panel
    alone = rendered(put(tmp_path / "alone", [compared("Avare")]))
    assert "There is nothing to compare: run Uniform and another sampler." in alone
    late = compared("Avare")
    late["trace"]["suboptimality"] = [1e9] * 5
    worse = rendered(put(tmp_path / "late", [late, compared("Uniform")]))
    assert "Verdict: Avare and Uniform, in epochs: inconclusive (1 run); try --runs 5." in worse


def test_files_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    digests, about = ("aaaaaa11", "bbbbbb22"), {"experiment": "optimum", "dataset": "mine", "loss": "logistic"}
    records = [compared(name, data_digest=digest) for name in ("Avare", "Uniform") for digest in digests]
    for digest, gain in zip(digests, (2.0, 7.0), strict=True):
        facts = stored_runs.facts("mnist", gain_at_optimum=gain, spec={**about, "data_digest": digest})
        records.append(facts)
    contents = gather(put(tmp_path, records))
    titles = [panel.title for panel in contents.summaries["compare"].panels]
    assert titles == [f"mine, data_digest = {digest}" for digest in digests]
    known = {row["dataset"]: row["gain_at_optimum"] for row in contents.summaries["compare"].numbers["facts"]}
    assert known == dict(zip(titles, (2.0, 7.0), strict=True))


def test_what_cannot_be_judged_has_too_few_runs(tmp_path: Path) -> None:
    text = rendered(put(tmp_path, [run("mnist"), run("mnist", "Uniform")]))
    assert "<td>too few runs</td>" in text and "<td>missing</td>" not in text
