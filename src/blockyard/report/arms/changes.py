"""The changes of an arm against the baseline: options, modules of the built model, number of parameters.

The modules come from models built on the meta device, which allocates no weights. They are built here, not
read from the run folders, because a run records its config and no list of modules: the config alone tells which
modules an override replaces, also in arms whose runs have not started or come from an older version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from blockyard.report.load.arms import ArmRuns, RunConfig, factors, flatten, semantic_options
from blockyard.report.load.document import ChangesRow

FEW_ARMS = 6  # the most arms with options side by side on a terminal
MAX_ARMS = 60  # with more arms, no models are built to compare their modules
MAX_MODULES = 60


def changes(
    arm: ArmRuns, baseline: ArmRuns | None, parameters: tuple[float | None, float | None], *, modules: bool = True
) -> ChangesRow:
    """Return config {key: [baseline's, arm's]}, modules {path: [class, class]} and parameters [baseline's, arm's].

    parameters: the numbers of the baseline and of the arm. Layers that change alike are one path with a `*`.
    """
    counts: list[int | None] | None = None
    if arm is not baseline and parameters != (None, None):
        counts = [None if count is None else int(count) for count in parameters]
    if baseline is None or arm is baseline or not arm.config or not baseline.config:
        return ChangesRow(config={}, modules={}, parameters=counts)
    changed_modules = module_changes(arm, baseline) if modules else {}
    return ChangesRow(config=option_changes(arm, baseline), modules=changed_modules, parameters=counts)


def option_changes(arm: ArmRuns, baseline: ArmRuns) -> dict[str, list[Any]]:
    """Return every option that changes the result and differs; a choice under its family's name."""
    configs = {
        "baseline": RunConfig(baseline.config, baseline.choices),
        "arm": RunConfig(arm.config, arm.choices),
    }
    result = {key: [values.get("baseline"), values.get("arm")] for key, values in factors(configs).items()}
    before = flatten(baseline.config)
    after = flatten(arm.config)
    for key in dict.fromkeys([*semantic_options(baseline.config), *semantic_options(arm.config)]):
        pair = [before.get(key), after.get(key)]
        if pair[0] != pair[1] and not key.endswith(("_target_", "_partial_")):
            result.setdefault(key, pair)
    return result


def module_changes(arm: ArmRuns, baseline: ArmRuns) -> dict[str, list[str | None]]:
    """Return the modules with another class, and the modules of one model only; empty where a model cannot be built."""
    before = _modules(_cache_key(baseline.config))
    after = _modules(_cache_key(arm.config))
    if before is None or after is None:
        return {}
    layers_before = set(map(_folded, before))
    layers_after = set(map(_folded, after))
    result: dict[str, list[str | None]] = {}
    alone: set[str] = set()  # paths in one model only
    for path in dict.fromkeys([*before, *after]):
        pair = [before.get(path), after.get(path)]
        if None in pair:
            alone.add(path)
            if path.rpartition(".")[0] in alone:  # implied by the module that it is a part of
                continue
        if pair[0] != pair[1]:
            folded = _folded(path)
            lacking = layers_before if pair[0] is None else layers_after
            if None in pair and folded in lacking:  # one more layer of a kind that both models have
                result.setdefault(path, pair)
            else:
                result.setdefault(folded, pair)
        if len(result) >= MAX_MODULES:
            break
    return result


def _folded(path: str) -> str:
    """Return the path of a module with a * for the number of its layer: blocks.*.norm_1."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _cache_key(config: Mapping[str, Any]) -> str:
    return json.dumps({**config, "allow": [], "seed": 0}, sort_keys=True, default=str)


@lru_cache(maxsize=256)
def _modules(config: str) -> dict[str, str] | None:
    # Without the packages that the config allows: the folder may come from anywhere.
    from blockyard.config import build

    try:
        model = build.Components(json.loads(config)).meta_model()
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, AssertionError):
        return None
    return {path: type(module).__name__ for path, module in model.named_modules() if path}
