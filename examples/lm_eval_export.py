"""An exported decoder under lm-eval, with tasks of local files. `HF_HUB_OFFLINE=1 python examples/lm_eval_export.py`

Needs `pip install 'lm-eval[hf]'`, and no network. The tasks are in examples/lm_eval_task/: bits per byte of held-out
code, which blockyard's own model computes here a second time, and which of two continuations is the real one.
"""

import json
import math
import sys
from pathlib import Path

import lm_eval
import torch
from lm_eval.tasks import TaskManager

import blockyard
from blockyard.cli import main as command
from blockyard.runs.load import Loaded

SMALL = ("data=code", "data.context=64", "model.dim=32", "model.depth=2", "trainer.max_steps=40", "logger=none")
TASKS = Path(__file__).parent / "lm_eval_task"
FIRST = 10  # the token id that lm-eval puts in front of a text: a line break, as the decoder has no start token


def main() -> None:
    """Train, export, evaluate, compare."""
    run = blockyard.train("preset=gpt2", "tokenizer=byte", *SMALL, "name=export", *sys.argv[1:])
    assert command(["export", f"run={run.path}", "to=exported", "format=hf"]) == 0

    loaded = blockyard.load(run)
    ids = loaded.components.load().test.batch(torch.arange(0, 640, 20), None).inputs  # (32, 64)
    texts = [loaded.tokenizer.decode(row[:56]) for row in ids.tolist()]  # room for FIRST, and for bytes cut in two
    halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts]
    choices = [
        {"context": start, "choices": [end, halves[n - 1][1]][:: 1 - 2 * (n % 2)], "gold": n % 2}
        for n, (start, end) in enumerate(halves)
    ]
    write("held_out_code.json", [{"text": text} for text in texts])
    write("next_half.json", choices)

    results = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained=exported,prefix_token_id={FIRST}",
        tasks=["held_out_code", "next_half"],
        task_manager=TaskManager(include_path=str(TASKS)),
        device="cpu",
        batch_size=8,
        bootstrap_iters=0,
    )["results"]
    print("accuracy of lm-eval", results["next_half"]["acc,none"])
    evaluated, expected = results["held_out_code"]["bits_per_byte,none"], bits_per_byte(loaded, texts)
    assert math.isclose(evaluated, expected, rel_tol=1e-4), (evaluated, expected)
    print(f"bits per byte {evaluated:.4f} by lm-eval, {expected:.4f} by blockyard")


def write(name: str, samples: list[dict]) -> None:
    """Write samples where the task's YAML looks for them, in the working folder."""
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in samples), encoding="utf-8")


@torch.no_grad()
def bits_per_byte(loaded: Loaded, texts: list[str]) -> float:
    """Return the mean over all bytes of texts, each with FIRST in front."""
    bits, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([FIRST, *loaded.tokenizer.encode(text)])
        logits = loaded.model(ids[None, :-1])[0]
        bits += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum").item() / math.log(2)
        count += len(text.encode())
    return bits / count


if __name__ == "__main__":
    main()
