"""docs/mechanisms.md: every choice of the yard, trained for a moment on real data, one line each.

    python docs/mechanisms.py [--outputs outputs] [FAMILY ...]

The choices are those of `blockyard list`; none is named here but where it cannot stand in any experiment
without a second word. A choice is put into the first experiment in which `check` accepts it. Runs that are
done are not repeated, so that the command goes on where it was stopped. The file is written anew each time,
from the runs that are there; a choice without one is listed as such.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.config import catalog
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.runs.folder import AlreadyDone, FailedBefore, RunFolder

FAMILIES = (
    "position",
    "token_mixer",
    "channel_mixer",
    "norm",
    "block",
    "model",
    "head",
    "tokenizer",
    "data",
    "objective",
    "preset",
)
# One size and one length for all, so that the figures of a family can be set side by side.
STEPS = 200
SHORT = (
    *("trainer=cpu", "trainer.precision=32", "logger=none", "callbacks=default"),
    *("trainer.max_epochs=null", f"trainer.max_steps={STEPS}", f"trainer.eval_every={STEPS}"),
)
# Tried first: the two small ones that nearly everything fits; then all others, in order of their names.
FIRST = ("vit_digits", "gpt_code_small")
# What a choice needs beside it, where no experiment has it.
BESIDE: dict[str, tuple[str, ...]] = {
    "block=single": ("token_mixer=gated_attention_unit", "channel_mixer=none"),
    "head=class_token": ("model.prefix.class_token=true",),
    "data=listops": ("tokenizer=symbols",),
    "data=parity": ("tokenizer=symbols",),
}
# A preset chooses all but the data, which an experiment would choose the rest with.
PRESET_DATA = ((), ("data=code",), ("data=translation",), ("data=digits_views",))
TARGET = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class Row:
    """One choice, the words that train it, and what came of it; `summary` None where nothing did."""

    choice: catalog.Choice
    words: tuple[str, ...]
    summary: dict[str, Any] | None


def bases() -> list[str]:
    """Experiments that need no data from elsewhere."""
    others = sorted(name for name in catalog.choices("experiment") if name not in FIRST)
    return [name for name in (*FIRST, *others) if not check(compose([f"experiment={name}", *SHORT]))]


def words_for(choice: catalog.Choice, experiments: list[str]) -> tuple[str, ...] | None:
    """The command that trains a choice: the first experiment that takes it; None where none does."""
    word = f"{choice.family}={choice.name}"
    beside = BESIDE.get(word, ())
    # Last without an experiment: what one says of the tokenizer it has suits no other.
    bases = PRESET_DATA if choice.family == "preset" else (*((f"experiment={name}",) for name in experiments), ())
    for base in bases:
        words = (*base, *beside, word)
        if not check(compose([*words, *SHORT])):
            return words
    return None


def train_once(words: tuple[str, ...], outputs: Path) -> dict[str, Any] | None:
    """The summary of the run of these words, which is made where it is not there; None where it fails."""
    from blockyard.engine.run import train

    command = [*words, *SHORT, f"outputs={outputs}"]
    composed = compose(command)
    try:
        with RunFolder.create(composed.config, command=["train", *command], choices=composed.choices) as folder:
            if train(folder) != 0:
                return None
            return folder.summary()
    except AlreadyDone as done:
        return done.folder.summary()
    except FailedBefore as error:
        sys.stderr.write(f"{error}\n")
        return None


def rows(families: tuple[str, ...], outputs: Path) -> Iterator[Row]:
    """Every choice of these families."""
    experiments = bases()
    for family in families:
        for choice in catalog.choices(family).values():
            words = words_for(choice, experiments)
            if words is None:
                yield Row(choice, (), None)
                continue
            yield Row(choice, words, train_once(words, outputs))
            sys.stderr.write(f"{family}={choice.name}\n")


def markdown(found: list[Row]) -> str:
    """The page."""
    lines = [
        "# Every mechanism, trained for a moment",
        "",
        "Made by `python docs/mechanisms.py`. Each line is one run of seed 0: "
        f"`blockyard train` with the words shown and `{' '.join(SHORT)}`.",
        f"{STEPS} updates of a small model say that a mechanism learns, not which one is best: that takes seeds and a "
        "sweep. Step times hang on what else the machine does: set them side by side only where it did nothing else; "
        f"this page was made at loads of {_loads(found)} on 2 cores. Parameters and FLOPs hang on nothing.",
    ]
    for family in dict.fromkeys(row.choice.family for row in found):
        lines += ["", f"## {family}", ""]
        lines += ["| choice | what it is | words | result | parameters | FLOPs a sample | step, ms |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [_line(row) for row in found if row.choice.family == family]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    what = row.choice.summary.rstrip(".").replace("|", "\\|")
    if row.summary is None:
        return f"| `{row.choice.name}` | {what} | {_words(row)} | not run | | | |"
    metric, value = _headline(row.summary)
    parameters, step = row.summary["parameters"]["trainable"], row.summary["step_seconds"] * 1e3
    flops = row.summary["flops_per_sample"]["training"]
    figures = f"{metric} {value:.3f} | {parameters:,} | {flops:.3g} | {step:.1f}"
    return f"| `{row.choice.name}` | {what} | {_words(row)} | {figures} |"


def _loads(found: list[Row]) -> str:
    """The least and the most that the machine had to do, as the runs recorded it."""
    loads = [row.summary["load"] for row in found if row.summary and row.summary.get("load") is not None]
    return f"{min(loads):.1f} to {max(loads):.1f}" if loads else "unknown size"


def _words(row: Row) -> str:
    return f"`{' '.join(row.words)}`" if row.words else "needs data or options of your own"


def _headline(summary: dict[str, Any]) -> tuple[str, float]:
    """Bits per byte of a text, else the metric that chooses checkpoints."""
    metrics = summary["metrics"]
    name = "test/bits_per_byte" if "test/bits_per_byte" in metrics else f"test/{summary['monitor'][0]}"
    return name, metrics[name]


def main() -> None:
    """Trains what is missing and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; all where none")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/mechanisms"))
    given = parser.parse_args()
    logging.getLogger("blockyard").setLevel(logging.WARNING)
    families = tuple(given.families) or FAMILIES
    found = list(rows(families, given.outputs))
    if families == FAMILIES:
        TARGET.write_text(markdown(found), encoding="utf-8")
    else:
        sys.stdout.write(markdown(found))


if __name__ == "__main__":
    main()
