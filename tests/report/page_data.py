"""Synthetic comparisons for the page, with any number of arms, seeds and points."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.report.samples_data import DOT, sample_tables

NAMES = (
    "post_norm", "pre_norm", "sandwich", "parallel", "rms_pre", "deep_norm",
    "qk_norm", "rezero", "admin", "layer_scale", "peri_norm", "no_norm",
)  # fmt: skip
HOSTILE = (
    "<script>window.hit=1</script>",
    '"><img src=x onerror="window.hit=2">',
    "</script><script>window.hit=3</script>",
    "a&amp;b 'c' `d` ${e}",
    "javascript:alert(1)//<svg onload=window.hit=4>",
)
METRICS = {"train/loss": "min", "val/loss": "min", "val/accuracy": "max", "test/accuracy": "max", "test/loss": "min"}


def comparison(
    *,
    arms: int = 5,
    seeds: int = 5,
    points: int = 60,
    names: tuple[str, ...] = NAMES,
    failed: bool = False,
    grid: bool = False,
    tuned: bool = False,
    attention: bool = False,
    predictions: bool = False,
    samples: str | None = None,
) -> dict[str, Any]:
    """The whole dict of `Comparison.as_dict()`; the same arguments give the same values."""
    draw = random.Random(arms * 1000 + seeds)
    labels = [names[i] if i < len(names) else f"{names[i % len(names)]}_{i // len(names)}" for i in range(arms)]
    level = [0.90 + 0.05 * math.sin(1.3 * i) for i in range(arms)]
    values = [[level[i] + draw.gauss(0, 0.006) for _ in range(seeds)] for i in range(arms)]
    other = labels[-1] if arms < 2 else labels[1]
    content = {
        "title": "norm_placement",
        "claim": "Pre-norm trains without warm-up where post-norm does not",
        "source": "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture (arXiv 2002.04745)",
        "question": {"claim": "Pre-norm trains without warm-up", "seeds": seeds, "base": ["experiment=vit_digits"]},
        "metric": "test/accuracy",
        "direction": "max",
        "metrics": list(METRICS),
        "directions": METRICS,
        "baseline": labels[0],
        "answer": f"{other} is better than {labels[0]} by 0.046 [0.038, 0.055] in test/accuracy over {seeds} seeds.",
        "expect": {
            "text": f"{other} > {labels[0]}",
            "verdict": "supported",
            "reason": f"the difference is 0.046 [0.038, 0.055], Holm-corrected p = 0.0004, n = {seeds}",
        },
        "warnings": ["arms differ in tuning budget: post_norm 3 settings, pre_norm 9"] if tuned else [],
        "seeds": list(range(seeds)),
        "arms": [_arm(labels, i, values, tuned) for i in range(arms)],
        "effects": None,
        "cells": [_cell(label, seed, values[i][seed]) for i, label in enumerate(labels) for seed in range(seeds)],
        "curves": [
            _curve(label, seed, level[i], points, draw) for i, label in enumerate(labels) for seed in range(seeds)
        ],
        "tuning": [],
        "attention": [],
        "predictions": [],
        "samples": None,
        "written": None,
        "cost_axis": "flops",
        "provenance": {
            "time": "2026-03-02T10:31:00Z",
            "code": "1f0c2ab (clean)",
            "versions": {"blockyard": "0.1.0", "torch": "2.14.1", "pytorch-lightning": "2.6.6"},
            "host": {"cpu": "2 cores", "gpu": None},
            "command": "blockyard sweep sweeps/norm_placement.yaml --workers 2",
            "data": {"digits": "sha256 5e1f0c"},
        },
    }
    if failed:
        _break(content)
    if grid:
        _grid(content)
    if tuned:
        content["tuning"] = [_setting(label, lr, draw) for label in labels for lr in (3e-4, 1e-3, 3e-3, 1e-2)]
    if attention:
        content["attention"] = [_map(label, layer) for label in labels[:2] for layer in ("blocks.0", "blocks.3")]
    if predictions:
        content["predictions"] = [
            {"arm": label, "seed": 0, "name": name, "image": f"data:image/png;base64,{DOT}"}
            for label, name in zip(labels, ("forecast", "restoration"), strict=False)
        ]
    if samples:
        content["samples"] = sample_tables(labels, samples)
    return content


def crossed(seeds: int = 5) -> dict[str, Any]:
    """The comparison of a grid of two positions and five rates in another order, the higher of which are better."""
    rates = ("0.01", "0.0001", "0.001", "0.0003", "0.003")
    levels = [{"position": position, "optimizer.lr": rate} for position in ("none", "rope") for rate in rates]
    names = tuple(" ".join(f"{key}={level}" for key, level in arm.items()) for arm in levels)
    result = comparison(arms=len(names), seeds=seeds, names=names)
    for arm, level in zip(result["arms"], levels, strict=True):
        arm["levels"] = level
        mean = 0.9 + 0.01 * rates.index(level["optimizer.lr"]) + 0.02 * (level["position"] == "rope")
        arm |= {"mean": mean, "interval": [mean - 0.002, mean + 0.002]}
    result["importance"] = [{"arm": None, "count": 10, "shares": {"optimizer.lr": 0.7, "position": 0.3}}]
    return result


def disagreeing() -> dict[str, Any]:
    """The comparison of three arms of which the second has an interval above 0 and a corrected p above 0.05."""
    result = comparison(arms=3)
    arm = result["arms"][1]
    arm["verdict"] = "no difference shown"
    arm["difference"] |= {"mean": 0.006, "interval": [0.001, 0.012], "t_p": 0.038, "holm_p": 0.15}
    return result


def decided() -> dict[str, Any]:
    """A comparison that stopped when it was decided: two clauses, one of them open."""
    result = comparison(arms=3, seeds=5)
    names = [arm["name"] for arm in result["arms"]]
    reason = "+0.03 (95 % confidence sequence 0.01 to 0.05), e = 60, 5 seeds"
    clauses = [
        {"text": f"{names[1]} > {names[0]}", "verdict": "supported", "reason": reason},
        {"text": f"{names[2]} > {names[0]}", "verdict": "undecided", "reason": "+0.001, e = 1.2, 5 seeds"},
    ]
    text = " and ".join(clause["text"] for clause in clauses)
    result["expect"] = {"text": text, "verdict": "undecided", "reason": "", "clauses": clauses}
    looks = [
        {
            "name": clause["text"],
            "arms": [arm, names[0]],
            "seeds": list(range(5)),
            "log10_e": [0.0, 0.4 * step, 0.9 * step, 1.5 * step, 1.8 * step],
            "mean": [0.04 * step, 0.02, 0.03 * step, 0.03 * step, 0.03 * step],
            "low": [None, None, -0.01, 0.005 * step, 0.01 * step],
            "high": [None, None, 0.08, 0.06, 0.05],
            "threshold": 1.3,
            "outcome": "supported" if step == 1 else None,
            "at": 4 if step == 1 else None,
        }
        for clause, arm, step in zip(clauses, names[1:], (1, 0.1), strict=True)
    ]
    sentence = "Stopped after 5 seeds and 15 cells, the most that the question allows."
    result["evidence"] = {"alpha": 0.05, "reason": "most seeds", "words": sentence, "looks": looks}
    for arm in result["arms"][1:]:
        arm["difference"] |= {"t_p": None, "permutation_p": None, "smallest_p": None, "e": 60.0}
    result["arms"][2]["verdict"] = "undecided"
    return result


def _arm(labels: list[str], i: int, values: list[list[float]], tuned: bool) -> dict[str, Any]:
    mean, spread = _mean(values[i])
    n = len(values[i])
    half = 2.776 * spread / math.sqrt(n)
    cost = {
        "parameters": 101_514 + 12_288 * i,
        "flops_per_sample": 5.4e6 * (1 + 0.17 * i * (1 if i % 2 else -0.4)),
        "step_seconds": 0.0121 * (1 + 0.05 * i),
        "samples_per_second": 5289.0 / (1 + 0.05 * i),
        "peak_memory": 310_000_000 + 9_000_000 * i,
        "cache_bytes_per_token": None if i % 3 == 2 else 1536.0 / (1 + i % 2),
        "seconds": 41.0 + 2 * i,
    }
    first = dict(cost)
    if i:
        first = _arm(labels, 0, values, False)["cost"]
    arm = {
        "name": labels[i],
        "n": n,
        "planned": n,
        "values": {str(seed): value for seed, value in enumerate(values[i])},
        "mean": mean,
        "interval": [mean - half, mean + half],
        "interval_kind": "t",
        "difference": None,
        "verdict": "baseline",
        "words": "what the others are compared with",
        "overrides": [f"block={labels[i]}", "optimizer.lr=1e-3"],
        "levels": {},
        "changes": {"config": {}, "modules": {}, "parameters": [first["parameters"], cost["parameters"]]},
        "cost": cost,
        "cost_ratio": {k: None if v is None or not first[k] else v / first[k] for k, v in cost.items()},
        "pareto": i in (1, 3),
        "budget": {"settings": 4, "chosen": {"optimizer.lr": 0.003}} if tuned else None,
        "other": {
            name: {"mean": mean if best == "max" else 1.2 - mean, "interval": [mean - half, mean + half], "n": n}
            for name, best in METRICS.items()
            if name != "test/accuracy"
        },
    }
    if i:
        gap = [value - base for value, base in zip(values[i], values[0], strict=True)]
        middle, wide = _mean(gap)
        half = 2.776 * wide / math.sqrt(n)
        clear = abs(middle) > half
        arm["difference"] = {
            "mean": middle,
            "interval": [middle - half, middle + half],
            "n": n,
            "t_p": 0.0002 if clear else 0.31,
            "permutation_p": max(2 ** (1 - n), 0.01) if clear else 0.44,
            "smallest_p": 2 ** (1 - n),
            "sampled": False,
            "holm_p": 0.0004 if clear else 0.62,
            "effect": middle / wide if wide else None,
            "effect_kind": "Cohen's d of the pairs",
        }
        arm["verdict"] = ("better" if middle > 0 else "worse") if clear else "no difference shown"
        arm["words"] = f"{labels[i]}: {arm['verdict']}; {n} seeds, 9 would show a difference of this size"
        arm["changes"]["config"] = {"block._target_": [labels[0], labels[i]], "schedule.warmup": [100, 0]}
        arm["changes"]["modules"] = {
            f"blocks.{layer}.{part}": ["LayerNorm", labels[i]] for layer in range(6) for part in ("norm_1", "norm_2")
        }
    return arm


def _cell(arm: str, seed: int, value: float) -> dict[str, Any]:
    run = f"{arm}-0a1b2c3d4e/s{seed}"
    metrics = {"test/accuracy": value}
    return {"arm": arm, "seed": seed, "setting": {}, "state": "done", "reason": None, "run": run, "metrics": metrics}


def _curve(arm: str, seed: int, level: float, points: int, draw: random.Random) -> dict[str, Any]:
    step = [(k + 1) * 10 for k in range(points)]
    rise = [1 - math.exp(-4 * (k + 1) / points) for k in range(points)]
    wobble = draw.gauss(0, 0.01)
    accuracy = [level * r + (wobble + draw.gauss(0, 0.004)) * r for r in rise]
    loss = [2.3 * (1 - 0.95 * a) + draw.gauss(0, 0.02) for a in accuracy]
    sparse = [value if k % 3 == 2 or k == points - 1 else None for k, value in enumerate(accuracy)]
    return {
        "arm": arm,
        "seed": seed,
        "run": f"{arm}-0a1b2c3d4e/s{seed}",
        "step": step,
        "samples": [64 * s for s in step],
        "flops": [3 * 64 * s * 5.4e6 for s in step],
        "seconds": [s * (0.012 + 0.0004 * seed) for s in step],
        "metrics": {"train/loss": loss, "val/accuracy": sparse, "val/loss": [2.0 - 1.7 * a for a in accuracy]},
    }


def _break(result: dict[str, Any]) -> None:
    """Failed, missing and refused cells, and an arm with too few seeds."""
    reasons = {
        1: ("failed", "the loss is NaN at step 140 (train/loss); the last good weights are kept"),
        2: ("missing", "not started yet"),
        3: ("interrupted", "Ctrl-C at step 220"),
        4: ("running", None),
    }
    for place, (state, reason) in reasons.items():
        cell = result["cells"][place * len(result["seeds"]) - 1]
        cell.update(state=state, reason=reason, metrics={})
        arm = result["arms"][place - 1]
        arm["n"] -= 1
        arm["values"].pop(str(cell["seed"]))
    refused = {"arm": "fourier_rope", "seed": 0, "setting": {}, "state": "refused", "run": None, "metrics": {}}
    reason = "position=rope acts on queries_and_keys, which token_mixer=fourier does not have"
    result["cells"].append({**refused, "reason": reason})
    last = result["arms"][-1]
    last.update(n=2, verdict="too few seeds", mean=0.9, interval=None, words="2 of 5 seeds: 3 more would do")
    if last["difference"]:
        last["difference"].update(interval=None, t_p=None, permutation_p=None, holm_p=None, effect=None)
    result["warnings"].append("4 of the cells have no result yet: they are listed under Cells")


def _grid(result: dict[str, Any]) -> None:
    factors = {"block": ["post_norm", "pre_norm"], "warmup": ["0", "100"], "lr": ["3e-4", "1e-3", "3e-3"]}
    main = [
        {"factor": f, "level": level, "reference": levels[0], "effect": 0.01 * k, "p": 0.002, "holm_p": 0.006,
         "interval": [0.01 * k - 0.004, 0.01 * k + 0.004]}
        for f, levels in factors.items() for k, level in enumerate(levels) if k
    ]  # fmt: skip
    names, made_pairs = list(factors), []
    for a in range(3):
        for b in range(a + 1, 3):
            one, two = factors[names[a]], factors[names[b]]
            cells = [[0.88 + 0.03 * i + 0.02 * j - 0.025 * i * j * b for j in range(len(two))] for i in range(len(one))]
            made_pairs.append({"factors": [names[a], names[b]], "F": 12.3 / b, "p": 0.001 * b, "holm_p": 0.003 * b,
                               "cells": cells, "levels": [one, two]})  # fmt: skip
    result["effects"] = {
        "main": main,
        "interactions": made_pairs,
        "formula": "value ~ C(seed) + (block + warmup + lr)^2",
    }


def _setting(arm: str, lr: float, draw: random.Random) -> dict[str, Any]:
    base = 0.95 - 0.03 * abs(math.log10(lr / 0.003)) + draw.gauss(0, 0.004)
    values = {str(seed): base + draw.gauss(0, 0.005) for seed in range(3)}
    return {"arm": arm, "setting": {"optimizer.lr": lr}, "mean": base, "values": values, "chosen": lr == 0.003}


def _map(arm: str, layer: str) -> dict[str, Any]:
    size = 17
    weights = [[math.exp(-abs(i - j) / (2 if layer.endswith("0") else 6)) for j in range(size)] for i in range(size)]
    return {
        "arm": arm,
        "seed": 0,
        "layer": layer,
        "image": None,
        "map": [[v / sum(row) for v in row] for row in weights],
    }


def _mean(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))
