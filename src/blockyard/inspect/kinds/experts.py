"""`blockyard inspect experts`: the number of tokens that each expert of a mixture is sent, layer by layer.

Source: Jiang et al. 2024, Mixtral of Experts (arXiv 2401.04088), section 5
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockyard.channel_mixer.experts import Experts
from blockyard.contracts import Seq
from blockyard.errors import UserError
from blockyard.inspect._canvas import INK, split_pages
from blockyard.inspect.labels import InLayer
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Heat, Mark, Page, Panel, text
from blockyard.inspect.recorded_calls import forward_once
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name, select_layers
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "sample", "samples")

_LAYERS = 24  # of a page
_NUMBERED = 32  # most experts whose cells are numbered


@dataclass(frozen=True)
class LayerLoads(InLayer):
    """One layer.

    loads: (E,), the number of tokens that each expert was sent, with class and register tokens
    scores: (E,), the mean score of each expert over all tokens; tokens: the number of tokens
    """

    path: str
    loads: Tensor
    scores: Tensor
    tokens: int

    @property
    def relative(self) -> Tensor:
        """The loads over an equal load, (E,)."""
        return self.loads / self.loads.mean()

    @property
    def entropy(self) -> float:
        """The entropy of the loads over its maximum: 1 for equal loads."""
        shares = self.loads / self.loads.sum()
        return float(torch.special.entr(shares).sum()) / max(math.log(len(shares)), 1e-9)


def expert_loads(model: nn.Module, samples: list[Sample], layers: tuple[int, ...] | None = None) -> list[LayerLoads]:
    """Return the loads of the experts in the selected layers. Raises UserError if no layer has experts."""
    mixers: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if isinstance(module, Experts):
            mixers[path] = module
    if not mixers:
        raise UserError("experts: no layer of this model has experts; use a run with channel_mixer=experts")
    paths = select_layers(mixers, layers)
    chosen: dict[str, list[Tensor]] = {path: [] for path in paths}
    scores: dict[str, list[Tensor]] = {path: [] for path in paths}

    def keep(path: str, mixer: Experts, x: Tensor, seq: Seq | None = None) -> None:
        valid = None if seq is None else seq.valid
        _, token_scores = mixer.scores(x)
        choices = mixer.choose(token_scores, valid)
        if valid is None:
            valid = torch.ones_like(x[..., 0], dtype=torch.bool)
        chosen[path].append(choices[valid])  # (n, E)
        scores[path].append(token_scores[valid])

    for sample in samples:
        hooks = []
        for path in paths:
            hook = mixers[path].register_forward_pre_hook(lambda mixer, args, path=path: keep(path, mixer, *args))
            hooks.append(hook)
        forward_once(model, sample.batch, hooks)
    layer_loads = []
    for path in paths:
        choices = torch.cat(chosen[path])  # (tokens, E)
        loads = choices.sum(0).float()
        mean_scores = torch.cat(scores[path]).mean(0)
        layer_loads.append(LayerLoads(path, loads, mean_scores, len(choices)))
    return layer_loads


def pages(layers: list[LayerLoads], samples: str) -> Iterator[Page]:
    """Yield experts.png: a row for each layer, a cell for each expert, the most loaded one first."""
    title = f"Tokens that each expert is sent over an equal share, the most first, of {samples}"
    largest = max(float(layer.relative.max()) for layer in layers)
    for shown in split_pages(layers, _LAYERS):
        experts = max(len(layer.loads) for layer in shown)
        table = torch.full((len(shown), experts), torch.nan)
        numbers = []
        for row, layer in enumerate(shown):
            table[row, : len(layer.loads)] = layer.relative.sort(descending=True).values
            for column, expert in enumerate(layer.loads.argsort(descending=True).tolist()):
                colour = "white" if float(table[row, column]) < 0.6 * largest else INK
                numbers.append(text(column, row, str(expert), 6, colour))
        marks: list[Heat | Mark] = [Heat(table, largest, stretched=True)]
        if experts <= _NUMBERED:
            marks += numbers
        panel = Panel(marks, y_names=[layer.name for layer in shown], xlabel="experts, by their number", bar=True)
        size = (max(4.0, min(12.0, 0.5 * experts)), 0.3 * len(shown) + 0.8)
        yield Page("experts", title, [[panel]], size)


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the loads of the experts over the selected samples."""
    samples = load_samples(loaded, options)
    layers = expert_loads(loaded.model, samples, options.layers)
    return InspectionResult(
        numbers={"samples": [sample.index for sample in samples], "layers": [_numbers(layer) for layer in layers]},
        rows=[_row(layer) for layer in layers],
        pages=pages(layers, samples_name(samples)),
        summary=f"Of {samples_name(samples)}. Loads are over an equal share; entropy is over that of equal loads",
    )


def _numbers(layer: LayerLoads) -> dict[str, object]:
    return {
        "path": layer.path,
        "tokens": layer.tokens,
        "loads": [int(load) for load in layer.loads],
        "scores": to_json(layer.scores),
        "entropy": layer.entropy,
    }


def _row(layer: LayerLoads) -> dict[str, str]:
    return {
        "layer": layer.name,
        "tokens": f"{layer.tokens:,}",
        "largest load": f"{float(layer.relative.max()):.2f}x",
        "smallest": f"{float(layer.relative.min()):.2f}x",
        "without tokens": f"{int((layer.loads == 0).sum())} of {len(layer.loads)}",
        "entropy": f"{layer.entropy:.3f}",
    }
