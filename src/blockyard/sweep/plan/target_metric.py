"""The validation metric that stands for a sweep's test metric, and its direction."""

from __future__ import annotations

from typing import Any

from blockyard.config.build import instantiate
from blockyard.contracts import any_split
from blockyard.errors import UserError


def validation_metric(metric: str | None, config: dict[str, Any], allow: list[str]) -> tuple[str, str]:
    """The validation metric of a sweep, val/NAME, and "max" or "min".

    metric: the sweep's metric, reported on test; with `@4x` at its end where the config evaluates sequences of
    that length; None is the objective's own. Raises UserError where runs of this config do not measure it.
    """
    objective = instantiate(config["objective"], allow)
    best, mode = objective.best()
    name = best if metric is None else metric.removeprefix("test/").removeprefix("val/")
    plain, at, length = name.partition("@")
    factors = list((config.get("trainer") or {}).get("extrapolate") or [])
    lengths = [f"{factor}x" for factor in sorted({1, *factors})] if factors else []
    data = instantiate(config["data"], allow).spec
    counts = range(data.classes or 0) if data.class_names else None
    unit = getattr(instantiate(config["tokenizer"], allow), "unit", None)  # of tokens of images
    facts = {"units": (), "bytes_per_token": 1.0} if unit is None else {"units": (unit,), "bytes_per_token": None}
    metrics = objective.metrics(any_split(class_counts=counts, **facts))
    higher = mode == "max" if plain == best else getattr(metrics.get(plain), "higher_is_better", None)
    if higher is None or (at and length not in lengths and not (plain == best and length in data.slices)):
        available = [f"test/{each}{suffix}" for each in sorted(metrics) for suffix in ("", *(f"@{x}" for x in lengths))]
        available += [f"test/{best}@{name}" for name in data.slices]
        hint = "; base: [trainer.extrapolate=[2,4]] evaluates longer sequences" if at and not lengths else ""
        raise UserError(
            f"metric: {metric} is not measured on validation and test; available: {', '.join(available)}{hint}"
        )
    return f"val/{name}", "max" if higher else "min"
