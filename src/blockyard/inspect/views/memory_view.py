"""`blockyard inspect memory`: the training tokens that each key of an MLP or a memory answers to most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockyard.inspect.figures.memory_figure import BEFORE, draw_keys, window
from blockyard.inspect.key_examples import Example, ShownKey, key_examples
from blockyard.inspect.memory_keys import LayerKeys
from blockyard.inspect.options import Options
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.runs.load import Loaded

_CONTEXT = 12  # tokens before an example, in the table


def memory_view(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns the strongest training tokens of the keys of the selected layers."""
    layers, shown, count = key_examples(loaded, options)
    causal = bool(loaded.model.ctx.causal)
    return InspectionResult(
        numbers={
            "train_samples": count,
            "layers": [_numbers(layer) for layer in layers],
            "shown": [_examples(each, causal) for each in shown],
        },
        columns=("layer", "key", "coefficients", "strongest training tokens"),
        rows=[_row(each) for each in shown],
        figures=draw_keys(shown, folder, causal=causal),
        summary=f"Of {count:,} training samples, each of which counts once for a key; [ ] is the token",
    )


def _numbers(layer: LayerKeys) -> dict[str, Any]:
    return {
        "path": layer.path,
        "coefficients": to_json(layer.coefficients),
        "samples": layer.samples.tolist(),
        "tokens": layer.tokens.tolist(),
    }


def _examples(shown: ShownKey, causal: bool) -> dict[str, Any]:
    examples = []
    for example in shown.examples:
        part = window(example, BEFORE, causal=causal)
        examples.append(
            {
                "sample": example.sample,
                "token": example.token,
                "context": example.labels[part.start : part.stop],
                "context_start": part.start,
                "coefficients": to_json(example.coefficients[part.start : part.stop]),
            }
        )
    return {"path": shown.layer.path, "key": shown.key, "examples": examples}


def _row(shown: ShownKey) -> tuple[str, ...]:
    values = shown.layer.coefficients[shown.key]
    return (
        shown.layer.name,
        str(shown.key),
        f"{float(values[0]):.3g} to {float(values[-1]):.3g}",
        "  ".join(_text(example) for example in shown.examples),
    )


def _text(example: Example) -> str:
    """The token in brackets behind those before it, or where it lies in its sample."""
    label = example.labels[example.token]
    if example.grid is not None and len(example.grid) == 2:
        return f"sample {example.sample} at {label}"
    if label == str(example.token):  # not a text
        return f"sample {example.sample} token {label}"
    before = example.labels[max(0, example.token - _CONTEXT) : example.token]
    joint = "" if all(len(each) == 1 for each in (*before, label)) else " "
    return joint.join([*before, f"[{label}]"])
