"""The snippets of docs/frameworks.md, each run by the tests of its framework."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def run_snippet(heading: str) -> None:
    """Run the one snippet below a heading."""
    (part,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    (snippet,) = re.findall(r"^```python\n(.*?)^```", part, flags=re.DOTALL | re.MULTILINE)
    exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
