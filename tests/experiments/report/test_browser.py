"""The page in a real browser, without a network: Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import stored_runs
from avare.experiments.report.writing import gather, page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
HOSTILE = "</script><script>document.title='taken'</script>"


@dataclass
class Visit:
    """An open page, and what it asked for and complained of."""

    tab: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def charts(self) -> dict[str, Any]:
        """Of each chart of the open tab: the lines by name, and the kind of its vertical axis."""
        found: dict[str, Any] = self.tab.evaluate(
            """() => Object.fromEntries(
                [...document.querySelectorAll("[role=tabpanel]:not([hidden]) .chart")].map((chart) => [chart.id, {
                    lines: chart.data.filter((trace) => trace.name).map((trace) => trace.name).reverse(),
                    bands: chart.data.filter((trace) => trace.fill === "toself").length,
                    drawn: chart.querySelectorAll(".scatterlayer .trace").length,
                    least: Math.min(...chart.data.flatMap((trace) => trace.y).filter((value) => value !== null)),
                    axis: chart.layout.yaxis.type,
                    colours: Object.fromEntries(
                        chart.data.filter((trace) => trace.name).map((trace) => [trace.name, trace.line.color])),
                }]))"""
        )
        return found

    def open_tabs(self) -> list[str]:
        found: list[str] = self.tab.locator("[role=tab][aria-selected=true]").all_inner_texts()
        return found

    def open_panels(self) -> int:
        count: int = self.tab.locator("[role=tabpanel]:visible").count()
        return count

    def choose(self, name: str) -> None:
        self.tab.get_by_role("tab", name=name, exact=True).click()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a store with everything in it, also names that look like code."""
    folder = tmp_path_factory.mktemp("report")
    store = stored_runs.full_store(folder / "store", others=("Optimal", "Novel"))
    extra = [stored_runs.run(HOSTILE, name, experiment="compare", epochs=3) for name in ("Avare", HOSTILE)]
    extra[0]["trace"]["relative_error"] = [1.0, 0.0, -1.0, 1e-16]
    extra[0]["trace"]["suboptimality"] = [None] * 4
    for name, values in (("Narrow", [3300.0, 2500.0, 2100.0, 1950.0]), ("Empty", [None] * 4)):
        extra.append(stored_runs.run(name, experiment="compare", epochs=3))
        extra[-1]["trace"]["suboptimality"] = values
        extra[-1]["trace"]["seconds"] = [0.0, 1.0, 2.0, 3.0]
    stored_runs.put(store, extra)
    index = folder / "index.html"
    index.write_text(page_of(gather(store)), encoding="utf-8")
    return index.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


def visit(browser: Any, address: str, **options: Any) -> Visit:
    tab = browser.new_page(**options)
    seen = Visit(tab)
    tab.on("console", lambda message: seen.complaints.append(message.text) if message.type != "log" else None)
    tab.on("pageerror", lambda error: seen.complaints.append(str(error)))

    def answer(route: Any) -> None:
        seen.requests.append(route.request.url)
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            route.abort()

    tab.route("**/*", answer)
    tab.goto(address)
    tab.locator("[role=tabpanel][data-drawn]").wait_for()
    return seen


@pytest.fixture(scope="module")
def desktop(browser: Any, address: str) -> Iterator[Visit]:
    """The page on a desktop, opened once: to open it takes seconds."""
    found = visit(browser, address, viewport={"width": 1280, "height": 900})
    yield found
    found.tab.close()


@pytest.fixture
def seen(desktop: Visit, address: str) -> Iterator[Visit]:
    """The same as it opens; after each test it has asked nothing of any host, and complained of nothing."""
    desktop.choose("MNIST")
    panel = desktop.tab.locator("[role=tabpanel]:visible")
    panel.get_by_role("button", name="All").click()
    panel.get_by_label("Default").check()
    yield desktop
    assert desktop.complaints == []
    assert desktop.requests == [address]


def test_it_opens_with_charts_drawn(seen: Visit) -> None:
    assert seen.tab.title() == "Adaptive importance sampling: results"
    assert seen.open_tabs() == ["MNIST"] and seen.open_panels() == 1
    charts = seen.charts()
    assert len(charts) == 6
    for chart in charts.values():
        assert chart["lines"] == ["Avare", "Uniform", "Mabs", "Vrb"]
        assert chart["bands"] == 4 and chart["drawn"] == 8
    assert [chart["axis"] for chart in charts.values()] == ["log", "linear", "log"] * 2


def test_every_tab_opens(seen: Visit) -> None:
    for name in seen.tab.locator("[role=tab]").all_inner_texts():
        seen.choose(name)
        assert seen.open_tabs() == [name] and seen.open_panels() == 1
        assert all(chart["drawn"] > 0 for chart in seen.charts().values())
    assert seen.tab.title() == "Adaptive importance sampling: results"  # no name was taken for code


def test_tabs_by_keyboard(seen: Visit) -> None:
    seen.tab.locator("[role=tab]").first.focus()
    names = seen.tab.locator("[role=tab]").all_inner_texts()
    for key, expected in (
        ("ArrowRight", names[1]),
        ("ArrowLeft", names[0]),
        ("ArrowLeft", names[-1]),
        ("ArrowRight", names[0]),
        ("End", names[-1]),
        ("Home", names[0]),
    ):
        seen.tab.keyboard.press(key)
        assert seen.open_tabs() == [expected]
        assert seen.tab.evaluate("document.activeElement.innerText") == expected
    assert seen.tab.locator("[role=tab][tabindex='0']").count() == 1
    seen.tab.keyboard.press("Tab")
    assert seen.tab.evaluate("document.activeElement.getAttribute('role')") == "tabpanel"


def test_each_tab_names_its_panel(seen: Visit) -> None:
    for tab in seen.tab.locator("[role=tab]").all():
        panel = seen.tab.locator(f"#{tab.get_attribute('aria-controls')}")
        assert panel.get_attribute("role") == "tabpanel"
        assert panel.get_attribute("aria-labelledby") == tab.get_attribute("id")


def test_guides_have_no_band_and_can_be_switched_off(seen: Visit) -> None:
    seen.choose("Theory")
    (chart,) = seen.charts().values()
    assert chart["lines"] == ["SGD, slope 0.60", "T^(2/3)", "SGLD, slope 0.75", "T^(5/6)"] and chart["bands"] == 2
    seen.tab.locator("[role=tabpanel]:visible").get_by_label("T^(2/3)").uncheck()
    (chart,) = seen.charts().values()
    assert chart["lines"] == ["SGD, slope 0.60", "SGLD, slope 0.75", "T^(5/6)"]
    seen.tab.locator("[role=tabpanel]:visible").get_by_role("button", name="All").click()


def test_every_marker_is_one_of_plotlys(seen: Visit) -> None:
    symbols = seen.tab.evaluate("Plotly.PlotSchema.get().traces.scatter.attributes.marker.symbol.values")
    lines = "[...document.querySelectorAll('.chart')].flatMap((chart) => chart.data || [])"
    used = seen.tab.evaluate(f"{lines}.map((line) => line.marker?.symbol)")
    assert {symbol for symbol in used if symbol is not None} <= set(symbols) and "circle" in used


def test_an_address_opens_its_tab(browser: Any, address: str) -> None:
    seen = visit(browser, f"{address}#how-it-was-run")
    assert seen.open_tabs() == ["How it was run"]
    seen.choose("CIFAR10")
    assert seen.tab.url.endswith("#cifar10")
    seen.tab.evaluate("location.hash = 'theory'")
    seen.tab.locator("[role=tab][aria-selected=true]", has_text="Theory").wait_for()
    assert seen.complaints == []
    seen.tab.close()


def test_samplers_are_switched_in_all_charts_of_a_tab(seen: Visit) -> None:
    panel = seen.tab.locator("[role=tabpanel]:visible")
    panel.get_by_label("Uniform").uncheck()
    assert all(chart["lines"] == ["Avare", "Mabs", "Vrb"] for chart in seen.charts().values())
    assert all(chart["drawn"] == 6 for chart in seen.charts().values())
    seen.choose("IJCNN1")
    assert all("Uniform" in chart["lines"] for chart in seen.charts().values())
    seen.choose("MNIST")
    panel.get_by_role("button", name="None").click()
    assert all(chart["lines"] == [] and chart["drawn"] == 0 for chart in seen.charts().values())
    panel.get_by_role("button", name="All").click()
    assert all(len(chart["lines"]) == 4 and chart["drawn"] == 8 for chart in seen.charts().values())


def test_axes_are_switched_between_log_and_linear(seen: Visit) -> None:
    panel = seen.tab.locator("[role=tabpanel]:visible")
    panel.get_by_label("Log", exact=True).check()
    assert {chart["axis"] for chart in seen.charts().values()} == {"log"}
    assert all(chart["least"] > 0 for chart in seen.charts().values())
    panel.get_by_label("Linear").check()
    assert {chart["axis"] for chart in seen.charts().values()} == {"linear"}
    panel.get_by_label("Default").check()
    assert [chart["axis"] for chart in seen.charts().values()] == ["log", "linear", "log"] * 2


def test_what_a_log_axis_cannot_show_is_left_out(seen: Visit) -> None:
    seen.choose(HOSTILE)
    suboptimality, _, error = seen.charts().values()
    assert error["least"] > 1e-3  # neither zero, nor negative, nor a rounding error
    assert suboptimality["lines"] == ["Avare", HOSTILE]
    seen.tab.locator("[role=tabpanel]:visible").get_by_label("Linear").check()
    assert list(seen.charts().values())[2]["least"] == -1.0


def assert_nothing_is_cut(seen: Visit, width: int) -> None:
    for name in seen.tab.locator("[role=tab]").all_inner_texts():
        seen.choose(name)
        assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width, name
        for box in (chart.bounding_box() for chart in seen.tab.locator(".chart:visible").all()):
            assert 250 < box["width"] <= width
        assert seen.tab.evaluate(CUT) == [], name


@pytest.mark.parametrize("width", [1280, 768])
def test_no_text_is_cut_at_any_width(seen: Visit, width: int) -> None:
    seen.tab.set_viewport_size({"width": width, "height": 900})
    assert_nothing_is_cut(seen, width)
    seen.tab.set_viewport_size({"width": 1280, "height": 900})


def test_no_text_is_cut_on_a_phone(browser: Any, address: str) -> None:
    seen = visit(browser, address, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert_nothing_is_cut(seen, 360)
    assert seen.complaints == []
    seen.tab.close()


# Texts that are wider than the screen, and in nothing that scrolls; captions must be visible without scrolling.
CUT = """() => [...document.querySelectorAll("[role=tabpanel]:not([hidden]) *")].filter((each) => {
    if (![...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) return false;
    const box = each.getBoundingClientRect();
    if (!box.width || each.closest("svg")) return false;
    const scrolls = each.closest(".scroll") && !each.closest("caption");
    const hidden = getComputedStyle(each).overflow === "hidden" && each.scrollWidth > each.clientWidth + 1;
    return hidden || (!scrolls && (box.right > innerWidth + 1 || box.left < -1));
}).map((each) => each.outerHTML.slice(0, 200))"""


def test_ticks_of_a_narrow_log_axis_have_all_their_digits(seen: Visit) -> None:
    seen.choose("Narrow")
    texts = seen.tab.locator("[role=tabpanel]:visible .chart").first.locator(".ytick text").all_text_contents()
    assert {"2000", "2500", "3000"} <= set(texts) or {"2000", "3000"} <= set(texts), texts


def test_an_empty_chart_has_no_axes(seen: Visit) -> None:
    seen.choose("Empty")
    chart = seen.tab.locator("[role=tabpanel]:visible .chart").first
    assert chart.locator(".xtick, .ytick").count() == 0 and "no values" in chart.text_content()


def test_it_follows_the_dark_mode(browser: Any, address: str) -> None:
    seen = visit(browser, address, color_scheme="light")

    def colours() -> tuple[str, str]:
        background = seen.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return background, next(iter(seen.charts().values()))["colours"]["Uniform"]

    assert colours() == ("rgb(255, 255, 255)", "#1c2024")
    seen.tab.emulate_media(color_scheme="dark")
    seen.tab.locator("[data-drawn=dark]").wait_for()
    assert colours() == ("rgb(20, 23, 27)", "#e6e8eb")
    assert next(iter(seen.charts().values()))["colours"]["Avare"] == "#0072B2"
    assert seen.complaints == []
    seen.tab.close()


def test_a_host_would_be_refused(seen: Visit) -> None:
    # The policy of the page itself: were something to ask, it could not.
    refused = seen.tab.evaluate("fetch('https://example.org').then(() => false, () => true)")
    assert refused is True and seen.complaints != []
    assert len(seen.requests) == 1
    seen.complaints.clear()


def test_every_picture_and_control_has_a_name(seen: Visit) -> None:
    for name in seen.tab.locator("[role=tab]").all_inner_texts():
        seen.choose(name)
        for chart in seen.tab.locator(".chart:visible").all():
            assert chart.get_attribute("role") == "img" and chart.get_attribute("aria-label")
        for control in seen.tab.locator("input:visible").all():
            assert control.evaluate("(input) => input.labels[0].innerText.trim()")


def test_the_report_as_it_is_written_opens(browser: Any, tmp_path: Path) -> None:
    from avare.experiments import report

    store = stored_runs.put(tmp_path / "store", [stored_runs.run(epochs=2)])
    seen = visit(browser, report.write(store, tmp_path / "out").as_uri())
    assert seen.open_tabs() == ["MNIST"] and len(seen.charts()) == 3 and seen.complaints == []
    seen.tab.close()
