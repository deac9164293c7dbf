"""`blockyard inspect norms`: the norms of tokens after each block, and the share that stands out.

Source: Darcet et al. 2024, Vision Transformers Need Registers (arXiv 2309.16588), section 2.1: a few tokens of large
    norm carry facts of the whole image; with registers they are gone
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockyard.errors import UserError
from blockyard.evaluate.inside import FACTOR, outlier_share, token_norms
from blockyard.inspect._canvas import HIGHLIGHT, INK, split_pages
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Page, Panel, grid, mark
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name
from blockyard.runs.load import Loaded

OPTIONS = ("sample", "samples")

_PANELS = 12  # of a page
_BINS = 40


@dataclass(frozen=True)
class LayerNorms:
    """One place in the stream: `stream`, before the first block, or the output of a block.

    tokens: norms of all real tokens of all samples (n,); prefix: norms of class and register tokens (m,)
    """

    name: str
    tokens: Tensor
    prefix: Tensor

    @property
    def median(self) -> float:
        """The median norm of tokens without the prefix."""
        return float(self.tokens.median())

    @property
    def outliers(self) -> float:
        """The share of tokens with a norm above FACTOR times the median."""
        return outlier_share(self.tokens)


@torch.no_grad()
def layer_norms(model: nn.Module, samples: list[Sample]) -> list[LayerNorms]:
    """Return the norms of a model's tokens, block by block. Raises UserError for a model of several streams."""
    tokens: dict[str, list[Tensor]] = {}
    prefix: dict[str, list[Tensor]] = {}
    for sample in samples:
        try:
            by_name, real, num_prefix = token_norms(model, sample.batch)
        except ValueError as error:
            raise UserError(f"norms: {error}") from error
        for name, norms in by_name.items():
            prefix.setdefault(name, []).append(norms[0, :num_prefix])
            tokens.setdefault(name, []).append(norms[0, num_prefix:][real[0, num_prefix:]])
    return [LayerNorms(name, torch.cat(tokens[name]), torch.cat(prefix[name])) for name in tokens]


def pages(layers: list[LayerNorms], samples: str) -> Iterator[Page]:
    """Yield norms.png, a panel for the stream and for each block; norms beyond the dashed line stand out."""
    title = (
        f"Norms of the tokens of {samples}; dashed: {FACTOR:g} times the median; marks below: class and register tokens"
    )
    for page_layers in split_pages(layers, _PANELS):
        panels = [_panel(layer) for layer in page_layers]
        yield Page("norms", title, grid(panels, 4), (2.8, 2.0))


def _panel(layer: LayerNorms) -> Panel:
    at_bottom = [0.02] * len(layer.prefix)
    marks = [
        mark("hist", layer.tokens.numpy(), bins=_BINS, color=INK, log=True),
        mark("axvline", FACTOR * layer.median, color=HIGHLIGHT, linestyle="--", linewidth=0.9),
        mark("plot", layer.prefix.numpy(), at_bottom, "|", color=HIGHLIGHT, at_edge=True),
    ]
    title = f"{layer.name.replace('.', ' ')}: {layer.outliers:.1%} stand out"
    return Panel(marks, title, numbers=True)


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the norms of the tokens of the selected samples, block by block."""
    samples = load_samples(loaded, options)
    layers = layer_norms(loaded.model, samples)
    return InspectionResult(
        numbers={
            "samples": [sample.index for sample in samples],
            "factor": FACTOR,
            "layers": [_numbers(layer) for layer in layers],
        },
        rows=[_row(layer) for layer in layers],
        pages=pages(layers, samples_name(samples)),
        summary=f"Of {samples_name(samples)}. stand out: norms of more than {FACTOR:g} times the median",
    )


def _numbers(layer: LayerNorms) -> dict[str, object]:
    return {
        "name": layer.name,
        "outliers": layer.outliers,
        "norms": to_json(layer.tokens),
        "prefix": to_json(layer.prefix),
    }


def _row(layer: LayerNorms) -> dict[str, str]:
    return {
        "after": layer.name.replace(".", " "),
        "median norm": f"{layer.median:.3g}",
        "largest": f"{float(layer.tokens.max()):.3g}",
        "stand out": f"{layer.outliers:.2%}",
        "class and registers": f"{float(layer.prefix.mean()):.3g}" if len(layer.prefix) else "",
    }
