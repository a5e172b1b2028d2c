"""The Trainer of Transformers and TRL's: the law of the loss, resuming, accumulation, and what is refused."""

import os

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # before the imports

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Sampler

import avare.torch as avt
from framework_page import run_snippet

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from avare.torch.transformers import ImportanceMixin, ImportanceTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
N, M, LENGTH, WORDS = 12, 2, 5, 11


def language_model(**more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **more,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def texts(n: int = N, *, padded: bool = False, seed: int = 1) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for j in range(n):
        ids = torch.randint(WORDS, (LENGTH,), generator=generator)
        labels = ids.clone()
        if padded:
            labels[2 + j % (LENGTH - 1) :] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def arguments(folder: Path, **options: Any) -> Any:
    common = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
    common |= {"per_device_train_batch_size": M, "num_train_epochs": 1, "seed": 3, "output_dir": str(folder)}
    return transformers.TrainingArguments(**{**common, **options})


def trainer_of(folder: Path, dataset: Any, importance: avt.Importance | None = None, **options: Any) -> Any:
    return ImportanceTrainer(
        language_model(), arguments(folder, **options), train_dataset=dataset, importance=importance
    )


def losses_of(trainer: Any) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


class Order(Sampler[int]):
    """Indices in a given order, for the plain Trainer."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def __iter__(self) -> Any:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class Recording(ImportanceTrainer):
    """Notes what is drawn."""

    def get_batch_samples(self, *args: Any) -> Any:
        samples, count = super().get_batch_samples(*args)
        self.__dict__.setdefault("drawn", []).extend(each.get("avare_index") for each in samples)
        self.__dict__.setdefault("texts", []).extend(each["input_ids"] for each in samples)
        return samples, count


@pytest.mark.parametrize("accumulated", [1, 3])
def test_with_uniform_draws_and_no_pool_the_losses_are_those_of_the_plain_trainer(
    accumulated: int, tmp_path: Path
) -> None:
    dataset = texts(padded=True)
    options = {"gradient_accumulation_steps": accumulated, "num_train_epochs": 2}
    ours = Recording(
        language_model(),
        arguments(tmp_path, **options),
        train_dataset=dataset,
        importance=avt.Importance(sampler="Uniform", pool=None),
    )
    ours.train()
    rows = torch.stack([each["input_ids"] for each in dataset])
    order = [int((rows == row).all(dim=1).nonzero()[0]) for batch in ours.texts for row in batch]
    orders = iter([order[: len(order) // 2], order[len(order) // 2 :]])

    class Plain(transformers.Trainer):  # type: ignore[name-defined]
        def _get_train_sampler(self, *_: Any) -> Order:
            return Order([])

        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            loader.batch_sampler.sampler.__class__.__iter__ = lambda _: iter(next(orders))
            loader.batch_sampler.sampler.__class__.__len__ = lambda _: N
            return loader

    plain = Plain(language_model(), arguments(tmp_path, **options), train_dataset=dataset)
    plain.train()
    assert losses_of(ours) == losses_of(plain)
    for found, wanted in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(found, wanted)
    assert ours.importance_loader is not None


def gradients(trainer: Any, batches: list[dict[str, Any]], count: Any) -> tuple[float, Tensor]:
    """The loss and the gradient of one accumulated batch, by the Trainer's own step."""
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = len(batches)
    loss = sum(float(trainer.training_step(trainer.model, dict(batch), count)) for batch in batches)
    return loss, torch.cat([p.grad.flatten() for p in trainer.model.parameters()]).clone()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_in_expectation_loss_and_gradient_are_those_of_all_examples(accumulated: int, tmp_path: Path) -> None:
    """Enumerate all draws with replacement from three examples of one length, of probabilities p.

    CalibratedCells are sums of some dozen float32 gradients: 1e-5 is a hundred times their rounding.
    """
    dataset, p = texts(3), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    trainer = trainer_of(tmp_path, dataset, gradient_accumulation_steps=accumulated)
    plain = transformers.Trainer(language_model(), arguments(tmp_path), train_dataset=dataset)
    whole = {key: torch.stack([each[key] for each in dataset]) for key in dataset[0]}
    wanted_loss, wanted = gradients(plain, [whole], plain._get_num_items_in_batch([whole], torch.device("cpu")))

    class Loader:  # reports nothing
        importance_sampler = trainer.get_train_dataloader().importance_sampler

        def update(self, *_: Any, **__: Any) -> None: ...

    trainer.importance_loader = Loader()
    loss, gradient = 0.0, torch.zeros_like(wanted)
    for drawn in itertools.product(range(3), repeat=M * accumulated):
        triples = []
        for k in range(0, len(drawn), M):
            index = torch.tensor(drawn[k : k + M])
            batch = {key: value[index] for key, value in whole.items()}
            triples.append((batch, index, (1.0 / (3.0 * p[index])).float()))
        samples, count = trainer.get_batch_samples(iter(triples), accumulated, torch.device("cpu"))
        probability = float(p[list(drawn)].prod())
        found = gradients(trainer, samples, count)
        loss += probability * found[0]
        gradient += probability * found[1]
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("kind", "labels", "options"),
    [
        ("ForSequenceClassification", torch.tensor([0, 2, 1]), {}),
        ("ForSequenceClassification", torch.tensor([0.5, -2.0, 1.0]), {"num_labels": 1}),
        ("ForSequenceClassification", torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 0]]), {}),
        ("ForTokenClassification", torch.tensor([[0, 1, 2, -100], [1, -100, -100, -100], [2, 2, 0, 1]]), {}),
        ("ForMaskedLM", torch.tensor([[-100, 4, -100, 3], [1, -100, -100, 2], [-100, 2, 0, -100]]), {}),
    ],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_losses_of_examples_are_those_of_the_model(
    kind: str, labels: Tensor, options: dict[str, Any], smoothing: float, tmp_path: Path
) -> None:
    if smoothing and labels.is_floating_point():
        pytest.skip("the Trainer smooths class indices only")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, **{"num_labels": 3, **options},
    )  # fmt: skip
    model = getattr(transformers, f"Bert{kind}")(config).eval()
    ids = torch.randint(9, (3, 4), generator=torch.Generator().manual_seed(0))
    dataset = [{"input_ids": ids[j], "labels": labels[j]} for j in range(3)]
    trainer = ImportanceTrainer(model, arguments(tmp_path, label_smoothing_factor=smoothing), train_dataset=dataset)
    outputs = model(input_ids=ids, labels=labels)
    losses, counts = trainer.example_losses(outputs["logits"], labels)
    trainer._compare(outputs, labels, losses.sum() / counts.sum())  # raises an error if they differ
    norms = trainer.example_norms(outputs["logits"], labels)
    for j in range(3):
        logits = outputs["logits"].detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(trainer.example_losses(logits, labels)[0][j], logits)
        ratio = gradient.norm() / norms[j]
        assert (
            torch.isclose(ratio, torch.tensor(1.0 / labels[0].numel()), rtol=1e-4)
            if labels.is_floating_point()
            else (torch.isclose(ratio, torch.tensor(1.0), rtol=1e-4))
        )


@pytest.mark.parametrize("pool", [None, 2.0])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_batches_without_targets_leave_the_model_as_it_is(pool: float | None, accumulated: int, tmp_path: Path) -> None:
    """Labels of -100 only: no loss, no gradient, and norms of 0; the next batch is compared with the model's loss."""
    dataset = texts()
    for each in dataset:
        each["labels"] = torch.full_like(each["labels"], -100)
    options = {"gradient_accumulation_steps": accumulated, "weight_decay": 0.0}
    trainer = trainer_of(tmp_path, dataset, avt.Importance(pool=pool), **options)
    before = [each.tolist() for each in trainer.model.parameters()]
    trainer.train()
    assert losses_of(trainer) == [0.0] * (N // (M * accumulated))
    assert [each.tolist() for each in trainer.model.parameters()] == before
    assert not trainer._is_compared and trainer.importance_loader.measures()["waiting"] == 0


def test_a_few_examples_without_targets(tmp_path: Path) -> None:
    """In batches with and without targets, the loss is that of the formula with the examples that have some."""
    dataset = texts(2)
    dataset[1]["labels"] = torch.full_like(dataset[1]["labels"], -100)
    trainer = trainer_of(tmp_path, dataset)
    batch = {key: torch.stack([each[key] for each in dataset]) for key in dataset[0]}
    weight = torch.tensor([0.1, 1.9])  # D is 0.4 targets: below 1, and not rounded up
    loss, outputs, norms = trainer._weighted_loss(trainer.model, batch, weight, None)
    losses, counts = trainer.example_losses(outputs["logits"], batch["labels"])
    assert counts.tolist() == [LENGTH - 1, 0] and norms[1] == 0.0
    assert loss.item() == pytest.approx(0.1 * losses[0].item() / (0.1 * (LENGTH - 1)), rel=1e-5)


def test_learns_and_evaluates_as_the_plain_trainer_does(tmp_path: Path) -> None:
    dataset = texts(40, padded=True)
    trainer = trainer_of(tmp_path, dataset, avt.Importance(pool=None), num_train_epochs=3, learning_rate=0.02)
    trainer.train()
    assert trainer.importance_loader.gain != 1.0 and trainer.importance_loader.measures()["waiting"] == 0
    plain = transformers.Trainer(trainer.model, arguments(tmp_path), eval_dataset=dataset)
    assert trainer.evaluate(dataset)["eval_loss"] == plain.evaluate()["eval_loss"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("overridden", ["example_losses", "example_norms"])
def test_in_one_pass_losses_and_norms_are_those_of_the_methods(
    overridden: str, smoothing: float, tmp_path: Path
) -> None:
    """Within rounding of float32; a method that is overridden is called."""
    called = []

    def note(self: Any, *args: Any) -> Any:
        called.append(overridden)
        return getattr(ImportanceMixin, overridden)(self, *args)

    dataset, weight = texts(4, padded=True), torch.tensor([0.5, 2.0, 1.5, 0.2])
    batch = {key: torch.stack([each[key] for each in dataset]) for key in dataset[0]}
    found = []
    for kind in (ImportanceTrainer, type("Apart", (ImportanceTrainer,), {overridden: note})):
        trainer = kind(language_model(), arguments(tmp_path, label_smoothing_factor=smoothing), train_dataset=dataset)
        loss, _, norms = trainer._weighted_loss(trainer.model, batch, weight, None)
        loss.backward()
        found.append((loss, norms, *(p.grad for p in trainer.model.parameters())))
        assert called == ([] if kind is ImportanceTrainer else [overridden])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_mixed_precision(tmp_path: Path) -> None:
    """The loss of the plain Trainer if all weights are 1; gradients within the rounding of bfloat16, 2^-8."""
    dataset = texts(4, padded=True)
    batch = {key: torch.stack([each[key] for each in dataset]) for key in dataset[0]}
    ours = trainer_of(tmp_path, dataset, avt.Importance(pool=None), bf16=True, max_steps=4)
    plain = transformers.Trainer(language_model(), arguments(tmp_path, bf16=True), train_dataset=dataset)
    count = plain._get_num_items_in_batch([batch], torch.device("cpu"))
    loss, gradient = gradients(plain, [batch], count)
    triple = batch, torch.arange(4), torch.ones(4)
    ours.get_train_dataloader()
    ours.importance_loader.update = lambda *_, **__: None  # these were not drawn
    samples, count = ours.get_batch_samples(iter([triple]), 1, torch.device("cpu"))
    found, of_found = gradients(ours, samples, count)
    assert found == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(of_found, gradient, rtol=2**-8, atol=2**-8 * float(gradient.abs().max()))
    ours.train()
    assert ours.importance_loader.measures()["waiting"] == 0 and ours.importance_loader.gain > 0.0


def test_norms_that_are_not_finite_are_skipped(tmp_path: Path) -> None:
    class Overflowing(ImportanceTrainer):
        def _forward(self, *args: Any, **options: Any) -> Any:
            outputs = super()._forward(*args, **options)
            factors = torch.tensor([1.0, math.inf])[:, None, None]
            return {**outputs, "logits": outputs["logits"] * factors} if self._is_compared else outputs

    options = {"max_steps": 2, "max_grad_norm": 0.0, "learning_rate": 0.0}
    trainer = Overflowing(
        language_model(), arguments(tmp_path, **options), train_dataset=texts(), importance=avt.Importance(pool=None)
    )
    trainer.train()
    assert trainer.importance_loader is not None and trainer.importance_loader.measures()["waiting"] == 1


def test_the_example_takes_a_pretrained_model(tmp_path: Path) -> None:
    from torch_language_model import make_model, make_trainer

    path = str(tmp_path / "model")
    make_model()[0].save_pretrained(path)
    _tokenizer().save_pretrained(path)
    trainer = make_trainer(avt.Importance(pool=None), str(tmp_path), path, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    class Squares(ImportanceTrainer):
        def example_losses(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            return logits.square().mean(dim=(1, 2)), torch.ones(len(logits))

        def example_norms(self, logits: Tensor, labels: Tensor) -> Tensor:
            return logits.detach().flatten(1).norm(dim=1)

        def _compare(self, *_: Any) -> None: ...

    trainer = Squares(language_model(), arguments(tmp_path, max_steps=2), train_dataset=texts())
    trainer.train()
    assert losses_of(trainer)[0] < 0.1  # the cross-entropy is above 2


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(texts())


class NoLength:
    def __getitem__(self, index: int) -> Any:
        return texts()[index]


def test_refuses_what_it_cannot_do_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must have __getitem__ and __len__, as a map-style dataset"):
        trainer_of(tmp_path, Stream(), max_steps=2)
    with pytest.raises(TypeError, match="must have __getitem__ and __len__, as a map-style dataset"):
        trainer_of(tmp_path, NoLength(), max_steps=2)
    has_strategy = "train_sampling_strategy" in transformers.TrainingArguments.__dataclass_fields__
    grouped: dict[str, Any] = (
        {"train_sampling_strategy": "group_by_length"} if has_strategy else {"group_by_length": True}
    )
    with pytest.raises(ValueError, match=r"the sampling strategy is 'group_by_length': leave it out"):
        trainer_of(tmp_path, texts(), **grouped)
    with pytest.raises(ValueError, match="requires a train_dataset"):  # the Trainer's own words
        trainer_of(tmp_path, None).train()
    with pytest.raises(TypeError, match=r"importance is of type str: must be an avare.torch.Importance"):
        trainer_of(tmp_path, texts(), "auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"compute_loss_func returns one loss .*override example_losses"):
        ImportanceTrainer(
            language_model(), arguments(tmp_path), train_dataset=texts(), compute_loss_func=lambda *_, **__: None
        )
    with pytest.raises(TypeError, match="data_collator returns list: must return a mapping"):
        ImportanceTrainer(
            language_model(), arguments(tmp_path), train_dataset=texts(), data_collator=lambda items: items
        ).train()

    def flat(items: list[Any]) -> dict[str, Tensor]:
        return {key: torch.cat([each[key] for each in items])[None] for key in items[0]}

    with pytest.raises(
        ValueError, match="labels has 1 rows for 2 examples: the batch was flattened; set padding_free=False"
    ):
        ImportanceTrainer(
            language_model(),
            arguments(tmp_path),
            train_dataset=texts(),
            data_collator=flat,
            importance=avt.Importance(pool=None),
        ).train()

    class Other(ImportanceTrainer):
        def example_losses(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            losses, counts = super().example_losses(logits, labels)
            return losses + 1.0, counts

    with pytest.raises(ValueError, match=r"the model's loss is .*: it has other terms; override example_losses"):
        Other(
            language_model(), arguments(tmp_path), train_dataset=texts(), importance=avt.Importance(pool=None)
        ).train()
    trainer = trainer_of(tmp_path, texts())
    with pytest.raises(ValueError, match=r"labels has \(2, 3\): no loss is known for these"):
        trainer.example_norms(torch.zeros(2, 4, 5), torch.zeros(2, 3).long())
    with pytest.raises(ValueError, match="the batch has input_ids, and no labels"):
        trainer._forward(trainer.model, {"input_ids": None}, with_loss=False)


def test_the_page_runs() -> None:
    run_snippet("Transformers")


@pytest.mark.parametrize("packed", [False, True])
def test_the_trainer_of_trl(packed: bool, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")

    class ImportanceSFTTrainer(ImportanceMixin, trl.SFTTrainer):  # type: ignore[name-defined]
        pass

    texts = ["a b c d", "b b", "c a d a b", "d d d"] * 3
    common: dict[str, Any] = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 1}
    args = trl.SFTConfig(
        str(tmp_path), per_device_train_batch_size=2, max_steps=3, save_strategy="no", bf16=False, **common,
        **({"packing": True, "packing_strategy": "wrapped", "max_length": 4} if packed else {}),
    )  # fmt: skip
    trainer = ImportanceSFTTrainer(
        language_model(),
        args,
        train_dataset=datasets.Dataset.from_dict({"text": texts}),
        processing_class=_tokenizer(),
        importance=avt.Importance(pool=2.0),
    )
    trainer.train()
    assert len(losses_of(trainer)) == 3 and trainer.importance_loader is not None
    assert trainer.importance_loader.measures()["waiting"] < 12
    assert trainer.state.log_history[0]["importance/pool_ratio"] == 2.0
    assert trainer.evaluate(trainer.train_dataset)["eval_loss"] > 0.0


def _tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: place for place, word in enumerate("abcdepu")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="u"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="e", pad_token="p", unk_token="u")
