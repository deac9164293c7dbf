"""Which token reads from which, for any mixer: the norms of the blocks of its Jacobian.

Equation: M_ij = |dy_i/dx_j|_F / sqrt(D), so that the identity gives 1; see jacobian.py
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blockyard.contracts import TokenMixer
from blockyard.errors import UserError
from blockyard.inspect.jacobian import block_norms
from blockyard.inspect.labels import layer_name, token_labels
from blockyard.inspect.recorded_calls import RecordedCall, mixing_modules, record_calls, repeat
from blockyard.inspect.samples import Sample, select_layers

_MAX_ELEMENTS = 2**21  # of one activation
_MAX_COPIES = 512


@dataclass
class LayerMixing:
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

    @property
    def name(self) -> str:
        """The readable name of the layer."""
        return layer_name(self.path)


def mixing_layers(
    model: nn.Module,
    samples: list[Sample],
    *,
    of: str = "mixer",
    layers: tuple[int, ...] | None = None,
    probes: int | None = None,
) -> list[LayerMixing]:
    """Returns the token mixing of `model`, layer by layer. Sequences of different lengths are cut to the shortest.

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
    """Returns copies in float64, where an exact zero differs from a small value."""
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
    rows, columns = (min(norms.shape[axis] for norms, _, _ in estimates) for axis in (0, 1))
    tables = torch.stack([norms[:rows, :columns] for norms, _, _ in estimates])  # (samples, N, M)
    mean = tables.mean(0)
    deviation = (tables - mean).square().sum((1, 2)).mean().sqrt() / mean.norm().clamp_min(1e-30)
    text, memory_text = ([], []) if sample is None else (sample.text_at(path), sample.memory_text)
    mixer = module if isinstance(module, TokenMixer) else next(m for m in module.modules() if isinstance(m, TokenMixer))
    return LayerMixing(
        path=path,
        mixer=type(mixer).__name__ if mixer is module else f"{type(module).__name__}({type(mixer).__name__})",
        norms=mean,
        variation=float(deviation) if len(estimates) > 1 else None,
        probes=estimates[0][2],
        error=max(error for _, error, _ in estimates) / math.sqrt(len(estimates)),
        memory=call.reads_memory,
        prefix=call.seq.num_prefix,
        grid=call.seq.grid,
        rows=token_labels(text, model, call.seq)[:rows],
        columns=token_labels(memory_text if call.reads_memory else text, model, call.input_seq)[:columns],
    )
