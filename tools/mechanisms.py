"""Trains every choice for 200 steps on real data and writes docs/mechanisms.md, one line for each.

    python tools/mechanisms.py [--outputs outputs] [FAMILY ...]
    python tools/mechanisms.py --new            # trains only the choices that the page lacks; all other lines stay
    python tools/mechanisms.py --new --not-run  # also those of which the page says that they were not run

The choices are those of `blockyard list`. A choice is trained in the first experiment in which `check` accepts it;
OVERRIDES holds what some need beside it. Finished runs are not repeated, so the command continues where it was
stopped. The page is written from the finished runs; a choice without one is listed as not run.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.runs.not_started import AlreadyDoneError, FailedBeforeError
from blockyard.runs.start import create_run

FAMILIES = (
    "position",
    "token_mixer",
    "channel_mixer",
    "norm",
    "block",
    "residual",
    "model",
    "head",
    "tokenizer",
    "data",
    "objective",
    "preset",
)
# One size and one length for all, so that the results of a family can be compared.
STEPS = 200
SHORT = (
    *("trainer=cpu", "trainer.precision=32", "logger=none", "callbacks=default"),
    *("trainer.max_epochs=null", f"trainer.max_steps={STEPS}", f"trainer.eval_every={STEPS}"),
)
# Tried first: the two small ones that nearly everything fits; then all others, in order of their names.
FIRST = ("vit_digits", "gpt_code_small")
# What a choice needs beside it, where no experiment has it.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "block=single": ("token_mixer=gated_attention_unit", "channel_mixer=none"),
    "head=class_token": ("model.prefix.class_token=true",),
    "data=listops": ("tokenizer=symbols",),
    "data=parity": ("tokenizer=symbols",),
    "data=digit_series": ("tokenizer=series_patch",),
    "data=in_context_regression": (
        *("tokenizer=series_patch", "tokenizer.size=1", "tokenizer.stride=1", "tokenizer.pad_end=false"),
        *("tokenizer.normalise=none", "head=last", "objective=regress"),
    ),
    "tokenizer=series_channel": ("position=none",),
    "tokenizer=trend_season": ("position=none",),
    "tokenizer=columns": ("data=breast_cancer", "position=none"),
    "data=breast_cancer": ("tokenizer=columns", "position=none"),
    "tokenizer=log_mel": ("data=key_tones", "position=rope"),
    "tokenizer=waveform": ("data=key_tones", "position=rope"),
    "data=key_tones": ("tokenizer=log_mel", "position=rope"),
    "token_mixer=graph_conv": ("position=none", "head=mean_pool", "model.prefix.class_token=false"),
}
# A preset leaves only the data open; an experiment would replace its choices.
PRESET_DATA = (
    *((), ("data=code",), ("data=translation",), ("data=digits_views",), ("data=co2",), ("data=atlas",)),
    *(("data=dial_tones",), ("data=canvas_captions",), ("data=canvas_questions",)),
)
_HEADER = ("| choice | overrides | parameters | training FLOPs per sample | step, ms |", "|---|---|---|---|---|")
TARGET = Path(__file__).resolve().parents[1] / "docs" / "mechanisms.md"


@dataclass(frozen=True)
class Row:
    """One choice, the overrides that train it, and the summary of its run; None where it was not run."""

    choice: catalog.Choice
    overrides: tuple[str, ...]
    summary: dict[str, Any] | None


def experiments_without_files() -> list[str]:
    """Experiments that need no data from elsewhere."""
    others = sorted(name for name in catalog.choices("experiment") if name not in FIRST)
    return [name for name in (*FIRST, *others) if not check(compose([f"experiment={name}", *SHORT]))]


def overrides_for(choice: catalog.Choice, experiments: list[str]) -> tuple[str, ...] | None:
    """The overrides that train a choice, with the first experiment that accepts it; None where none does."""
    override = f"{choice.family}={choice.name}"
    beside = OVERRIDES.get(override, ())
    # Last without an experiment: the options it sets for its own tokenizer would not fit another.
    bases = PRESET_DATA if choice.family == "preset" else (*((f"experiment={name}",) for name in experiments), ())
    for base in bases:
        overrides = (*base, *beside, override)
        if not check(compose([*overrides, *SHORT])):
            return overrides
    return None


def train_once(overrides: tuple[str, ...], outputs: Path) -> dict[str, Any] | None:
    """The summary of the run with these overrides, trained first if necessary; None where it fails."""
    from blockyard.engine.run import train

    command = [*overrides, *SHORT, f"outputs={outputs}"]
    composed = compose(command)
    try:
        with create_run(composed.config, command=["train", *command], choices=composed.choices) as folder:
            return folder.summary() if train(folder) == 0 else None
    except AlreadyDoneError as done:
        return done.folder.summary()
    except FailedBeforeError as error:
        sys.stderr.write(f"{error}\n")
        return None


def trained(families: tuple[str, ...], outputs: Path) -> Iterator[Row]:
    """Every choice of these families."""
    experiments = experiments_without_files()
    for family in families:
        for choice in catalog.choices(family).values():
            overrides = overrides_for(choice, experiments)
            if overrides is None:
                yield Row(choice, (), None)
                continue
            yield Row(choice, overrides, train_once(overrides, outputs))
            sys.stderr.write(f"{family}={choice.name}\n")


def page_with_new(text: str, outputs: Path, *, not_run: bool) -> str:
    """The page with lines for choices that it lacks; with `not_run` also for those that were not run."""
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    lines: dict[str, dict[str, str]] = {}
    for part in parts:
        family, _, table = part.partition("\n")
        lines[family] = {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", table, re.MULTILINE)}
    experiments: list[str] | None = None
    for family in FAMILIES:
        known = lines.setdefault(family, {})
        for choice in catalog.choices(family).values():
            if choice.name in known and not (not_run and "| not run |" in known[choice.name]):
                continue
            experiments = experiments_without_files() if experiments is None else experiments
            overrides = overrides_for(choice, experiments)
            summary = None if overrides is None else train_once(overrides, outputs)
            known[choice.name] = _line(Row(choice, overrides or (), summary))
            sys.stderr.write(f"{family}={choice.name}\n")
    kept = {family: [lines[family][name] for name in catalog.choices(family)] for family in FAMILIES}
    tables = [[f"## {family}", "", *_HEADER, *rows, ""] for family, rows in kept.items()]
    return head + "\n".join(line for table in tables for line in table)


def markdown(rows: list[Row], when: str) -> str:
    """The page."""
    lines = [
        "# What every choice costs",
        "",
        "Each line was a run of 200 steps: it trains, and costs this. Which choice is best takes seeds and a "
        "[sweep](sweeps.md); [Verdicts](verdicts.md) has the answers so far.",
        "",
        f"Written by `python tools/mechanisms.py` on {when}: `blockyard train` with the overrides shown and "
        f"`{' '.join(SHORT)}`, with the experiments as they were on that day. Step times depend on the load of the "
        f"machine, here {_loads(rows)} on 2 cores; parameters and FLOPs do not.",
        "",
        "What each choice is: [Components](components/index.md).",
    ]
    for family in dict.fromkeys(row.choice.family for row in rows):
        lines += ["", f"## {family}", "", *_HEADER]
        lines += [_line(row) for row in rows if row.choice.family == family]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    if row.summary is None:
        overrides = f"`{' '.join(row.overrides)}`" if row.overrides else "needs data or options of your own"
        return f"| `{row.choice.name}` | {overrides} | not run | | |"
    parameters, step = row.summary["parameters"]["trainable"], row.summary["step_seconds"] * 1e3
    flops = row.summary["flops_per_sample"]["training"]
    values = f"{parameters:,} | {flops:.3g} | {step:.1f}"
    return f"| `{row.choice.name}` | `{' '.join(row.overrides)}` | {values} |"


def _loads(rows: list[Row]) -> str:
    """The lowest and the highest load that the runs recorded."""
    loads = [row.summary["load"] for row in rows if row.summary and row.summary.get("load") is not None]
    return f"{min(loads):.1f} to {max(loads):.1f}" if loads else "unknown"


def main() -> None:
    """Train what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; default all")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/mechanisms"))
    parser.add_argument("--new", action="store_true", help="train only the choices that the page lacks")
    parser.add_argument("--not-run", action="store_true", help="with --new: and those that it says were not run")
    args = parser.parse_args()
    if (args.not_run and not args.new) or (args.new and args.families):
        parser.error("--not-run goes with --new, and --new with no family")
    logging.getLogger("blockyard").setLevel(logging.WARNING)
    if args.new:
        page = page_with_new(TARGET.read_text(encoding="utf-8"), args.outputs, not_run=args.not_run)
        TARGET.write_text(page, encoding="utf-8")
        return
    families = tuple(args.families) or FAMILIES
    page = markdown(list(trained(families, args.outputs)), datetime.date.today().isoformat())
    if families == FAMILIES:
        TARGET.write_text(page, encoding="utf-8")
    else:
        sys.stdout.write(page)


if __name__ == "__main__":
    main()
