"""All private names of the frameworks that avare uses, and what it expects of each.

If a test fails with a new version of a framework, its name says what has changed there. Look at what the framework does
now, then at the place in ``src/avare/torch`` that the table names.
"""

import ast
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "avare" / "torch"


class Private(NamedTuple):
    """A name that is not part of a framework's documented interface."""

    framework: str
    name: str
    use: str
    holds: Callable[[], bool]
    """Whether it is still there, and does what avare relies on."""


def find(path: str) -> Any:
    """An object of a framework; None if there is none of this name."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found.fget if isinstance(found, property) else found


def source(path: str) -> str:
    """The source of an object; empty if there is none of this name."""
    found = find(path)
    return "" if found is None else inspect.getsource(found)


def parameters(path: str) -> list[str]:
    """The names of a function's parameters; empty if there is none of this name."""
    found = find(path)
    return [] if found is None else list(inspect.signature(found).parameters)


def in_order(text: str, *parts: str) -> bool:
    """Whether the parts occur in a text, one after the other."""
    place = -1
    for part in parts:
        place = text.find(part, place + 1)
        if place < 0:
            return False
    return True


TRAINER = "transformers.trainer:Trainer"
FIT = "lightning.pytorch.loops.fit_loop:_FitLoop"
EPOCH = "lightning.pytorch.loops.training_epoch_loop:_TrainingEpochLoop"
STATE = "accelerate.state:GradientState"


def counts_as_we_do() -> bool:
    """Shifted labels are counted if and only if the attribute says so."""
    text = source(f"{TRAINER}._get_num_items_in_batch")
    return ("[..., 1:]" in text) == ("self._loss_shifts_labels" in text)


def returns_at_once() -> bool:
    from transformers import Trainer

    return Trainer._load_rng_state(None, None) is None  # an error if it looks at the trainer


def loads_after_the_first_batches() -> bool:
    run = source(f"{TRAINER}._run_epoch") or source(f"{TRAINER}._inner_training_loop")
    return in_order(run, "skip_first_batches(", "get_batch_samples(", "_load_rng_state(resume_from_checkpoint)")


def data_source() -> list[str]:
    from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource

    return [*inspect.signature(_DataLoaderSource).parameters, *vars(_DataLoaderSource)]


PRIVATE = [
    Private(
        "transformers", "skip_first_batches", "replaced while training, so that no batches are skipped",
        lambda: "train_dataloader = skip_first_batches(train_dataloader, " in source("transformers.trainer:Trainer"),
    ),
    Private(
        "transformers", "_load_rng_state", "called before the first pool is scored, and not again after it",
        lambda: parameters(f"{TRAINER}._load_rng_state") == ["self", "checkpoint"]
        and returns_at_once() and loads_after_the_first_batches(),
    ),
    Private(
        "transformers", "_save_rng_state", "saves importance.pt, before the Trainer writes its own state",
        lambda: parameters(f"{TRAINER}._save_rng_state") == ["self", "output_dir"]
        and in_order(source(f"{TRAINER}._save_checkpoint"), "_save_rng_state(output_dir)", "save_to_json("),
    ),
    Private(
        "transformers", "_train_batch_size", "the batch size, which auto_find_batch_size changes",
        lambda: "self._train_batch_size = " in source(TRAINER),
    ),
    Private(
        "transformers", "_prepare_inputs", "moves a pool to the device",
        lambda: parameters(f"{TRAINER}._prepare_inputs") == ["self", "inputs"],
    ),
    Private("transformers", "_loss_shifts_labels", "how the Trainer counts the targets of a batch", counts_as_we_do),
    Private(
        "lightning", "_data_source", "the train loader is replaced in it",
        lambda: {"instance", "name", "dataloader"} <= set(data_source())
        and "_request_dataloader(source)" in source(f"{FIT}.setup_data"),
    ),
    Private(
        "lightning", "fit_loop.batch_idx", "-1 before the first batch of an epoch",
        lambda: "self.epoch_loop.batch_idx" in source(f"{FIT}.batch_idx")
        and in_order(source(f"{EPOCH}.advance"), "next(data_fetcher)", "batch_progress.increment_ready()"),
    ),
    Private(
        "lightning", "__wrapped__", "which arguments training_step takes, through the wrapper",
        lambda: "__wrapped__" in source("lightning.pytorch.utilities.signature_utils:is_param_in_hook_signature"),
    ),
    Private(
        "lightning", "PL_GLOBAL_SEED", "the seed of seed_everything",
        lambda: '"PL_GLOBAL_SEED"' in source("lightning.fabric.utilities.seed:seed_everything"),
    ),
    Private(
        "lightning", "_Stateful", "a loader with state_dict and load_state_dict can resume, without a warning",
        lambda: "isinstance(loader, _Stateful)" in source(f"{EPOCH}.reset"),
    ),
    Private(
        "accelerate", "_add_dataloader", "names the loader whose end applies accumulated gradients",
        lambda: parameters(f"{STATE}._add_dataloader") == ["self", "dataloader"]
        and "dataloader_references" in source(f"{STATE}._add_dataloader"),
    ),
    Private(
        "accelerate", "_remove_dataloader", "takes the loader from that list",
        lambda: parameters(f"{STATE}._remove_dataloader") == ["self", "dataloader"],
    ),
    Private(
        "accelerate", "end_of_dataloader", "asked of the loader in use",
        lambda: "active_dataloader.end_of_dataloader" in source(STATE)
        and "active_dataloader.remainder" in source(STATE),
    ),
    Private(
        "accelerate", "_is_accelerate_prepared", "such a loader is not built again",
        lambda: "_is_accelerate_prepared" in source("accelerate:Accelerator.prepare_data_loader")
        and "item._is_accelerate_prepared = True" in source("accelerate:Accelerator.prepare"),
    ),
    Private(
        "accelerate", "use_stateful_dataloader", "the state of such a loader is saved and loaded",
        lambda: source("accelerate.checkpointing:save_accelerator_state").count("use_stateful_dataloader") == 1
        and source("accelerate.checkpointing:load_accelerator_state").count("use_stateful_dataloader") == 1,
    ),
]  # fmt: skip


@pytest.mark.parametrize("private", PRIVATE, ids=lambda private: f"{private.framework}: {private.name}")
def test_it_does_what_avare_expects(private: Private) -> None:
    framework = pytest.importorskip(private.framework, reason=f"{private.framework} is not installed")
    assert private.holds(), (
        f"{private.framework} {framework.__version__} has changed {private.name}, which avare.torch uses: {private.use}"
    )


def used(path: Path) -> set[str]:
    """Private names in a file of ours: attributes, methods, and text."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return {
        name for name in found if name.isidentifier() and name.startswith("_") and name.strip("_") and name[1] != "_"
    }


@pytest.mark.parametrize(
    ("framework", "file", "parts"),
    [
        ("transformers", "transformers.py", ["transformers.trainer"]),
        ("lightning", "lightning.py", ["lightning.pytorch.loops.fit_loop", "lightning.pytorch.trainer.trainer"]),
        ("accelerate", "accelerate.py", ["accelerate.state", "accelerate.data_loader"]),
        ("accelerate", "loading/loader.py", ["accelerate.accelerator", "accelerate.checkpointing"]),
    ],
)
def test_all_are_listed(framework: str, file: str, parts: list[str]) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    text = "".join(inspect.getsource(importlib.import_module(part)) for part in parts)
    theirs = {name for name in used(SOURCE / file) if f".{name}" in text or f"def {name}(" in text}
    listed = {each.name for each in PRIVATE if each.framework == framework}
    assert theirs and theirs <= listed, f"add {sorted(theirs - listed)} to the table, with what is expected of them"
