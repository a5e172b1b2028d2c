"""The documentation site: it builds without a warning, has no dead link, and needs no network."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

pytest.importorskip("sphinx_gallery", reason="pip install 'avare[docs]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LOADED = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}  # at view time


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the whole site, the gallery included, as `make docs` does."""
    recipe = re.search(r"-m sphinx (.*) -D \S+ \. build/docs$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert recipe is not None and "-W" in recipe[1].split()
    folder = tmp_path_factory.mktemp("site")
    times = ["-D", "sphinx_gallery_conf.junit=times.xml"]  # what ran, and its seconds
    command = [sys.executable, "-m", "sphinx", *recipe[1].split(), *times, "-E", ".", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if LOADED.get(tag, "") in found and found.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loaded.append(found[LOADED[tag]])


def test_no_link_inside_is_dead_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = {
        path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if "_static" not in path.parts
    }
    assert len(pages) > 100
    faults = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                faults += [f"{path.relative_to(site)} loads {link}"] if link in page.loaded else []
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or (target in pages and anchor and anchor not in pages[target].anchors):
                faults.append(f"{path.relative_to(site)} points to {link}")
    for style in site.rglob("*.css"):
        faults += [f"{style.name} loads {url}" for url in re.findall(r"url\(['\"]?(https?:[^)]*)", style.read_text())]
    assert not faults, "\n".join(faults)


def test_every_example_of_the_gallery_has_a_figure_that_is_not_empty(site: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib.image")
    scripts = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))
    assert scripts
    for script in scripts:
        pictures = sorted(site.glob(f"_images/sphx_glr_{script.stem}_[0-9]*.png"))
        assert pictures, f"{script.name} has no figure"
        for picture in pictures:
            assert matplotlib.imread(picture)[..., :3].std() > 0.01, picture.name


def test_every_example_of_the_gallery_has_run(site: Path) -> None:
    cases = list(ElementTree.parse(site / "times.xml").iter("testcase"))
    assert len(cases) == len(list((ROOT / "examples" / "gallery").glob("plot_*.py")))
    for case in cases:
        assert not list(case), f"{case.get('name')}: {case[0].tag}"
        assert float(case.get("time", "nan")) > 0.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_pages_fit_the_screen_in_light_and_dark(site: Path, browser: Any, width: int, scheme: str) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    pages = ["docs/index", "docs/start", "docs/theory", "docs/nets", "docs/reference/generated/avare.Avare"]
    for name in [*pages, "docs/gallery/index", "benchmarks/results/linear_shapes", "CHANGELOG"]:
        tab.goto((site / f"{name}.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} is too wide"
        red = int(re.findall(r"\d+", tab.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        assert red < 60 if scheme == "dark" else red > 200, name
        assert len(tab.screenshot()) > 10_000, f"{name} is empty"
    assert asked and all(url.startswith("file:") for url in asked)
    tab.close()


def test_search_works_without_a_network(site: Path, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto((site / "search.html").as_uri() + "?q=minimize_variance")
    tab.locator("#search-results li a").first.wait_for(timeout=20_000)
    assert any("minimize_variance" in text for text in tab.locator("#search-results li").all_inner_texts())
    tab.close()
