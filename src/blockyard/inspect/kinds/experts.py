"""`blockyard inspect experts`: how many tokens each expert of a mixture is sent, layer by layer.

Source: Jiang et al. 2024, Mixtral of Experts (arXiv 2401.04088), section 5
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from blockyard.channel_mixer.experts import Experts
from blockyard.contracts import Seq
from blockyard.errors import UserError
from blockyard.inspect.figures._canvas import SEQUENTIAL, add_colorbar, canvas, save, split_pages
from blockyard.inspect.labels import layer_name
from blockyard.inspect.options import Options
from blockyard.inspect.recorded_calls import forward_once
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name, select_layers
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "sample", "samples")


@dataclass(frozen=True)
class LayerLoads:
    """One layer. loads: (E,), the tokens that each expert was sent, class and register tokens among them.

    scores: (E,), the mean score of each expert over all tokens; tokens: how many those are
    """

    path: str
    loads: Tensor
    scores: Tensor
    tokens: int

    @property
    def name(self) -> str:
        """The readable name of the layer."""
        return layer_name(self.path).removesuffix(" channel")

    @property
    def relative(self) -> Tensor:
        """The loads over an equal one, (E,)."""
        return self.loads / self.loads.mean()

    @property
    def entropy(self) -> float:
        """The entropy of the loads over its maximum: 1 where they are equal."""
        shares = self.loads / self.loads.sum()
        return float(torch.special.entr(shares).sum()) / max(math.log(len(shares)), 1e-9)


def expert_loads(model: nn.Module, samples: list[Sample], layers: tuple[int, ...] | None = None) -> list[LayerLoads]:
    """Return the loads of the experts in the selected layers. Raises UserError where no layer has experts."""
    mixers: dict[str, nn.Module] = {
        path: module for path, module in model.named_modules() if isinstance(module, Experts)
    }
    if not mixers:
        raise UserError("experts: no layer of this model has experts; use a run with channel_mixer=experts")
    paths = select_layers(mixers, layers)
    chosen: dict[str, list[Tensor]] = {path: [] for path in paths}
    scores: dict[str, list[Tensor]] = {path: [] for path in paths}

    def keep(path: str, mixer: Experts, x: Tensor, seq: Seq | None = None) -> None:
        real = None if seq is None else seq.valid
        _, of_tokens = mixer.scores(x)
        mask = torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real
        chosen[path].append(mixer.choose(of_tokens, real)[mask])  # (n, E)
        scores[path].append(of_tokens[mask])

    for sample in samples:
        hooks = [
            mixers[path].register_forward_pre_hook(lambda mixer, args, path=path: keep(path, mixer, *args))
            for path in paths
        ]
        forward_once(model, sample.batch, hooks)
    return [
        LayerLoads(path, choices.sum(0).float(), torch.cat(scores[path]).mean(0), len(choices))
        for path in paths
        for choices in [torch.cat(chosen[path])]
    ]


_LAYERS = 24  # of a page


def draw_loads(layers: list[LayerLoads], of: str, folder: Path) -> Iterator[Path]:
    """Draw experts.png: a row for each layer, a cell for each expert, the most loaded one first."""
    title = f"Tokens that each expert is sent over an equal share, the most first, of {of}"
    largest = max(float(layer.relative.max()) for layer in layers)
    for page, part in enumerate(split_pages(len(layers), _LAYERS)):
        shown = [layers[index] for index in part]
        count = max(len(layer.loads) for layer in shown)
        table = torch.full((len(shown), count), torch.nan)
        for row, layer in enumerate(shown):
            table[row, : len(layer.loads)] = layer.relative.sort(descending=True).values
        with canvas(1, 1, (max(4.0, min(12.0, 0.5 * count)), 0.3 * len(shown) + 0.8), title) as (figure, axes):
            panel = axes[0][0]
            image = panel.imshow(table.numpy(), cmap=SEQUENTIAL, vmin=0, vmax=largest, aspect="auto")
            for row, layer in enumerate(shown if count <= 32 else []):
                for column, expert in enumerate(layer.loads.argsort(descending=True).tolist()):
                    colour = "white" if float(table[row, column]) < 0.6 * largest else "black"
                    panel.text(column, row, str(expert), ha="center", va="center", fontsize=6, color=colour)
            panel.set_yticks(range(len(shown)), [layer.name for layer in shown])
            panel.set_xticks([])
            panel.set_xlabel("experts, by their number")
            add_colorbar(figure, image, panel)
            yield save(figure, folder, "experts", page)


def inspect(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Return the loads of the experts over the selected samples."""
    samples = load_samples(loaded, options)
    layers = expert_loads(loaded.model, samples, options.layers)
    return InspectionResult(
        numbers={"samples": [sample.index for sample in samples], "layers": [_numbers(layer) for layer in layers]},
        columns=("layer", "tokens", "largest load", "smallest", "without tokens", "entropy"),
        rows=[_row(layer) for layer in layers],
        figures=draw_loads(layers, samples_name(samples), folder),
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


def _row(layer: LayerLoads) -> tuple[str, ...]:
    return (
        layer.name,
        f"{layer.tokens:,}",
        f"{float(layer.relative.max()):.2f}x",
        f"{float(layer.relative.min()):.2f}x",
        f"{int((layer.loads == 0).sum())} of {len(layer.loads)}",
        f"{layer.entropy:.3f}",
    )
