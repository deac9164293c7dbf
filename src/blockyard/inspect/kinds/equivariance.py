"""`blockyard inspect equivariance`: the difference of permuted outputs and outputs of permuted tokens.

Source: Torralba, Isola and Freeman 2024, Foundations of Computer Vision, section 26.8 and figure 26.15: attention and
    mixers of each token alone are equivariant, f(P x) = P f(x); positions, masks and convolutions break it
Equation: |f(P x) - P f(x)|_F / |f(x)|_F, with the positions of the model and without them

    x         a b c d      tokens as the embedder gives them, at positions 0 1 2 3
    P x       c a d b      other tokens at the same positions
    f(P x)    beside P f(x), token by token

Without positions, every token has the coordinates of the first one, and facts of pairs and of neighbours are not read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Position, Seq
from blockyard.data.splits.order import mix
from blockyard.errors import UserError
from blockyard.inspect._canvas import panel_side, split_pages
from blockyard.inspect.labels import real_tokens
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Heat, Page, Panel, picture
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name
from blockyard.model._record import Record
from blockyard.position.none import NoPosition
from blockyard.runs.load import Loaded

OPTIONS = ("sample", "samples", "permute")

PREDICTION = "prediction"
EXACT = 1e-10  # in float64; rounding leaves about 1e-15
_BLOCKS = 8  # columns of a page
_NAMES = {"patches": "a random order of the tokens", "shift": "all tokens one place on"}


@dataclass(frozen=True)
class PermutedStage:
    """One place in the model, such as the output of a block, over all samples.

    relative: |f(P x) - P f(x)|_F / |f(x)|_F, of all samples together
    tokens: (N,) the norms of f(P x) - P f(x) of the first sample; None for a prediction of the whole sequence
    """

    name: str
    relative: float
    tokens: Tensor | None


@dataclass(frozen=True)
class Permuted:
    """The differences "with" positions and "without".

    stages: by arm, in order
    order: (N,) of the first sample, P x = x[order]; grid: the layout of its tokens, None if they fill none
    """

    stages: dict[str, list[PermutedStage]]
    order: Tensor
    grid: tuple[int, ...] | None


@torch.no_grad()
def permuted(model: nn.Module, samples: list[Sample], permute: str) -> Permuted:
    """Return the difference between f(P x) and P f(x) after each block, "with" positions and "without".

    permute: "patches", a random order for each sample, or "shift", every token one place on, the last one first.
    In float64: an equivariant block has a difference of about 1e-15. Raises UserError for a model with blocks over
    anything else than its tokens.
    """
    if samples[0].batch.source is not None:
        raise UserError("equivariance: this model reads a source too; use an encoder or a decoder of one sequence")
    model = copy.deepcopy(model).double()  # other kinds of inspection read the model as it was trained
    schemes = [getattr(model, "position", None)]
    schemes += dict(getattr(model, "positions", {})).values()  # of kinds of layers
    arms = ["without"]
    if any(isinstance(scheme, Position) and scheme.acts_on for scheme in schemes):
        arms = ["with", "without"]
    stages: dict[str, list[PermutedStage]] = {}
    seqs = [_record(model, sample.batch, None)["seq"] for sample in samples]
    orders = [_order(seq, sample, permute) for seq, sample in zip(seqs, samples, strict=True)]
    for arm in arms:
        squares: dict[str, list[float]] = {}  # of the difference and of the output, over all samples
        tokens: dict[str, Tensor | None] = {}
        with _positions(model, arm == "with"):
            for sample, order in zip(samples, orders, strict=True):
                first = sample is samples[0]
                for name, same, other, of_tokens in _pairs(model, sample, order):
                    difference = other - same
                    total = squares.setdefault(name, [0.0, 0.0])
                    total[0] += float(difference.square().sum())
                    total[1] += float(same.square().sum())
                    if first:
                        tokens[name] = difference.norm(dim=-1) if of_tokens else None
        stages[arm] = []
        for name, (of_difference, of_output) in squares.items():
            relative = (of_difference / max(of_output, 1e-300)) ** 0.5
            stages[arm].append(PermutedStage(name, relative, tokens[name]))
    return Permuted(stages, orders[0], seqs[0].grid)


def _order(seq: Seq, sample: Sample, permute: str) -> Tensor:
    """Return P as indices (N,): all real tokens in another order; padding keeps its positions."""
    count = len(seq) - seq.num_prefix
    real = real_tokens(seq) - seq.num_prefix
    if permute == "shift":
        moved = torch.arange(real).roll(1)
    else:
        generator = torch.Generator().manual_seed(mix("permute", sample.index or 0, real))
        moved = torch.randperm(real, generator=generator)
    return torch.cat([moved, torch.arange(real, count)])


def _pairs(model: nn.Module, sample: Sample, order: Tensor) -> Iterator[tuple[str, Tensor, Tensor, bool]]:
    """Yield the name of a place, P f(x) and f(P x) of its real tokens, and whether they are tokens (N, D)."""
    plain = _record(model, sample.batch, None)
    other = _record(model, sample.batch, order)
    seq: Seq = plain["seq"]
    skip = seq.num_prefix
    real = real_tokens(seq) - skip
    for name in plain:
        if name in ("stream", "normed") or name.startswith("block."):
            yield name, plain[name][0, skip:][order][:real], other[name][0, skip:][:real], True
    prediction = plain[PREDICTION][0]
    other_prediction = other[PREDICTION][0]
    if prediction.ndim == 2 and len(prediction) == len(order):
        yield PREDICTION, prediction[order][:real], other_prediction[:real], True
    else:  # one for the whole sequence
        yield PREDICTION, prediction, other_prediction, False


def _record(model: Any, batch: Batch, order: Tensor | None) -> Record:
    """Return the intermediates of a forward pass of one sample with its embedded tokens in this order.

    Raises UserError for a model with blocks over anything else than its tokens.
    """
    steps = getattr(model, "steps", None)
    assert steps is not None, "every model of ours names its intermediates"
    batch = batch.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)

    def reorder(_: nn.Module, __: Any, output: tuple[Tensor, Seq]) -> tuple[Tensor, Seq]:
        x, seq = output
        if order is None:
            return output
        if seq.features is not None:  # they belong to the token, the coordinates to its place
            seq.features = seq.features[:, order]
        return x[:, order], seq

    handle = model.embedder.register_forward_hook(reorder)
    try:
        record: Record = steps(batch)
    finally:
        handle.remove()
    seq = record.get("seq")
    stages = [name for name in record if name == "stream" or name.startswith("block.")]
    if not isinstance(seq, Seq) or not stages or any(record[name].shape[1] != len(seq) for name in stages):
        raise UserError(
            "equivariance: the blocks of this model do not run over its tokens; use an encoder or a decoder"
        )
    return record


@contextmanager
def _positions(model: Any, read: bool) -> Iterator[None]:
    """Put all tokens at the first one's coordinates inside this context, unless positions are read."""
    if read:
        yield
        return
    scheme: Position | None = getattr(model, "position", None)
    of_kinds = getattr(model, "positions", None)

    def at_one_place(_: nn.Module, __: Any, output: tuple[Tensor, Seq]) -> tuple[Tensor, Seq]:
        x, seq = output
        seq.coords = torch.zeros_like(seq.coords)
        return x, seq

    handle = model.embedder.register_forward_hook(at_one_place)
    if scheme is not None and not scheme.width:  # a code that is appended needs its channels
        model.position = NoPosition(model.ctx)
        model.positions = nn.ModuleDict()  # of kinds of layers
    try:
        yield
    finally:
        handle.remove()
        if scheme is not None:
            model.position = scheme
        if of_kinds is not None:
            model.positions = of_kinds


def pages(result: Permuted, sample: Sample, permute: str) -> Iterator[Page]:
    """Yield equivariance.png, rows with and without positions and a column for each block; first x and P x."""
    token_stages = {}
    for arm, stages in result.stages.items():
        token_stages[arm] = [stage for stage in stages if stage.tokens is not None]
    grid = _grid(result)
    pictures = _pictures(result, sample, grid)
    title = f"|f(Px) - Pf(x)| of each token of {sample.name}, P: {_NAMES[permute]}; one scale"
    for part in split_pages(range(len(next(iter(token_stages.values())))), _BLOCKS):
        end = 1e-12
        for stages in token_stages.values():
            for index in part:
                tokens = stages[index].tokens
                assert tokens is not None
                end = max(end, float(tokens.max()))
        rows = []
        for arm, stages in token_stages.items():
            panels = [Panel([image], name) for name, image in pictures.items()]
            for index in part:
                stage = stages[index]
                assert stage.tokens is not None
                table = Heat(stage.tokens.view(grid), end, stretched=grid[0] == 1)
                panels.append(Panel([table], f"{stage.name.replace('.', ' ')}: {stage.relative:.2g} of |f(x)|"))
            panels[0].ylabel = f"{arm} positions"
            rows.append(panels)
        width = panel_side(len(rows[0]), 12)
        height = 0.9 if grid[0] == 1 else width  # of a strip of tokens, or a square
        yield Page("equivariance", title, rows, (width, height), bar="|f(Px) - Pf(x)|")


def _grid(result: Permuted) -> tuple[int, int]:
    """Return the layout of the tokens: an image's patches if they fill one, else one row."""
    grid = result.grid
    tokens = len(result.order)
    if grid is not None and len(grid) == 2 and grid[0] * grid[1] == tokens:
        return grid[0], grid[1]
    return 1, tokens


def _pictures(result: Permuted, sample: Sample, grid: tuple[int, int]) -> dict[str, Heat]:
    """Return the sample's image, and its patches in the other order; empty if it has none or the grid does not fit."""
    image = sample.image
    rows, columns = grid
    if image is None or rows == 1 or image.shape[0] % rows or image.shape[1] % columns:
        return {}
    cells = image.unflatten(0, (rows, -1)).unflatten(2, (columns, -1)).transpose(1, 2).flatten(0, 1)
    permuted_cells = cells[result.order].unflatten(0, grid).transpose(1, 2)  # (rows, h, columns, w[, 3])
    return {"x": picture(image), "P x": picture(permuted_cells.flatten(0, 1).flatten(1, 2))}


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return |f(P x) - P f(x)| / |f(x)| after each block."""
    samples = load_samples(loaded, options)
    result = permuted(loaded.model, samples, options.permute)
    table_rows = []
    for stages in zip(*result.stages.values(), strict=True):
        row = {"after": stages[0].name.replace(".", " ")}
        for arm, stage in zip(result.stages, stages, strict=True):
            row[f"{arm} positions"] = "0" if stage.relative < EXACT else f"{stage.relative:.3g}"
        table_rows.append(row)
    numbers: dict[str, object] = {
        "samples": [sample.index for sample in samples],
        "permute": options.permute,
        "order": result.order.tolist(),
    }
    for arm, stages_of_arm in result.stages.items():
        numbers[f"{arm}_positions"] = [_numbers(stage) for stage in stages_of_arm]
    return InspectionResult(
        numbers=numbers,
        rows=table_rows,
        pages=pages(result, samples[0], options.permute),
        summary=f"|f(Px) - Pf(x)| / |f(x)| of {samples_name(samples)}, 0 below {EXACT:g}; {_verdict(result)}",
    )


def _numbers(stage: PermutedStage) -> dict[str, object]:
    tokens = None if stage.tokens is None else to_json(stage.tokens)
    return {"name": stage.name, "relative": stage.relative, "tokens": tokens}


def _verdict(result: Permuted) -> str:
    exact = {arm: all(stage.relative < EXACT for stage in stages) for arm, stages in result.stages.items()}
    if exact.get("with"):
        return "the positions of this model change nothing"
    if exact["without"]:
        return "without positions the model treats its tokens as a set"
    return "a mixer or a mask depends on the order of the tokens, also without positions"
