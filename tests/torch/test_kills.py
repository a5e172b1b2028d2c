"""A Trainer that is killed while it saves resumes from its last complete checkpoint, and loses nothing else."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import killed_trainer

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:`loss_type=None`")  # the framework's own


@pytest.mark.parametrize("kills", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_random_moments(kills: int, tmp_path: Path) -> None:
    """Losses, draws and parameters are those of a run without kills."""
    found = killed_trainer.kill_and_resume(tmp_path, np.random.default_rng(kills), kills)
    assert found >= kills // 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run with checkpoints after 2 and 4 steps, and its result after 5."""
    folder = tmp_path_factory.mktemp("saved")
    trainer = killed_trainer.make(folder, 5, kept=None)
    trainer.train()
    return folder, killed_trainer.result_of(trainer)


def cut(file: Path) -> None:
    """Leave the first half of a file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def copied(folder: Path, place: Path) -> list[Path]:
    """Copy the last two checkpoints, and return the files of the last one in the order in which they were written."""
    names = sorted((folder / "checkpoint-4").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    for checkpoint in ("checkpoint-2", "checkpoint-4"):
        (place / checkpoint).mkdir()
        for file in (folder / checkpoint).iterdir():
            (place / checkpoint / file.name).write_bytes(file.read_bytes())
    return [place / "checkpoint-4" / file.name for file in names]


@pytest.mark.parametrize("place", [0, 3, -2, -1])
def test_a_checkpoint_that_was_not_saved_completely_is_skipped(place: int, saved: Any, tmp_path: Path) -> None:
    """Whichever file was being written: at first that of the model, and at last the Trainer's own."""
    folder, wanted = saved
    files = copied(folder, tmp_path)
    assert files[-1].name == "trainer_state.json"
    cut(files[place])
    for file in files[files.index(files[place]) + 1 :]:
        file.unlink()
    trainer = killed_trainer.make(tmp_path, 5)
    trainer.train(resume_from_checkpoint=True)
    assert killed_trainer.result_of(trainer) == wanted


def test_without_a_complete_checkpoint_training_starts_from_the_beginning(saved: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    trainer = killed_trainer.make(tmp_path, 5)
    with pytest.warns(UserWarning, match=r"no checkpoint in .* is complete: training starts from the beginning"):
        trainer.train(resume_from_checkpoint=True)
    assert killed_trainer.result_of(trainer) == saved[1]
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory"):
        killed_trainer.make(tmp_path / "nothing", 5).train(resume_from_checkpoint=True)


def test_a_damaged_state_is_named_with_what_to_do(saved: Any, tmp_path: Path) -> None:
    files = copied(saved[0], tmp_path)
    (state,) = (file for file in files if file.name == "importance.pt")
    whole = state.read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], whole[:-1], b"importance"):
        state.write_bytes(damaged)
        trainer = killed_trainer.make(tmp_path, 5)
        with pytest.raises(ValueError, match=rf"{state} cannot be loaded .* older checkpoint, or delete this file"):
            trainer.train(resume_from_checkpoint=True)
    state.unlink()
    with pytest.warns(UserWarning, match=rf"there is no {state}, .* no norms are known yet"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 5


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from avare.torch.loading.tensors import save

    file = tmp_path / "importance.pt"
    save({"steps": 1}, str(file))
    before = file.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save({"steps": 2}, str(file))
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
