"""Which token reads from which, for any mixer: the norms of the blocks of its Jacobian.

Equation: M_ij = |dy_i/dx_j|_F / sqrt(D), so that a token handed on unchanged gives 1; see jacobian.py
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, TokenMixer
from blockyard.errors import UserError
from blockyard.inspect.jacobian import norms
from blockyard.inspect.recorded_calls import Call, call, mixing_modules, repeat
from blockyard.inspect.samples import Sample, chosen, labels, title

_NUMBERS = 2**21  # of one activation at a time


@dataclass
class LayerMixing:
    """One layer: `norms` (N, M), the mean over samples of |dy_i/dx_j|_F / sqrt(D).

    differs: how far apart the samples' norms are: root of their variance's sum, over the mean's norm; None for one
    error: the estimate's standard error, as a share of the typical entry; 0 where exact
    memory: the columns are the tokens of another row
    rows, columns: names of outputs (N) and inputs (M): their text for one sample, their places for several
    """

    path: str
    mixer: str
    norms: Tensor
    differs: float | None
    probes: int
    error: float
    memory: bool
    prefix: int
    grid: tuple[int, ...] | None
    rows: list[str]
    columns: list[str]

    @property
    def name(self) -> str:
        """The layer in words."""
        return title(self.path)


def mixing(
    model: nn.Module,
    samples: list[Sample],
    *,
    of: str = "mixer",
    layers: tuple[int, ...] | None = None,
    probes: int | None = None,
) -> list[LayerMixing]:
    """The token-mixing pictures of `model`, layer by layer. Rows of different lengths are cut to the shortest.

    of: the token "mixer" alone, or the whole "block"; probes: 0 is exact, None is exact up to 4,096 directions
    Raises UserError where a layer is not there, or a mixer is never called by itself.
    """
    modules = mixing_modules(model, of)
    wanted = chosen(modules, layers)
    found: dict[str, list[tuple[Tensor, float, int]]] = {path: [] for path in wanted}
    first: dict[str, Call] = {}
    for sample in samples:
        row = call(model, {path: modules[path] for path in wanted}, sample.batch)
        size = max((one.x.numel() for one in row.values()), default=1)
        copies = max(1, min(512, _NUMBERS // size))
        many = call(model, {path: modules[path] for path in wanted}, repeat(sample.batch, copies))
        for path in wanted:
            if path not in many:
                raise UserError(f"{path} is never called by itself in this model; of=block looks at the whole block")
            first.setdefault(path, row[path])
            found[path].append(norms(many[path], probes))
    texts = samples[0] if len(samples) == 1 else None  # a mean over several is of no sample's letters
    return [_layer(model, texts, path, modules[path], first[path], found[path]) for path in wanted]


def in_double(model: nn.Module, samples: list[Sample]) -> tuple[nn.Module, list[Sample]]:
    """Copies in float64, in which a zero can be told from what is only small."""
    rows = []
    for sample in samples:
        tensors = (t.double() if t is not None and t.is_floating_point() else t for t in sample.batch.tensors())
        rows.append(replace(sample, batch=Batch(*tensors)))
    return deepcopy(model).double(), rows


def _layer(
    model: nn.Module,
    sample: Sample | None,
    path: str,
    module: nn.Module,
    one: Call,
    found: list[tuple[Tensor, float, int]],
) -> LayerMixing:
    rows, columns = (min(table.shape[axis] for table, _, _ in found) for axis in (0, 1))
    tables = torch.stack([table[:rows, :columns] for table, _, _ in found])  # (samples, N, M)
    mean = tables.mean(0)
    spread = (tables - mean).square().sum((1, 2)).mean().sqrt() / mean.norm().clamp_min(1e-30)
    own, other = ([], []) if sample is None else (sample.own(path), sample.other)
    mixer = module if isinstance(module, TokenMixer) else next(m for m in module.modules() if isinstance(m, TokenMixer))
    return LayerMixing(
        path=path,
        mixer=type(mixer).__name__ if mixer is module else f"{type(module).__name__}({type(mixer).__name__})",
        norms=mean,
        differs=float(spread) if len(found) > 1 else None,
        probes=found[0][2],
        error=max(error for _, error, _ in found) / math.sqrt(len(found)),
        memory=one.memory,
        prefix=one.seq.num_prefix,
        grid=one.seq.grid,
        rows=labels(own, model, one.seq)[:rows],
        columns=labels(other if one.memory else own, model, one.read)[:columns],
    )
