"""`GradientNorms` on models as Transformers and PEFT write them, against one backward pass per example."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # before the imports

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import avare.torch as avt

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
N, LENGTH, WORDS = 3, 4, 7


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=8, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def llama(kind: str = "Llama") -> Any:
    sizes = {"vocab_size": WORDS, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 8}
    config = getattr(transformers, f"{kind}Config")(**sizes, **heads, pad_token_id=0)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def batch() -> dict[str, Tensor]:
    ids = torch.randint(WORDS, (N, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "position_ids": torch.arange(LENGTH).expand(N, LENGTH)}


def losses(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    logits = model(**inputs, use_cache=False).logits
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["input_ids"][:, 1:].flatten(), reduction="none")
    return each.view(len(logits), -1).mean(dim=1)


def one_by_one(model: Any, inputs: dict[str, Tensor], excluded: set[Any]) -> Tensor:
    trained = [p for p in model.parameters() if p.requires_grad and p not in excluded]
    found = []
    for j in range(N):
        loss = losses(model, {key: value[j : j + 1] for key, value in inputs.items()}).sum()
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        found.append(torch.sqrt(sum(g.double().square().sum() for g in gradients if g is not None)))
    return torch.stack(found)


def in_one_pass(model: Any, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    weight = torch.tensor([0.5, 2.0, 1.2])
    with avt.GradientNorms(model, **options) as norms:
        (weight * losses(model, inputs)).mean().backward()
    return norms(weight)


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Qwen3", "Mistral"])
def test_language_models(kind: str) -> None:
    torch.manual_seed(0)
    model = gpt2() if kind == "GPT2" else llama(kind)
    for parameter in model.parameters():  # factors of normalisations start at 1, biases at 0
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    found = in_one_pass(model, batch())
    torch.testing.assert_close(found.double(), one_by_one(model, batch(), set()), rtol=2e-4, atol=1e-6)


def test_positions_that_examples_share_are_refused_by_name_and_can_be_left_out() -> None:
    torch.manual_seed(0)
    model, inputs = gpt2(), {"input_ids": batch()["input_ids"]}  # GPT-2 makes positions of shape (1, time) itself
    with pytest.raises(ValueError, match=r"transformer.wpe \(Embedding\).*expand\(n, T\), or exclude them"):
        in_one_pass(model, inputs)
    table = model.transformer.wpe
    found = in_one_pass(model, inputs, exclude=[table])
    torch.testing.assert_close(found.double(), one_by_one(model, inputs, {table.weight}), rtol=2e-4, atol=1e-6)


def test_a_layer_without_a_rule_is_refused_by_name_and_can_be_run_again() -> None:
    torch.manual_seed(0)
    model = llama("Gemma")  # its normalisation multiplies by 1 + weight
    with pytest.raises(ValueError, match=r"model.layers.0.input_layernorm \(GemmaRMSNorm\).*fallback='vmap'"):
        avt.GradientNorms(model)
    found = in_one_pass(model, batch(), fallback="vmap")
    torch.testing.assert_close(found.double(), one_by_one(model, batch(), set()), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_adapters_of_peft(make: Any) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    targets = ["c_attn"] if make is gpt2 else ["q_proj", "down_proj"]
    options = {"fan_in_fan_out": True} if make is gpt2 else {}
    model = peft.get_peft_model(
        make(), peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM", lora_dropout=0.0, **options)
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # which starts at 0
            parameter.data.normal_()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all("lora" in name for name in trained)
    # Positions that examples share are no matter: their table is frozen.
    inputs = {"input_ids": batch()["input_ids"]}
    found = in_one_pass(model, inputs)
    torch.testing.assert_close(found.double(), one_by_one(model, inputs, set()), rtol=2e-4, atol=1e-6)
