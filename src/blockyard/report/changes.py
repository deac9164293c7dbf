"""What an arm really changes: options, modules of the built model, parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from blockyard.report.load import arm_names
from blockyard.report.load.groups import Group

MOST_ARMS = 60  # beyond that, models are not sketched to be compared
MOST_MODULES = 60


def changes(
    group: Group, baseline: Group | None, counts: tuple[float | None, float | None], *, modules: bool = True
) -> dict[str, Any]:
    """The difference to the baseline: config {key: [baseline's, arm's]}, modules {path: [class, class]}, parameters.

    counts: parameters of the baseline and of the arm; layers that change alike are one path, with a *
    """
    if baseline is None or group is baseline or not group.config or not baseline.config:
        return {"config": {}, "modules": {}, "parameters": _counts(counts) if group is not baseline else None}
    return {
        "config": options(group, baseline),
        "modules": module_changes(group, baseline) if modules else {},
        "parameters": _counts(counts),
    }


def options(group: Group, baseline: Group) -> dict[str, list[Any]]:
    """Every option that changes what is computed and differs; a choice under its family's name."""
    kinds = {
        "base": arm_names.Kind(baseline.config, baseline.choices),
        "arm": arm_names.Kind(group.config, group.choices),
    }
    flat = {name: arm_names.flatten(kind.config) for name, kind in kinds.items()}
    meaning = {name: arm_names.meaning(kind.config) for name, kind in kinds.items()}
    found: dict[str, list[Any]] = {}
    for family, values in arm_names.factors(kinds).items():
        found[family] = [values.get("base"), values.get("arm")]
    for key in dict.fromkeys([*meaning["base"], *meaning["arm"]]):
        both = [flat[name].get(key) for name in ("base", "arm")]
        if both[0] != both[1] and not key.endswith(("_target_", "_partial_")):
            found.setdefault(key, both)
    return found


def module_changes(group: Group, baseline: Group) -> dict[str, list[str | None]]:
    """Modules of another class, or that only one model has; empty where a model cannot be sketched."""
    theirs, ours = _modules(_key(baseline.config)), _modules(_key(group.config))
    if theirs is None or ours is None:
        return {}
    found: dict[str, list[str | None]] = {}
    for path in dict.fromkeys([*theirs, *ours]):
        pair = [theirs.get(path), ours.get(path)]
        parent = path.rpartition(".")[0]
        # What lies inside a module that only one of them has is said with it.
        if pair[0] != pair[1] and not (None in pair and None in found.get(re.sub(r"\d+", "*", parent), ())):
            found.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", path), pair)
        if len(found) >= MOST_MODULES:
            break
    return found


def _counts(counts: tuple[float | None, float | None]) -> list[int | None] | None:
    if counts[0] is None and counts[1] is None:
        return None
    return [None if count is None else int(count) for count in counts]


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps({**config, "allow": [], "seed": 0}, sort_keys=True, default=str)


@lru_cache(maxsize=256)
def _modules(text: str) -> dict[str, str] | None:
    # Without the packages that the config allows itself: the folder may come from anywhere.
    from blockyard.config import build

    try:
        model = build.Components(json.loads(text)).meta_model()
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RuntimeError, AssertionError):
        return None
    return {path: type(module).__name__ for path, module in model.named_modules() if path}
