"""Measure what the frameworks' classes cost, in processor seconds: `python benchmarks/frameworks.py`.

Four parts: a step of `ImportanceTrainer` without a pool against one of the plain Trainer; `output_norms` for the logits
of a language model, and losses and norms in one pass, against the forward and backward pass of the layer that makes
them, with the peak of memory; exact norms of all parameters, and of LoRA adapters alone; and loss against seconds and
tokens for the model of `examples/torch_language_model.py`. Rivals are measured in turns within one process.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # before the imports
sys.path.append(str(Path(__file__).parents[1] / "examples"))

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from matplotlib.figure import Figure
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import avare.torch as avt
from avare.plotting.charts import assign, drawing, line
from avare.torch.norms.cross_entropy import losses_and_norms
from avare.torch.transformers import ImportanceTrainer
from harness import RESULTS, duration, save, table, where
from log_axes import log_ticks
from torch_language_model import LENGTH, encode, make_texts, make_trainer

BATCH, TIME, VOCABULARY, WIDTH = 8, 512, 32_000, 512  # of the layer
RIVALS: dict[str, avt.Importance | None] = {
    "uniform": None,
    "importance, no pool": avt.Importance(pool=None),
    "importance": avt.Importance(pool="auto"),
}


class Clock(TrainerCallback):
    """Notes the processor seconds at each step, without those of evaluations."""

    def __init__(self, every: int = 0, measure: Callable[[Any], float] | None = None) -> None:
        self.every, self.measure = every, measure
        self.seconds: list[float] = []
        self.rows: list[tuple[int, float, float]] = []
        self._lost = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start."""
        self._began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Note the seconds, and now and then the loss."""
        now = time.process_time()
        self.seconds.append(now - self._began - self._lost)
        if self.measure is not None and state.global_step % self.every == 0:
            self.rows.append((state.global_step, self.seconds[-1], self.measure(more["model"])))
            self._lost += time.process_time() - now


def overhead(rounds: int, steps: int) -> dict[str, float]:
    """The median seconds of a step of the plain Trainer, and of `ImportanceTrainer` without a pool."""
    sizes = {"vocab_size": 512, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4)
    ids = torch.randint(512, (512, 64), generator=torch.Generator().manual_seed(0))
    dataset = [{"input_ids": row, "labels": row} for row in ids]
    seconds: dict[str, list[float]] = {"plain": [], "importance": []}
    for _ in range(rounds):
        for name in seconds:
            torch.manual_seed(0)
            clock = Clock()
            with tempfile.TemporaryDirectory() as folder:
                common: dict[str, Any] = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "seed": 0}
                args = TrainingArguments(
                    folder,
                    per_device_train_batch_size=8,
                    max_steps=steps,
                    save_strategy="no",
                    logging_steps=steps,
                    **common,
                )
                options = {"train_dataset": dataset, "callbacks": [clock]}
                if name == "plain":
                    Trainer(LlamaForCausalLM(config), args, **options).train()
                else:
                    ImportanceTrainer(
                        LlamaForCausalLM(config), args, importance=avt.Importance(pool=None), **options
                    ).train()
            seconds[name] += np.diff(clock.seconds)[5:].tolist()
    return {name: float(np.median(each)) for name, each in seconds.items()}


def head(rounds: int) -> dict[str, float]:
    """The median seconds of the last layer's forward and backward pass, of the norms of its logits, and of both."""
    layer, x, y = _layer()
    seconds: dict[str, list[float]] = {"layer": [], "norms": [], "one pass": []}
    for _ in range(rounds):
        began = time.process_time()
        logits = layer(x)
        F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1)).backward()
        seconds["layer"].append(time.process_time() - began)
        began = time.process_time()
        avt.output_norms(logits, y, class_dim=-1)
        seconds["norms"].append(time.process_time() - began)
        del logits
        began = time.process_time()
        losses_and_norms(layer(x), y)[0].sum().backward()
        seconds["one pass"].append(time.process_time() - began)
    return {name: float(np.median(each)) for name, each in seconds.items()}


def peaks() -> dict[str, float]:
    """The peak memory of that pass in bytes, without norms, with them, and in one pass, each in its own process."""
    context = multiprocessing.get_context("spawn")
    found = {}
    for name in ("layer", "with norms", "one pass"):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_peak, args=(send, name))
        process.start()
        found[name] = float(receive.recv())
        process.join()
    return found


def _peak(send: Any, name: str) -> None:
    torch.set_num_threads(1)
    layer, x, y = _layer()
    before = _highest()
    logits = layer(x)
    if name == "one pass":
        losses, _ = losses_and_norms(logits, y)
    else:
        losses = F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1), reduction="none")
    if name == "with norms":  # before the backward pass, as in most loops
        avt.output_norms(logits, y, class_dim=-1)
    losses.mean().backward()
    send.send(_highest() - before)


def _highest() -> int:
    """The highest resident memory of this process so far, in bytes, as Linux counts it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def _layer() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    return layer, torch.randn(BATCH, TIME, WIDTH, requires_grad=True), torch.randint(VOCABULARY, (BATCH, TIME))


def adapters(rounds: int) -> dict[str, dict[str, float]]:
    """The median seconds of a step without and with `GradientNorms`: of all parameters, and of LoRA's alone."""
    import peft

    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4)
    ids = torch.randint(512, (8, 64), generator=torch.Generator().manual_seed(0))
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    found = {}
    for name in ("all parameters", "LoRA"):
        seconds: dict[str, list[float]] = {"plain": [], "norms": []}
        torch.manual_seed(0)
        model = LlamaForCausalLM(config) if name != "LoRA" else peft.get_peft_model(LlamaForCausalLM(config), lora)
        norms = avt.GradientNorms(model)
        for _ in range(5 * rounds):
            for kind in seconds:
                began = time.process_time()
                if kind == "norms":
                    norms.attach()
                model(input_ids=ids, labels=ids).loss.backward()
                if kind == "norms":
                    norms()
                    norms.detach()
                model.zero_grad()
                seconds[kind].append(time.process_time() - began)
        found[name] = {kind: float(np.median(each)) for kind, each in seconds.items()}
    return found


def language_model(steps: int, seeds: int) -> dict[str, Any]:
    """Test losses against processor seconds and tokens, for each rival and seed."""
    test = {key: torch.stack([each[key] for each in encode(make_texts(400, 1))]) for key in ("input_ids", "labels")}

    def measure(model: Any) -> float:
        was = model.training
        with torch.no_grad():
            loss = float(model.eval()(**test).loss)
        model.train(was)
        return loss

    curves: dict[str, Any] = {name: [] for name in RIVALS}
    for seed in range(seeds):
        for name, importance in RIVALS.items():
            clock = Clock(max(steps // 12, 1), measure)
            with tempfile.TemporaryDirectory() as folder:
                trainer = make_trainer(importance, folder, None, max_steps=steps, seed=seed)
                trainer.add_callback(clock)
                trainer.train()
            loader = getattr(trainer, "importance_loader", None)
            gains = {} if loader is None else {"gain": loader.gain, "pool": loader.pool_ratio}
            curves[name].append({"rows": clock.rows, **gains})
    return {"steps": steps, "batch": 16, "length": LENGTH, "curves": curves}


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw loss against processor seconds and against tokens; lines are means over seeds."""
    curves = {name: np.mean([run["rows"] for run in runs], axis=0) for name, runs in result["curves"].items()}
    styles = assign(curves)
    with drawing():
        figure = Figure(figsize=(8.0, 3.0), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for place, (name, rows) in enumerate(curves.items()):
            tokens = rows[:, 0] * result["batch"] * result["length"] / 1e6
            for axis, x in zip(axes, (rows[:, 1], tokens), strict=True):
                line(axis, x, rows[:, 2], styles[name], place, len(curves)).set_label(name)
        axes[0].set(xlabel="Processor seconds", ylabel="Test loss per token", yscale="log")
        axes[1].set(xlabel="Million tokens trained on")
        log_ticks(axes[0].yaxis)
        axes[1].legend()
        figure.savefig(path, dpi=160)


def report(result: dict[str, Any]) -> str:
    """The tables of a result, of the parts that it has."""
    rows = []
    if "overhead" in result:
        plain, ours = result["overhead"]["plain"], result["overhead"]["importance"]
        what = "step of the Trainer, and of ImportanceTrainer without a pool"
        rows.append([what, duration(plain), duration(ours), f"{100 * (ours / plain - 1):+.1f} %"])
    if "head" in result:
        plain, ours = result["head"]["layer"], result["head"]["norms"]
        what = f"forward and backward of the last layer, and output_norms of its ({BATCH}, {TIME}, {VOCABULARY}) logits"
        rows.append([what, duration(plain), duration(ours), f"{100 * ours / plain:+.1f} %"])
        ours = result["head"]["one pass"]
        what = "the same layer, and with losses and norms in one pass"
        rows.append([what, duration(plain), duration(ours), f"{100 * (ours / plain - 1):+.1f} %"])
    if "peaks" in result:
        plain = result["peaks"]["layer"]
        for name, what in (("with norms", "output_norms"), ("one pass", "losses and norms in one pass")):
            ours = result["peaks"][name]
            sizes = [f"{size / 2**20:.0f} MB" for size in (plain, ours)]
            rows.append([f"peak memory of that layer, and with {what}", *sizes, f"{100 * (ours / plain - 1):+.1f} %"])
    for name, step in result.get("adapters", {}).items():
        more = f"{100 * (step['norms'] / step['plain'] - 1):+.1f} %"
        rows.append([f"forward and backward, and with GradientNorms: {name}", *map(duration, step.values()), more])
    loads = ", ".join(f"{name} {load:.1f}" for name, load in result["loads"].items())
    text = (
        "# Frameworks\n\nMedian processor seconds, measured in turns on one thread. Load average of the machine before "
        f"each part: {loads}.\n\n{table(['', 'plain', 'with avare', 'more'], rows)}"
    )
    return text + (_report_of_language_model(result["language_model"]) if "language_model" in result else "")


def _report_of_language_model(result: dict[str, Any]) -> str:
    rows = []
    for name, runs in result["curves"].items():
        last = np.mean([run["rows"][-1] for run in runs], axis=0)
        measured = [f"{np.mean([run[key] for run in runs]):.2f}" if key in runs[0] else "" for key in ("gain", "pool")]
        rows.append([name, f"{last[2]:.4f}", f"{last[1]:.1f} s", *measured])
    seeds = len(result["curves"]["uniform"])
    return (
        f"\n\nA causal language model after {result['steps']} steps of {result['batch']} documents, means over seeds: "
        f"{seeds}. Nine of ten documents are one of two sentences, the others sums.\n\n"
        f"{table(['batches', 'test loss', 'processor time', 'gain', 'pool at the end'], rows)}\n\n"
        "![loss against seconds and tokens](frameworks.png)"
    )


def main() -> None:
    """Measure, and save JSON, table and figure."""
    parts: dict[str, Callable[[Any], Any]] = {
        "head": lambda given: head(max(given.rounds - 2, 1)),
        "peaks": lambda given: peaks(),
        "overhead": lambda given: overhead(3 * given.rounds, 40),
        "adapters": lambda given: adapters(given.rounds),
        "language_model": lambda given: language_model(given.steps, given.seeds),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="the others are kept as stored")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    stored = RESULTS / "frameworks.json"
    result: dict[str, Any] = {"loads": {}}
    if stored.exists() and set(arguments.parts) < set(parts):
        result = json.loads(stored.read_text())
    for name in arguments.parts:
        result["loads"][name] = os.getloadavg()[0]
        result[name] = parts[name](arguments)
        print(name, json.dumps(result[name])[:300], flush=True)
        result |= {"transformers": transformers.__version__, "where": where()}
        if name == "language_model":
            plot(result[name], RESULTS / "frameworks.png")
        save("frameworks", result, report(result))
    print((RESULTS / "frameworks.md").read_text())


if __name__ == "__main__":
    main()
