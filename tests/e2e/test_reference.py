"""Every public name is in the reference, and has an example; the doctests run it."""

import inspect
from pathlib import Path

import reference

DESCRIBED = [entry for entry in reference.entries() if entry.home == f"{entry.module}.{entry.name}"]


def test_public_names_are_found() -> None:
    found = {f"{entry.module}.{entry.name}" for entry in reference.entries()}
    assert {"avare.Avare", "avare.samplers.Avare", "avare.torch.ImportanceLoader", "avare.schedules.floor"} <= found
    assert all(len(set(module.__all__)) == len(module.__all__) for module in reference.modules())
    homes = {f"{entry.module}.{entry.name}": entry.home for entry in reference.entries()}
    assert homes["avare.samplers.Avare"] == "avare.Avare"


def test_every_public_name_has_an_example() -> None:
    lacking = [
        entry.home
        for entry in DESCRIBED
        if reference.kind(entry.value) != "Types" and ">>> " not in (inspect.getdoc(entry.value) or "")
    ]
    assert not lacking, f"without an example: {', '.join(lacking)}"


def test_the_pages_list_every_public_name(tmp_path: Path) -> None:
    reference.write(tmp_path)
    for entry in reference.entries():
        text = (tmp_path / f"{entry.module}.rst").read_text()
        listed = f"   {entry.name}\n" if entry.home == f"{entry.module}.{entry.name}" else f"<{entry.home}>`"
        assert listed in text, f"{entry.module}.{entry.name}"
