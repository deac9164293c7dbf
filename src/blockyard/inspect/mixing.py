"""Which token reads from which, for any mixer: the norms of the blocks of its Jacobian.

Source: Hutchinson 1990, A stochastic estimator of the trace of the influence matrix, for random directions
Equation: M_ij = |dy_i/dx_j|_F / sqrt(D), so that a token handed on unchanged gives 1

Each row of a batch pulls another direction back through the same sample, so that nothing is asked of a
mixer but that its rows do not mix. Exact: the D unit directions of each token. Estimated: `probes` random
signs s a token, since the mean of |s^T J|^2 is |J|_F^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Block, Memory, Seq, TokenMixer
from blockyard.errors import UserError
from blockyard.inspect.subject import Sample, chosen, labels, title

EXACT = 4096  # so many directions or fewer are pulled back one by one
PROBES = 16
_NUMBERS = 2**21  # of one activation at a time
_SEED = 0


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


@dataclass
class Call:
    """What a module was called with: y = run(x). seq: the facts of y's row; read: those of x's."""

    run: Callable[[Tensor], Tensor]
    x: Tensor
    seq: Seq
    read: Seq

    @property
    def memory(self) -> bool:
        """Whether `x` is another row than that of the outputs."""
        return self.read is not self.seq


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


def mixing_modules(model: nn.Module, of: str) -> dict[str, nn.Module]:
    """Every block, or the outermost token mixers, by path. Raises UserError where there is none."""
    kind: type[nn.Module] = Block if of == "block" else TokenMixer
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if isinstance(module, kind) and not any(path.startswith(f"{outer}.") for outer in found):
            found[path] = module
    if not found:
        raise UserError(f"{type(model).__name__} has no token mixer, so there is no mixing to look at")
    return found


def repeat(batch: Batch, copies: int) -> Batch:
    """One row, so many times."""
    return Batch(*(t if t is None or t.ndim == 0 else t[:1].expand(copies, *t.shape[1:]) for t in batch.tensors()))


@contextmanager
def unfused(model: nn.Module) -> Iterator[None]:
    """A fused block never calls its mixers; unfused it computes the same."""
    fused = [block for block in model.modules() if isinstance(block, Block) and getattr(block, "fused", False)]
    for block in fused:
        block.fused = False
    try:
        yield
    finally:
        for block in fused:
            block.fused = True


def call(model: nn.Module, modules: dict[str, nn.Module], batch: Batch) -> dict[str, Call]:
    """What each of `modules` was last called with, in a forward pass in evaluation mode."""
    found: dict[str, Call] = {}
    handles = []
    for path, module in modules.items():

        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], path: str = path) -> None:
            named.pop("cache", None)
            found[path] = _call(module, *arguments, **named)

        handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    training = model.training
    model.eval()
    try:
        with unfused(model), torch.no_grad():
            model(**batch.arguments())
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return found


def _call(module: nn.Module, x: Tensor, seq: Seq, _: Any = None, memory: Memory | None = None) -> Call:
    if memory is not None and isinstance(module, TokenMixer):
        # Across two rows, what is mixed are the tokens of the memory.
        return Call(lambda m: module(x, seq, None, memory._replace(x=m)), memory.x, seq, memory.seq)
    return Call(lambda given: module(given, seq, None, memory), x, seq, seq)


def norms(one: Call, probes: int | None = None) -> tuple[Tensor, float, int]:
    """(N, M) norms of a call whose rows are all the same sample, their relative standard error, and the probes.

    0 probes in the answer means exact. Randomness is the same for every call.
    """
    x = one.x.detach()
    with torch.no_grad():
        _, count, width = one.run(x).shape
    if probes is None:
        probes = 0 if count * width <= EXACT else PROBES
    each = probes or width
    generator = torch.Generator().manual_seed(_SEED)
    signs = torch.randint(0, 2, (count, each, width), generator=generator) * 2 - 1  # (N, probes, D)
    directions = signs.to(x) if probes else torch.eye(width).to(x).expand(count, -1, -1)
    squares = torch.cat(list(_pulled(one, directions.reshape(count * each, width), each)))  # (N probes, M)
    squares = squares.unflatten(0, (count, each)) / width  # (N, probes, M)
    if not probes:
        return squares.sum(1).sqrt(), 0.0, 0
    mean = squares.mean(1)
    return mean.sqrt(), _error(squares, mean), probes


def _error(squares: Tensor, mean: Tensor) -> float:
    """The standard error of a norm as a share of it: the median over entries that are not nothing."""
    if squares.shape[1] < 2:
        return math.nan
    there = mean > mean.max() * 1e-10
    relative = squares.std(1) / math.sqrt(squares.shape[1]) / (2 * mean)  # of a root: half the square's
    return float(relative[there].median()) if there.any() else 0.0


def _pulled(one: Call, directions: Tensor, each: int) -> Iterator[Tensor]:
    """Squared lengths (chunk, M) of what each direction (rows of tokens, `each` a token) gives at every input."""
    copies = len(one.x)
    for start in range(0, len(directions), copies):
        part = directions[start : start + copies]
        x = one.x.detach().clone().requires_grad_()
        with torch.enable_grad():
            y = one.run(x)  # (copies, N, D)
            pull = torch.zeros_like(y)
            rows = torch.arange(len(part))
            pull[rows, (start + rows) // each] = part
            if not y.requires_grad:  # nothing is read at all
                yield x.new_zeros(len(part), x.shape[1])
                continue
            (gradient,) = torch.autograd.grad(y, x, pull, allow_unused=True, materialize_grads=True)
        yield gradient[: len(part)].square().sum(-1)
