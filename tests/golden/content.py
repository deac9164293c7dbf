"""Golden content: facts about the product that must stay equal while its code is rewritten.

A function returns the content of one golden file from the code as it is now. `python -m tests.golden.write` writes the
files, `test_golden.py` compares them. A difference is either a fault, or a change that is meant: then the files are
written again in the commit that makes the change.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockyard.cli import HELP, main
from blockyard.commands import COMMANDS
from blockyard.commands._help import help_text
from blockyard.config import tree
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.schema import REQUIRED, options
from blockyard.config.untrusted.targets import locate
from blockyard.report.comparison import compare
from blockyard.report.page.document import render
from blockyard.runs.identity import identity, semantic
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.commands.bad_commands import BAD
from tests.report.report_runs import ARMS, grid, norms_sweep, sweep

COMMAND_LINES = Path(__file__).with_name("command_lines.txt")  # beside those of bad_commands.py
# A path, a time or a version in a record differs from machine to machine and says nothing about the product.
VOLATILE_FACTS = ("time", "command", "folder", "versions", "git", "host", "file", "config_dirs")


def plan_content(sweep_plan: SweepPlan) -> dict[str, Any]:
    """Return a plan without the facts of the machine, each config as the hash of its canonical form."""
    facts = {name: value for name, value in sweep_plan.facts.items() if name not in VOLATILE_FACTS}
    return {
        "question": sweep_plan.question,
        "arms": [{"name": arm.name, "overrides": arm.overrides, "levels": arm.levels} for arm in sweep_plan.arms],
        "variants": {key: digest(semantic(variant.config)) for key, variant in sweep_plan.variants.items()},
        "cells": [f"{cell.variant} s{cell.seed} {cell.run}" for cell in sweep_plan.cells],
        "refused": [{"arm": entry.arm, "setting": entry.setting} for entry in sweep_plan.refused],
        "facts": facts,
    }


def identities() -> dict[str, str]:
    """Return the identity of every experiment and preset, and the hash of the semantic part of every other choice.

    Recipes are left out, whose values are tuned; no run from before them has one.
    """
    result = {}
    for family in catalog.families():
        if family == "recipe":
            continue
        for name in catalog.choices(family):
            composed = compose([f"{family}={name}", "recipe=null"])
            if family in ("experiment", "preset"):
                result[f"{family}={name}"] = identity(composed.config)
            else:
                part = {family: composed.config.get(family)}
                result[f"{family}={name}"] = digest(semantic(part))
    return result


def class_options() -> dict[str, dict[str, list[str]]]:
    """Return type, default and help of every option of every class that a shipped YAML names."""
    result: dict[str, dict[str, list[str]]] = {}
    for group in catalog.groups():
        for choice in catalog.choices(group).values():
            for _, node in tree.nodes(catalog.content(choice.path) or {}):
                target = node["_target_"]
                if target.startswith("blockyard.") and target not in result:
                    result[target] = _options_of(target)
    return dict(sorted(result.items()))


def _options_of(target: str) -> dict[str, list[str]]:
    described = {}
    for name, option in options(locate(target)).items():
        default = "required" if option.default is REQUIRED else repr(option.default)
        described[name] = [option.describe(), default, option.help]
    return described


def help_texts() -> dict[str, list[str]]:
    """Return the lines that `--help` of every command prints."""
    texts = {"": HELP.splitlines()}
    for command in COMMANDS:
        texts[command] = help_text(command).splitlines()
    return texts


def refusal(line: str) -> dict[str, Any]:
    """Return exit code, number of problems and named arguments of the refusal of a command line."""
    arguments = shlex.split(line)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    text = errors.getvalue()
    listed = re.search(r"^blockyard: (\d+) problems$", text, re.MULTILINE)
    problems = int(listed.group(1)) if listed else text.count("blockyard: ")
    named = [name for argument in arguments[1:] if (name := argument.partition("=")[0].lstrip("+~")) in text]
    return {"exit": code, "problems": problems, "named": named}


def refusals(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the refusals of all bad command lines, typed in an empty folder."""
    lines = [line for line, _ in BAD] + COMMAND_LINES.read_text(encoding="utf-8").splitlines()
    with _inside(folder):
        return {line: refusal(line) for line in lines}


def comparisons(folder: Path) -> dict[str, dict[str, Any]]:
    """Return comparison and page of three finished sweeps: three arms with failed cells, a grid, and two tied arms."""
    with _inside(folder):
        outputs = Path("outputs")
        values = {
            "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: "failed"},
            "pre": {0: 0.93, 1: 0.95, 2: 0.94, 3: 0.935},
            "alibi": {0: 0.9, 1: 0.91, 2: 0.92, 3: "missing"},
        }
        expected = {"expect": "pre > post", "margin": 0.01}
        plans = {"arms": norms_sweep(outputs, name="arms", values=values, question=expected)}
        arms, levels = grid({"block": ["pre_norm", "post_norm"], "position": ["learned", "alibi"]})
        of_grid = {
            arm: {seed: 0.9 + 0.02 * number + 0.003 * ((seed * 7 + number) % 5) for seed in range(5)}
            for number, arm in enumerate(arms)
        }
        plans["grid"] = sweep(outputs, arms, of_grid, name="grid", levels=levels, question={"kind": "grid"})
        pair = {name: ARMS[name] for name in ("post", "pre")}
        equal = {name: {seed: 0.9 + 0.001 * ((seed * 3 + len(name)) % 4) for seed in range(6)} for name in pair}
        tied = {"expect": "pre ~ post", "margin": 0.02, "metric": "test/accuracy"}
        plans["tied"] = sweep(outputs, pair, equal, name="tied", question=tied)
        return {name: _comparison(saved.folder) for name, saved in plans.items()}


def _comparison(folder: Path) -> dict[str, Any]:
    """Return a comparison without the facts of the machine, and the frame of its page; floats have ten digits."""
    document = compare([str(folder)]).as_dict()
    plain = json.loads(json.dumps(document))
    plain.pop("provenance", None)
    plain = json.loads(json.dumps(plain).replace(str(Path.cwd()), "FOLDER"))
    frame = re.sub(r"<(style|script)[^>]*>.*?</\1>", r"<\1/>", render(document), flags=re.DOTALL)
    frame = re.sub(r"sha256-[\w+/=]+", "sha256", frame)
    return {"comparison": _rounded(plain), "page": frame.splitlines()}


def _rounded(value: Any) -> Any:
    """Round floats: the last digits of a sum depend on the order in which a processor adds."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def digest(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of plain data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
