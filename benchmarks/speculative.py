"""Speculative decoding against plain decoding of the same model: passes, acceptance and speed.

A decoder of 8 blocks and one of a single block are trained for moments on the embedded Python source. Then both ways
write the same texts, alternating prompt by prompt in one process, greedily; the ratio is the median over prompts of CPU
seconds, plain over speculative. The texts must be equal.

    python benchmarks/speculative.py [--steps 150] [--tokens 80]

Needs blockyard and nothing else. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPTS = ["def ", "import ", "class ", "    return ", "for ", "if not ", "    def __init__(self", "try:\n"]
BASE = ("trainer=cpu", "logger=none", "callbacks=quiet", "trainer.precision=32", "trainer.limit_val=1")
LONG = ("experiment=gpt_code", "data.batch_size=8", "trainer.limit_test=1")
SIZES = {"big": ("model.depth=8", "optimizer.lr=1e-3"), "small": ("model.depth=1", "model.dim=64")}


def trained(outputs: Path, name: str, steps: int) -> Any:
    """A run, trained and loaded."""
    import blockyard
    from blockyard.config.compose import compose
    from blockyard.engine.run import train
    from blockyard.runs.start import create_run

    more = (f"trainer.max_steps={steps}", f"trainer.eval_every={steps}", f"outputs={outputs}", f"name={name}")
    composed = compose([*LONG, *BASE, *SIZES[name], *more])
    assert not composed.issues, composed.issues
    with create_run(composed.config, command=["benchmark"], choices=composed.choices) as folder:
        assert train(folder) == 0
    return blockyard.load(folder.path)


def write(big: Any, prompt: str, tokens: int, **settings: Any) -> tuple[str, Any, float]:
    """The text after a prompt, its statistics and the CPU seconds that it took."""
    from blockyard.generate.api import generate

    start = time.process_time()
    made = generate(big, prompt, max_tokens=tokens, temperature=0, **settings)
    text = "".join(made)
    return text, made.stats, time.process_time() - start


def main() -> None:
    """Train, write, and print the table."""
    from blockyard.generate.speculative import expected_tokens

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="of training of the larger decoder")
    parser.add_argument("--tokens", type=int, default=80)
    chosen = parser.parse_args()
    lines = ["| draft | proposed | passes for 100 tokens | acceptance | tokens a pass | expected | speed |"]
    lines.append("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        big = trained(Path(folder), "big", chosen.steps)
        small = trained(Path(folder), "small", 4 * chosen.steps)
        for draft, name in ((small, "1 block"), ("ngram", "ngram")):
            for count in (2, 4, 6):
                ratios, made = [], []
                for prompt in PROMPTS:
                    text, _, plain = write(big, prompt, chosen.tokens)
                    same, stats, seconds = write(big, prompt, chosen.tokens, draft=draft, draft_tokens=count)
                    assert same == text, (prompt, text, same)
                    ratios.append(plain / seconds)
                    made.append(stats)
                rounds, tested = sum(each.rounds for each in made), sum(each.tested for each in made)
                accepted, tokens = sum(each.accepted for each in made), sum(each.tokens for each in made)
                acceptance, proposals = accepted / max(1, tested), [n for each in made for n in each.proposals]
                expected = statistics.mean(expected_tokens(acceptance, n) for n in proposals)
                lines.append(
                    f"| {name} | {count} | {100 * rounds / tokens:.0f} | {acceptance:.2f} | "
                    f"{tokens / rounds:.2f} | {expected:.2f} | {statistics.median(ratios):.2f} |"
                )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
