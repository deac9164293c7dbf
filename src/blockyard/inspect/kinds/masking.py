"""`blockyard inspect masking`: the leak of later tokens under two wrong ways to mask, beside the right way.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.2.3, for the right way:
    scores of later keys are -inf before the softmax
Equation: s = Q K^T / sqrt(K), p = softmax(s) over all keys, and of later keys j > i
    right     w = softmax(s with s_ij = -inf)     leak 0
    after     w = p with p_ij = 0                 leak p_ij: rows sum to 1 - sum_j p_ij, d log w_ik / d s_ij = -p_ij
    zeroed    w = softmax(s with s_ij = 0)        leak w_ij, the weight of i on the value of j

    the first of three tokens     scores   1    2    0
                                  right    1    0    0
                                  after   .24   0    0      .67 and .09 are missing, and tell of the other two
                                  zeroed  .58  .21  .21     values of the other two are read

The leak is measured too: the change of the outputs of the first half when the second half has keys and values of other
tokens. A model that was trained with either mask would predict its targets from themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockyard.errors import UserError
from blockyard.inspect._canvas import panel_side, split_pages
from blockyard.inspect.labels import InLayer, real_tokens
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Heat, Page, Panel
from blockyard.inspect.result import JSON_SIDE, InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name, select_heads, select_layers
from blockyard.ops import maps, reference
from blockyard.ops.mask import FULL
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "heads", "sample", "samples", "prompt")

RIGHT = "right"
AFTER = "after"
ZEROED = "zeroed"
WAYS = (RIGHT, AFTER, ZEROED)
NAMES = {
    RIGHT: "scores of -inf before the softmax",
    AFTER: "weights of zero after the softmax",
    ZEROED: "scores of zero before the softmax",
}
_LAYERS = 6  # of a page
_SIDE = 256  # most rows and columns of a map


@dataclass
class LayerMasks(InLayer):
    """One layer under each way to mask, as means over its heads.

    weights, leaks: (N, M) of the first sample, by way
    leak: the mean over queries and samples of a row of the leak
    change: |y' - y|_F / |y|_F of the outputs of the first half, when the second half has other tokens
    """

    path: str
    weights: dict[str, Tensor]
    leaks: dict[str, Tensor]
    leak: dict[str, float]
    change: dict[str, float]


@torch.no_grad()
def masked_layers(
    model: Any, samples: list[Sample], layers: tuple[int, ...] | None, heads: tuple[int, ...] | None
) -> list[LayerMasks]:
    """Return every causal layer of softmax attention to the sequence itself, in order of call.

    Raises UserError if there is none, and for layers and heads that do not exist.
    """
    results: dict[str, LayerMasks] = {}
    visits = Counter[str]()  # of each layer, over all samples; a looped model calls it several times for one
    for sample in samples:
        calls = list(filter(_is_masked, maps.attention(model, sample.batch)))
        if not calls:
            raise UserError(
                "masking: no layer of this model is causal softmax attention without a sink, of one map; use a run of "
                "model=decoder with token_mixer=attention"
            )
        paths = select_layers([call.layer for call in calls], layers)
        for call in calls:
            if call.layer not in paths:
                continue
            of_sample = _layer(call, select_heads(call.q.shape[1], heads))
            visits[call.layer] += 1
            total = results.setdefault(call.layer, of_sample)
            if total is not of_sample:
                for rule in WAYS:
                    total.leak[rule] += of_sample.leak[rule]
                    total.change[rule] += of_sample.change[rule]
    for layer in results.values():
        for rule in WAYS:
            layer.leak[rule] /= visits[layer.path]
            layer.change[rule] /= visits[layer.path]
    return list(results.values())


def _is_masked(call: maps.Seen) -> bool:
    """Return whether a call is causal softmax attention without a sink."""
    return call.causal and call.softmax_options is not None and not call.sink


def _layer(call: maps.Seen, heads: list[int]) -> LayerMasks:
    """Return the masks of the first sequence of a call, without its padding."""
    real = real_tokens(call.seq)
    columns = len(call.k_seq) - len(call.seq) + real
    q, k = call.q[:1].double(), call.k[:1].double()
    v = call.v[:1].double().repeat_interleave(q.shape[1] // call.v.shape[1], dim=1)
    seen = call.visible()[:1]
    later = (call.k_seq.index > call.seq.index[:, None])[:real, :columns] & ~seen[0, 0, :real, :columns]
    middle = columns - real + real // 2  # the first key of the second half
    # Keys and values of the second half are replaced by those of the first, in turn: any other tokens would do.
    others = torch.arange(k.shape[2], device=k.device)
    others[middle:columns] = torch.arange(columns - middle, device=k.device) % max(1, middle)
    weights = {}
    leaks = {}
    leak_means = {}
    change = {}
    for rule in WAYS:
        w = masked_weights(call, q, k, rule)[:, :, :real, :columns]  # (1, H, N, M)
        y = w @ v[:, :, :columns]
        w_changed = masked_weights(call, q, k[:, :, others], rule)[:, :, :real, :columns]
        y_changed = w_changed @ v[:, :, others][:, :, :columns]
        first = slice(0, real // 2)
        difference = (y_changed - y)[0, heads, first]
        change[rule] = float(difference.norm() / y[0, heads, first].norm().clamp_min(1e-300))
        weights[rule] = w[0, heads].mean(0)
        leak = w
        if rule == AFTER:  # later keys count in the sum of the softmax, whatever becomes of their weights
            leak = masked_weights(call, q, k, None)[:, :, :real, :columns]
        leaks[rule] = leak[0, heads].mean(0).masked_fill(~later, 0.0)
        leak_means[rule] = float(leaks[rule].sum(-1).mean())
    return LayerMasks(call.layer, weights, leaks, leak_means, change)


def masked_weights(call: maps.Seen, q: Tensor, k: Tensor, rule: str | None) -> Tensor:
    """Return the weights (1, H, N, M) of these queries and keys in a layer; None masks nothing."""
    seen = call.visible()[:1]
    more = call.softmax_options or {}
    if rule == RIGHT:
        return reference.weights(q, k, call.seq, call.k_seq, call.visibility, call.scale, **more)
    raw = reference.scores(q, k, call.seq, call.k_seq, FULL, call.scale, **more)  # padding and other documents are -inf
    if rule == ZEROED:
        return reference.normalised(raw.masked_fill(~seen & (raw > float("-inf")), 0.0))
    p = reference.normalised(raw)
    if rule is None:
        return p
    return p.masked_fill(~seen, 0.0)


def pages(layers: list[LayerMasks], sample: Sample) -> Iterator[Page]:
    """Yield masking.png: a row for each layer; weights of the three ways, and the leaks of the wrong ones."""
    title = f"weights and leaks of later tokens of {sample.name}, means over heads; one scale"
    for page_layers in split_pages(layers, _LAYERS):
        page_panels = []
        for layer in page_layers:
            panels = [Panel([_heat(layer.weights[RIGHT])], f"{RIGHT}: weights", ylabel=layer.name)]
            for rule in (AFTER, ZEROED):
                panels.append(Panel([_heat(layer.weights[rule])], f"{rule}: weights"))
                panels.append(Panel([_heat(layer.leaks[rule])], f"{rule}: leak {layer.leak[rule]:.3f}"))
            page_panels.append(panels)
        side = panel_side(len(page_panels[0]), 12)
        yield Page("masking", title, page_panels, (side, side), bar="weight")


def _heat(table: Tensor) -> Heat:
    return Heat(maps.smaller(table, _SIDE).float().cpu(), power=0.4)  # so that weights of a hundredth are seen


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the leak of each layer under each way to mask. Raises UserError if no layer is causal attention."""
    samples = load_samples(loaded, options)
    layers = masked_layers(loaded.model, samples, options.layers, options.heads)
    worst = {rule: _shown(max(layer.change[rule] for layer in layers)) for rule in WAYS}
    return InspectionResult(
        numbers={
            "samples": [sample.index for sample in samples],
            "ways": NAMES,
            "layers": [_numbers(layer) for layer in layers],
        },
        rows=[_row(layer) for layer in layers],
        pages=pages(layers, samples[0]),
        summary=(
            f"of {samples_name(samples)}; right: {NAMES[RIGHT]}, after: {NAMES[AFTER]}, zeroed: {NAMES[ZEROED]}; other "
            f"tokens in the second half change what the first reads by up to {worst[RIGHT]}, "
            f"{worst[AFTER]} and {worst[ZEROED]} of its norm"
        ),
    )


def _numbers(layer: LayerMasks) -> dict[str, object]:
    leaks = {rule: to_json(maps.smaller(layer.leaks[rule], JSON_SIDE)) for rule in WAYS}
    return {"path": layer.path, "leak": layer.leak, "change": layer.change, "leaks": leaks}


def _row(layer: LayerMasks) -> dict[str, str]:
    cells = {"layer": layer.name}
    for rule in WAYS:
        cells[f"leak, {rule}"] = _shown(layer.leak[rule])
    for rule in WAYS:
        cells[f"change, {rule}"] = _shown(layer.change[rule])
    return cells


def _shown(value: float) -> str:
    if value < 1e-12:
        return "0"
    return f"{value:.3f}"
