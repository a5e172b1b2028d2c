"""An `ImportanceTrainer` in a process that is killed at random moments while it saves, and resumed."""

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # before the import of transformers
SAVE_STEPS = 2
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["killed_trainer", "avare.torch.transformers"])  # a child then starts at once


def make(folder: Path, steps: int, kept: int | None = 2) -> Any:
    """A tiny language model with dropout, whose pools are scored with dropout too."""
    import torch
    import transformers

    import avare.torch as avt
    from avare.torch.transformers import ImportanceTrainer

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    ids = torch.randint(11, (30, 6), generator=torch.Generator().manual_seed(1))
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    args = transformers.TrainingArguments(
        str(folder), max_steps=steps, save_steps=SAVE_STEPS, save_total_limit=kept, use_cpu=True, report_to="none",
        disable_tqdm=True, logging_steps=1, per_device_train_batch_size=4, seed=3,
    )  # fmt: skip
    trainer = ImportanceTrainer(
        transformers.GPT2LMHeadModel(config),
        args,
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        importance=avt.Importance(pool=2.0),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def result_of(trainer: Any) -> dict[str, Any]:
    """What must not depend on interruptions: losses, draws and parameters."""
    return {
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "fingerprint": trainer.importance_loader.state_dict()["fingerprint"],
        "parameters": [each.tolist() for each in trainer.model.parameters()],
    }


def run(folder: Path, steps: int, send: Any) -> None:
    """Train from the last checkpoint, if there is one: send the number of each step, and the result."""
    import transformers

    class Reporting(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            send.send(state.global_step)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make(folder, steps)
        trainer.add_callback(Reporting())
        trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
        send.send(result_of(trainer))


def train(folder: Path, steps: int, delays: np.ndarray | None = None) -> dict[str, Any] | None:
    """Train in a process, and return the result; with delays, kill it after some steps and a part of the next.

    ``delays`` holds the number of steps, and the part. Returns None after a kill.
    """
    receive, send = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=run, args=(folder, steps, send), daemon=True)
    process.start()
    send.close()
    result, times = None, [time.monotonic()] * 2
    with contextlib.suppress(EOFError):
        while not isinstance(result, dict):
            result = receive.recv()
            times.append(time.monotonic())
            if delays is not None and len(times) > delays[0] + 3.0:
                time.sleep(delays[1] * (times[-1] - times[-2]))
                process.kill()
                delays = None  # the pipe ends
    process.join()
    if not isinstance(result, dict):
        assert process.exitcode == -signal.SIGKILL, f"a resumed training ended with code {process.exitcode}"
        return None
    return result


def kill_and_resume(folder: Path, generator: np.random.Generator, kills: int) -> int:
    """Kill a training at random moments, and assert that it resumes each time and ends as one without kills.

    Returns the number of kills: a run that ends before its kill is the last.
    """
    steps, count, result = 4 * kills, 0, None
    while result is None:
        delays = generator.uniform([0.0, 0.0], [6.0, 1.0]) if count < kills else None
        result = train(folder / "killed", steps, delays)
        count += result is None
    assert result == train(folder / "whole", steps), "a resumed training has another result"
    return count
