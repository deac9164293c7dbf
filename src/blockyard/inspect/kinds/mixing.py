"""`blockyard inspect mixing`: the tokens from which each token reads, in each layer of any mixer, and a pattern's name.

Equation: M_ij = |dy_i/dx_j|_F / sqrt(D), the norms of the blocks of a mixer's Jacobian, so that the identity gives 1;
    see jacobian.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blockyard.contracts import TokenMixer
from blockyard.errors import UserError
from blockyard.inspect._canvas import ZERO_COLOUR, panel_side, split_pages
from blockyard.inspect.jacobian import block_norms, effective_rank
from blockyard.inspect.labels import InLayer, token_labels
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Heat, Page, Panel, box, grid
from blockyard.inspect.recorded_calls import RecordedCall, mixing_modules, record_calls, repeat
from blockyard.inspect.result import JSON_SIDE, InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name, select_layers
from blockyard.ops.maps import parts
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "sample", "samples", "prompt", "of", "probes")

_MAX_ELEMENTS = 2**21  # of one activation
_MAX_COPIES = 512
_PANELS = 12  # of a page
_COLUMNS = 4
_DECADES = 3  # of a logarithmic colour scale
_SIDE = 512  # most rows and columns of a table that is drawn
_GRID_LABELS = 8  # the size of a panel without labels, as a number of labels
VISIBLE = 1e-5  # relative to the largest entry: smaller entries count as zero
ZERO = 1e-12  # relative to the largest entry: float64 leaves less of an exact zero
EDGE = 1e-2  # relative to the largest entry: a drop from here to zero in one step is an edge


def pattern(norms: Tensor, grid: tuple[int, ...] | None = None, prefix: int = 0) -> str:
    """Return the name of the pattern of a table (N, M) of norms; entries below 1e-5 of the largest count as zero.

    A band and a window have an edge: entries beyond it are exactly zero, or entries just inside of it are large. A
    table without an edge reaches over the whole sequence and fades; the stated distance is the one beyond which it is
    below 1e-5.
    """
    norms = norms / norms.max().clamp_min(torch.finfo(norms.dtype).tiny)
    nonzero = norms > VISIBLE
    if not nonzero.any():
        return "nothing"
    if nonzero.all():
        return "all"
    if nonzero.shape[0] != nonzero.shape[1]:
        return _share(nonzero)
    count = len(nonzero)
    index = torch.arange(count)
    distance = index[:, None] - index  # (N, N), from an output back to an input
    back = int(distance[nonzero].max())
    ahead = -int(distance[nonzero].min())
    if torch.equal(nonzero, torch.ones_like(nonzero).tril()):
        return "causal: itself and all previous tokens"
    if torch.equal(nonzero, torch.ones_like(nonzero).tril(-1)):
        return "strictly causal: all previous tokens"
    if back == ahead == 0 and _has_edge(norms, distance != 0, distance == 0):
        return "itself only"
    if ahead > 0:
        extent = "all"
    elif ahead == 0:
        extent = "causal"
    else:
        extent = "strictly causal"
    if grid is not None and len(grid) == 2 and prefix == 0 and grid[0] * grid[1] == count:
        row_index = index // grid[1]
        column_index = index % grid[1]
        rows = (row_index[:, None] - row_index).abs()  # (N, N), the distance in rows
        columns = (column_index[:, None] - column_index).abs()  # (N, N)
        down = int(rows[nonzero].max())
        across = int(columns[nonzero].max())
        if down < grid[0] - 1 or across < grid[1] - 1:
            if _has_edge(norms, rows > down, rows == down) and _has_edge(norms, columns > across, columns == across):
                return f"window of {2 * down + 1} x {2 * across + 1}"
            return f"{extent}, fading: below 1e-5 beyond {down} rows and {across} columns"
    elif back < count - 1 and ahead < count - 1:
        ends_back = _has_edge(norms, distance > back, distance == back)
        if ends_back and _has_edge(norms, distance < -ahead, distance == -ahead):
            if ahead == 0:
                reach = " and itself"
            elif ahead > 0:
                reach = f" to {ahead} after"
            else:
                reach = ""
            return f"band: {back} before{reach}"
        if ahead > 0:
            return f"{extent}, fading: below 1e-5 beyond {back} before and {ahead} after"
        return f"{extent}, fading: below 1e-5 beyond {back}"
    if ahead <= 0:
        hidden = (~nonzero[distance >= -ahead]).float().mean()
        return f"{extent}, below 1e-5 in {float(hidden):.0%} of its pairs"
    return _share(nonzero)


def _has_edge(norms: Tensor, beyond: Tensor, edge: Tensor) -> bool:
    """Return whether entries `beyond` are zero, or entries at the `edge`, just inside of it, are large."""
    outside = norms[beyond]
    if not outside.numel() or outside.max() <= ZERO:
        return True
    return bool(norms[edge].max() >= EDGE)


def _share(nonzero: Tensor) -> str:
    return f"{float(nonzero.float().mean()):.0%} of all pairs"


@dataclass
class LayerMixing(InLayer):
    """One layer: `norms` (N, M), the mean over samples of |dy_i/dx_j|_F / sqrt(D).

    variation: the standard deviation of the samples' norms, over the norm of their mean; None for one sample
    probes: random directions a token, 0 where exact
    error: the standard error of the estimate, as a share of the typical entry; 0 where exact
    memory: the columns are the tokens of another sequence
    rows, columns: labels of outputs (N) and inputs (M): their text for one sample, their indices for several
    """

    path: str
    mixer: str
    norms: Tensor
    variation: float | None
    probes: int
    error: float
    memory: bool
    prefix: int
    grid: tuple[int, ...] | None
    rows: list[str]
    columns: list[str]


def mixing_layers(
    model: nn.Module,
    samples: list[Sample],
    *,
    of: str = "mixer",
    layers: tuple[int, ...] | None = None,
    probes: int | None = None,
) -> list[LayerMixing]:
    """Return the token mixing of `model`, layer by layer. Sequences of different lengths are cut to the shortest.

    of: the token "mixer" alone, or the whole "block"; probes: 0 is exact, None is exact up to 4,096 directions
    Raises UserError for a layer that does not exist, and for a mixer that the model never calls as a module.
    """
    all_modules = mixing_modules(model, of)
    modules = {path: all_modules[path] for path in select_layers(all_modules, layers)}
    estimates: dict[str, list[tuple[Tensor, float, int]]] = {path: [] for path in modules}
    first_calls: dict[str, RecordedCall] = {}
    for sample in samples:
        single = record_calls(model, modules, sample.batch)
        elements = max((call.x.numel() for call in single.values()), default=1)
        # A copy of the sample for each direction of a backward pass, as many as memory allows.
        copies = max(1, min(_MAX_COPIES, _MAX_ELEMENTS // elements))
        repeated = record_calls(model, modules, repeat(sample.batch, copies))
        for path in modules:
            if path not in repeated:
                raise UserError(f"{path} is never called as a module; of=block inspects the whole block")
            first_calls.setdefault(path, single[path])
            estimates[path].append(block_norms(repeated[path], probes))
    labelled = samples[0] if len(samples) == 1 else None  # a mean over several samples has no text
    return [_layer(model, labelled, path, modules[path], first_calls[path], estimates[path]) for path in modules]


def to_double(model: nn.Module, samples: list[Sample]) -> tuple[nn.Module, list[Sample]]:
    """Return copies in float64, where an exact zero differs from a small value."""
    copies = []
    for sample in samples:
        batch = sample.batch.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
        copies.append(replace(sample, batch=batch))
    return deepcopy(model).double(), copies


def _layer(
    model: nn.Module,
    sample: Sample | None,
    path: str,
    module: nn.Module,
    call: RecordedCall,
    estimates: list[tuple[Tensor, float, int]],
) -> LayerMixing:
    """Return the mixing of one layer from the estimates of each sample: norms, standard error and probes."""
    # Sequences of different lengths are compared on their common beginning.
    rows = min(len(norms) for norms, _, _ in estimates)
    columns = min(norms.shape[1] for norms, _, _ in estimates)
    tables = torch.stack([norms[:rows, :columns] for norms, _, _ in estimates])  # (samples, N, M)
    mean = tables.mean(0)
    deviation = (tables - mean).square().sum((1, 2)).mean().sqrt() / mean.norm().clamp_min(1e-30)
    text: list[str] = []
    input_text: list[str] = []
    if sample is not None:
        text = sample.text_at(path)
        input_text = sample.memory_text if call.reads_memory else text
    mixer = next(part for part in module.modules() if isinstance(part, TokenMixer))  # the module itself, or in a block
    name = type(mixer).__name__
    if mixer is not module:
        name = f"{type(module).__name__}({name})"
    return LayerMixing(
        path=path,
        mixer=name,
        norms=mean,
        variation=float(deviation) if len(estimates) > 1 else None,
        probes=estimates[0][2],
        error=max(error for _, error, _ in estimates) / math.sqrt(len(estimates)),
        memory=call.reads_memory,
        prefix=call.seq.num_prefix,
        grid=call.seq.grid,
        rows=token_labels(text, model, call.seq)[:rows],
        columns=token_labels(input_text, model, call.input_seq)[:columns],
    )


def pages(layers: list[LayerMixing], averaged: str) -> Iterator[Page]:
    """Yield mixing.png for all layers, and mixing_grid.png for layers with tokens on a grid.

    averaged: the samples and the method, for the title
    """
    title = (
        f"|dy_i/dx_j| / sqrt(D): how strongly output i (row) depends on input j (column). {averaged}; "
        "grey is below 1e-6 of the maximum"
    )
    for page_layers in split_pages(layers, _PANELS):
        labels = max(max(layer.norms.shape) for layer in page_layers)
        yield _page("mixing", title, [_table(layer) for layer in page_layers], labels)
    on_grid = [layer for layer in layers if layer.grid is not None and len(layer.grid) == 2 and not layer.memory]
    title = "The same for the output of the middle token (framed), on the grid of inputs; grey is below 1e-6"
    for page_layers in split_pages(on_grid, _PANELS):
        yield _page("mixing_grid", title, [_middle(layer) for layer in page_layers], _GRID_LABELS)


def _page(name: str, title: str, panels: list[Panel], labels: int) -> Page:
    side = panel_side(min(_COLUMNS, len(panels)), labels)
    return Page(name, title, grid(panels, _COLUMNS), (side + 0.5, side))


def _table(layer: LayerMixing) -> Panel:
    panel = Panel([_heat(merge_neighbours(layer.norms, _SIDE))], f"{layer.name}: {layer.mixer}", bar=True)
    panel.x_tokens = layer.columns if len(layer.columns) <= _SIDE else []  # merged neighbours have no label
    panel.y_tokens = layer.rows if len(layer.rows) <= _SIDE else []
    return panel


def _middle(layer: LayerMixing) -> Panel:
    assert layer.grid is not None
    rows, columns = layer.grid
    middle = layer.prefix + (rows // 2) * columns + columns // 2
    heat = _heat(layer.norms[middle, layer.prefix :].reshape(layer.grid))
    return Panel([heat, box(rows // 2, columns // 2)], f"{layer.name}: {layer.mixer}", bar=True)


def _heat(table: Tensor) -> Heat:
    """Return a table; on a logarithmic scale if the largest entries would hide the rest. Grey is zero."""
    end = max(float(table.max()), 1e-30)
    visible = table[table > end * 1e-6]
    masked = table.masked_fill(table <= end * 1e-6, torch.nan)
    if len(visible) and float(visible.quantile(0.5)) < end / 8:
        low = max(float(visible.min()), end * 10**-_DECADES)
        if low < end:
            return Heat(masked, end, low, log=True, missing=ZERO_COLOUR)
    return Heat(masked, end, missing=ZERO_COLOUR)


def merge_neighbours(norms: Tensor, side: int) -> Tensor:
    """Return norms of at most `side` rows and columns, of merged blocks of the Jacobian."""
    if max(norms.shape) <= side:
        return norms
    rows = parts(norms.shape[0], side, norms)
    columns = parts(norms.shape[1], side, norms)
    # The square of a block's Frobenius norm is the sum over its parts.
    return (rows @ norms.square() @ columns.T).sqrt()


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the token mixing of each selected layer."""
    model, samples = to_double(loaded.model, load_samples(loaded, options))
    layers = mixing_layers(model, samples, of=options.of, layers=options.layers, probes=options.probes)
    method = "exact"
    if probes := layers[0].probes:
        error = max(layer.error for layer in layers)
        method = f"estimated from {probes} random directions a token (standard error {error:.0%})"
    start = "Mean over" if len(samples) > 1 else "Of"
    averaged = f"{start} {samples_name(samples)}; {method}"
    return InspectionResult(
        numbers={
            "of": options.of,
            "samples": [sample.index for sample in samples],
            "layers": [_numbers(layer) for layer in layers],
        },
        rows=[_row(layer) for layer in layers],
        pages=pages(layers, averaged),
        summary=f"{averaged}. gain: |dy/dx|_F / sqrt(N D); from itself: the diagonal's share of the squared norm; "
        "rank: singular values above a thousandth of the largest, and effective rank",
    )


def layer_pattern(layer: LayerMixing) -> str:
    """Return the name of a layer's pattern; the grid applies to its own sequence only, not to a memory."""
    grid = None if layer.memory else layer.grid
    return pattern(layer.norms, grid, layer.prefix)


def _numbers(layer: LayerMixing) -> dict[str, object]:
    return {
        "path": layer.path,
        "mixer": layer.mixer,
        "pattern": layer_pattern(layer),
        "rank": rank(layer.norms),
        "effective_rank": effective_rank(torch.linalg.svdvals(layer.norms)),
        "differs": layer.variation,
        "probes": layer.probes,
        "standard_error": None if math.isnan(layer.error) else layer.error,
        "prefix": layer.prefix,
        "grid": layer.grid,
        "rows": layer.rows,
        "columns": layer.columns,
        "norms": to_json(merge_neighbours(layer.norms, JSON_SIDE)),
    }


def _row(layer: LayerMixing) -> dict[str, str]:
    power = layer.norms.square()
    cells = {
        "layer": layer.name,
        "mixer": layer.mixer,
        "reads from": layer_pattern(layer),
        "gain": f"{float(power.mean(0).sum().sqrt()):.3g}",
        "from itself": "",
        "rank": f"{rank(layer.norms)} ({effective_rank(torch.linalg.svdvals(layer.norms)):.1f})",
        "varies between samples": "",
    }
    if not layer.memory:
        share = float(power.diagonal().sum() / power.sum().clamp_min(1e-30))
        cells["from itself"] = f"{share:.0%}"
    if layer.variation is not None:
        cells["varies between samples"] = f"{layer.variation:.1%}"
    return cells


def rank(norms: Tensor) -> int:
    """Return the number of singular values of a matrix above a thousandth of the largest."""
    return int(torch.linalg.matrix_rank(norms, rtol=1e-3))
