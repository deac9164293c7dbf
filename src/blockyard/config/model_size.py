"""One dial for the size of a model: depth, width, heads, rate and steps by one rule.

    blockyard train data=code model.size=small            # 1,000,000 parameters
    blockyard check experiment=vit_digits model.size=10M

With r = N / N0, where N0 is the number of parameters of the config without the dial:

    model.depth        depth0 r^(1/3), so that the width grows as fast as the depth      Kaplan et al. 2020: the shape
    model.heads        one for each 32 channels                                          of a model matters little
    model.dim          solved for N, in multiples of twice the heads
    parametrization    mup with width, heads and depth of the config without the dial as its base, so that the
                       learning rate carries over
    trainer.max_steps  steps0 r, as in Hoffmann et al. 2022 (arXiv 2203.15556); a limit in epochs stays as it is

What is typed stays: with model.dim the depth is solved. An experiment may set the dial too, as `model: {size: 300k}`,
which takes the place of a shape in the same file. A frozen config holds the values and not the dial.

Source: Kaplan et al. 2020, Scaling Laws for Neural Language Models (arXiv 2001.08361), figure 5; nanochat, whose one
    dial is the depth
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.config import presets
from blockyard.config.build import Components
from blockyard.config.choices import catalog
from blockyard.config.choices.catalog import MATCH
from blockyard.config.defaults import default_node
from blockyard.config.override_grammar import to_override
from blockyard.config.overrides import OverrideValue
from blockyard.config.placed_nodes import are_sound
from blockyard.config.size_matching import Axis, ModelSizes, nearest
from blockyard.config.tree import Node, get, is_number
from blockyard.config.untrusted.targets import locate
from blockyard.contracts import Issue
from blockyard.errors import quoted

KEY = "model.size"
SIZES = {"tiny": 100_000, "small": 1_000_000, "medium": 10_000_000}
TOLERANCE = 0.1  # share of N by which a model may miss it
HEAD_WIDTH = 32
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "b": 1_000_000_000}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmb]?)", re.IGNORECASE)
_SHAPE = ("model.dim", "model.depth", "model.heads")


@dataclass(frozen=True)
class SizedModel:
    """A model that the dial has set.

    target: N; value: the parameters that were reached; settings: values by dotted key
    vocabulary: number of token ids that were counted; one learned from the data counts as large as it may become
    """

    target: int
    value: int
    settings: Mapping[str, Any]
    vocabulary: int | None

    def described(self) -> list[str]:
        """Return lines: the number of parameters, and what was set."""
        share = self.value / self.target - 1
        reached = f"{self.value:,} parameters, {100 * share:+.1f} % of {self.target:,}"
        if self.vocabulary:
            reached = f"{reached}, counted with a vocabulary of {self.vocabulary:,}"
        return [reached, ", ".join(to_override(key, value) for key, value in self.settings.items())]


def take(values: list[OverrideValue]) -> tuple[list[OverrideValue], OverrideValue | None]:
    """Return the values without the dial, and the dial; of several the last."""
    dials = [value for value in values if value.key == KEY]
    others = [value for value in values if value.key != KEY]
    return others, dials[-1] if dials else None


def take_from_files(config: Node) -> OverrideValue | None:
    """Remove the dial that an experiment has set from a merged config, and return it; None where there is none."""
    model = config["model"]
    # A class of the user's own may have an option of this name, which is not the dial.
    if not isinstance(model, dict) or not str(model.get("_target_")).startswith("blockyard."):
        return None
    value = model.pop("size", None)
    if value is None:
        return None
    return OverrideValue(KEY, str(value), value)


def solve(
    config: Node,
    choices: dict[str, str | None],
    dial: OverrideValue | None,
    typed: Mapping[str, str],
    typed_families: frozenset[str],
    issues: list[Issue],
) -> SizedModel | None:
    """Set the size in a complete config and its choices, in place, and return it; None without a dial.

    A problem becomes an issue.

    typed, typed_families: the values and the families of the command line, which stay as they are
    """
    if dial is None:
        return None
    target = _parameters(dial.value)
    problem = _problem(config, choices, typed) if target is not None else None
    if target is None:
        text = f"invalid value {quoted(dial.text)}: expected a number of parameters"
        issues.append(Issue(KEY, text, [*(f"{KEY}={name}" for name in SIZES), f"{KEY}=2.5M"]))
    elif problem is not None:
        issues.append(Issue(KEY, problem))
    if target is None or problem is not None or issues or not are_sound(config):
        return None  # `check` reports the issues
    sizes = ModelSizes()
    base = sizes.measure(config, "params")
    if base is None:
        return None  # as above: the model cannot be built
    solved = _nearest_shape(config, target, base, typed, sizes)
    if solved is None or abs(solved[1] / target - 1) > TOLERANCE:
        reached = "" if solved is None else f"; the nearest has {solved[1]:,}"
        hint = [] if solved is None else [f"{KEY}={solved[1]}"]
        issues.append(Issue(KEY, f"no model of this kind has about {target:,} parameters{reached}", hint))
        return None
    shaped, value = solved
    settings = {key: get(shaped, key) for key in _SHAPE if key not in typed}
    if "parametrization" not in typed_families and not any(key.startswith("parametrization.") for key in typed):
        node = default_node("parametrization", "mup")
        node |= {"base_dim": config["model"]["dim"], "base_heads": config["model"]["heads"]}
        adds = getattr(locate(config["block"]["_target_"]), "adds", False)
        # A block that does not add to its input has no factor of depth; the rate then carries over in width alone.
        node["base_depth"] = _visits(config) if adds else None
        shaped = shaped | {"parametrization": node}
        choices["parametrization"] = "mup"
        settings["parametrization"] = "mup"
        for name in ("base_dim", "base_heads", "base_depth"):
            settings[f"parametrization.{name}"] = node[name]
    settings |= _steps(shaped, target / base, typed)
    config.clear()
    config.update(shaped)
    return SizedModel(target, value, settings, Components(config).tokens().vocabulary)


def _parameters(value: Any) -> int | None:
    """Return N of a value such as small, 2.5M or 1e6; None for anything else."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if value in SIZES or match is None:
            return SIZES.get(value)
        value = float(match[1]) * _UNITS[match[2].lower()]
    if not is_number(value) or value < 1:
        return None
    return round(value)


def _problem(config: Node, choices: Mapping[str, str | None], typed: Mapping[str, str]) -> str | None:
    """Return why the dial cannot be used with this config, or None."""
    if any(key.startswith(f"{MATCH}.") for key in typed):
        return f"{MATCH} solves for a size too; leave one of them out"
    preset = choices.get(presets.FAMILY)
    shipped = catalog.choices(presets.FAMILY)
    if preset in shipped:
        of_model = (catalog.content(shipped[preset].path) or {}).get("model") or {}
        fixed = [key for key in _SHAPE if key.partition(".")[2] in of_model]
        if fixed:
            return f"preset={preset} has {' and '.join(fixed)} of its own; leave one of them out"
    missing = [key for key in _SHAPE if not isinstance(get(config, key, None), int)]
    if missing:
        return f"model={choices.get('model')} has no {' and no '.join(missing)} to set"
    if "model.dim" in typed and "model.depth" in typed:
        return "model.dim and model.depth are both set, which leaves nothing to solve; leave one of the three out"
    return None


def _nearest_shape(
    config: Node, target: int, base: int, typed: Mapping[str, str], sizes: ModelSizes
) -> tuple[Node, int] | None:
    """Return the config with the depth, heads and width that come nearest to N parameters, and their number."""
    if "model.dim" in typed:
        along = Axis("depth", "model.depth", 1, config["model"]["depth"])
        return _along(config, target, along, sizes)
    growth = (target / base) ** (1 / 3)
    depth = config["model"]["depth"]
    first = depth if "model.depth" in typed or get(config, "model.order", None) else max(1, round(depth * growth))
    candidates = [first]
    if "model.depth" not in typed:
        candidates += [first + 1, max(1, first - 1)]
    best: tuple[Node, int] | None = None
    for candidate in candidates:
        shaped = _with_depth(config, candidate)
        width = config["model"]["dim"] * (target / base * depth / candidate) ** 0.5
        heads = config["model"]["heads"] if "model.heads" in typed else max(1, round(width / HEAD_WIDTH))
        shaped = shaped | {"model": shaped["model"] | {"heads": heads}}
        along = Axis("dim", "model.dim", 2 * heads, max(1, round(width / (2 * heads))))
        solved = _along(shaped, target, along, sizes)
        if solved is not None and (best is None or abs(solved[1] - target) < abs(best[1] - target)):
            best = solved
        if best is not None and abs(best[1] / target - 1) <= TOLERANCE:
            break
    return best


def _along(config: Node, target: int, along: Axis, sizes: ModelSizes) -> tuple[Node, int] | None:
    """Return the config with the size along an axis that comes nearest to N parameters, and their number."""
    solved = nearest(config, "params", target, sizes, along)
    if solved is None:
        return None
    return along.put(config, solved[0]), solved[1]


def _with_depth(config: Node, depth: int) -> Node:
    """Return the config with another depth, and the encoder's depth in proportion."""
    model = config["model"] | {"depth": depth}
    of_encoder = model.get("encoder_depth")
    if isinstance(of_encoder, int):
        model["encoder_depth"] = max(1, round(of_encoder * depth / config["model"]["depth"]))
    return config | {"model": model}


def _visits(config: Node) -> int:
    """Return the number of visits of blocks."""
    order = get(config, "model.order", None)
    return len(order) if isinstance(order, list) else config["model"]["depth"]


def _steps(config: Node, ratio: float, typed: Mapping[str, str]) -> dict[str, int]:
    """Set the limit in steps and the interval of evaluation in proportion, in place, and return them."""
    trainer = config["trainer"] = dict(config["trainer"])
    steps = trainer.get("max_steps")
    if not isinstance(steps, int) or "trainer.max_steps" in typed:
        return {}
    changed = {}
    for name in ("max_steps", "eval_every"):
        value = trainer.get(name)
        if isinstance(value, int) and f"trainer.{name}" not in typed:
            trainer[name] = max(1, round(value * ratio))
            changed[f"trainer.{name}"] = trainer[name]
    return changed
