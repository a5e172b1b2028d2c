"""The documentation site: `make docs` builds it in build/docs.

The source is the whole repository, so that a link of a page works on the site as it works in a clone. `reference.py`
writes the pages of the reference, and sphinx-gallery those of the gallery; neither is kept in Git.
"""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))
import reference

import avare

ROOT = Path(__file__).parents[1]

project = "avare"
author = "The avare developers"
project_copyright = author
release = avare.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]

root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/README.md", "benchmarks/results/**", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "results", "docs/templates"]
exclude_patterns += ["docs/gallery/**.ipynb", "docs/gallery/**.py", "docs/gallery/sg_execution_times.rst"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
templates_path = [str(ROOT / "docs" / "templates")]
default_role = "py:obj"  # `Sampler` in a docstring is a link if there is something of that name
autodoc_typehints = "none"  # the types are in the signature
autodoc_default_options = {"members": True, "inherited-members": True}
autosummary_generate = True
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples" / "gallery")],
    "gallery_dirs": ["docs/gallery"],
    "download_all_examples": False,
    "show_signature": False,
    "capture_repr": (),  # only what is printed is shown
    "min_reported_time": 1e9,  # times depend on the machine
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "avare"
html_static_path = ["static"]
html_extra_path = ["extra"]
html_css_files = ["avare.css"]
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"
html_sidebars = {"docs/start": [], "CHANGELOG": []}
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "header_links_before_dropdown": 6,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


# LaTeX that docutils does not know, and what it does.
UNKNOWN = [
    (r"\\[Bb]ig(?=\(|\\\{)", r"\\left"),
    (r"\\[Bb]ig(?=\)|\\\})", r"\\right"),
    (r"\\[Bb]ig|\\textstyle", ""),
    (r"\\mathrel\{\+\}=", "{+}{=}"),
    (r"\\dots\b", r"\\ldots"),
]


def mathml(tex: str, block: bool) -> str:
    """Return a formula as MathML, which browsers draw without any script."""
    for pattern, known in UNKNOWN:
        tex = re.sub(pattern, known, tex)
    return tex2mathml(tex, as_block=block)


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Write a formula in a line; a long one scrolls if it is wider than the screen."""
    kind = "long-formula" if len(node.astext()) > 40 else "short-formula"
    translator.body.append(f'<span class="{kind}">{mathml(node.astext(), block=False)}</span>')
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, which scrolls if it is wider than the screen."""
    translator.body.append(f'<div class="formula">{mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


# Stored tables without a heading.
TITLES = {
    "linear": "Linear models",
    "linear_certificates": "Gaps of linear models",
    "linear_choices": "Choices of the cost model",
    "linear_shapes": "Linear models of random shapes",
    "chains": "Chains: the cost of a step",
    "random_posteriors": "Random posteriors",
    "nets/nets-aims": "Nets: the aims",
    "nets/nets-aims-cells": "Nets: the aims, cell by cell",
    "nets/nets-best": "Nets: each sampler at its best",
    "nets/nets-parts": "Nets: variants of Calibrated",
    "nets/nets-settings": "Nets: all settings",
    "paper/check": "The paper's numbers and ours",
    "paper/reproduce": "Where each sampler ends",
    "paper/table1": "Table 1",
    "paper/theory": "How the regret grows",
    "sampling/sampling": "Posteriors: all settings",
    "sampling/sampling-aims": "Posteriors: the aims",
    "sampling/sampling-references": "Posteriors: the references",
}


def add_title(app: Any, name: str, source: list[str]) -> None:
    """Give a stored table that has no heading its title."""
    if name.startswith("benchmarks/") and not re.search(r"^# ", source[0], flags=re.MULTILINE):
        source[0] = f"# {TITLES[name.removeprefix('benchmarks/results/')]}\n\n{source[0]}"


def skip(app: Any, what: str, name: str, value: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what a class inherits from other libraries: it is theirs to describe."""
    value = getattr(value, "fget", value)
    return None if (getattr(value, "__module__", None) or "avare").startswith("avare") else True


def setup(app: Any) -> None:
    """Add the pages that are written, and the formulas."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", add_title)
    app.connect("config-inited", lambda app, config: reference.write(ROOT / "docs" / "reference"))
