"""Weights that are vectors of length one: after each step every matrix is normalised along the width of the stream.

Source: Loshchilov et al. 2024, nGPT: Normalized Transformer with Representation Learning on the Hypersphere
    (arXiv 2410.01131), section 2.6, steps 1 and 2
Reference: the equation; NVIDIA/ngpt train.py, normalize_matrices
Equation: w <- w / |w| before the first step and after each, for each vector w of a matrix that the stream is multiplied
    by, or that is added to the stream
Cost: O(parameters) time a step

    role of a weight    vectors of length one                  examples
    hidden, output      weights of one output                  queries, gates, the head: rows of (out, in)
    residual            addition of one input to the stream    the last map of a mixer: columns of (out, in)
    input               of one token, position or pixel        rows of tables, columns of maps in front of the blocks

Vectors of zeros stay. A module may declare the dimension of the stream in its own weights: `unit_dims`, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Embedder, Role, parameter_roles
from blockyard.weight_init import Init, zeros_at_start

SMALLEST = 1e-30  # a shorter vector stays as it is
MATRICES: frozenset[Role] = frozenset({"input", "hidden", "residual", "output"})


class UnitWeights(nn.Module):
    """Keeps the matrices of a model at unit length. It is the last part of its model, and has no weights itself.

    Raises ValueError for weights with an unknown dimension of the stream, and for weights that start at zero.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._models = (model,)  # in a tuple, so that the model is no submodule of its own part
        problems = [path for path, _, dim in self._matrices() if dim is None]
        if problems:
            path, _, name = problems[0].rpartition(".")
            kind = type(model.get_submodule(path)).__name__
            raise ValueError(
                f"model.unit_weights: {kind} does not say which dimension of {problems[0]} is the width of the stream; "
                f"use linear layers, let it have unit_dims = {{{name!r}: ...}}, or use model.unit_weights=false"
            )
        zero = zeros_at_start(model)
        at_zero = [path for path, weight, _ in self._matrices() if id(weight) in zero]
        if at_zero:
            raise ValueError(
                f"model.unit_weights: {at_zero[0]} starts at zero, and the first update, however small, would bring "
                "its vectors to length one; leave that option out, or use model.unit_weights=false"
            )

    def init_weights(self, init: Init) -> None:
        """Bring the initial weights to length one: the weights of all other parts are drawn before."""
        self.after_step()

    @torch.no_grad()
    def after_step(self) -> None:
        """Bring every vector to length one."""
        for _, weight, dim in self._matrices():
            if weight.is_meta:
                continue
            assert dim is not None
            length = torch.linalg.vector_norm(weight, dim=dim, keepdim=True)
            weight.div_(torch.where(length > SMALLEST, length, torch.ones_like(length)))

    def training_metrics(self) -> dict[str, Tensor]:
        """Return no metrics."""
        return {}

    def _matrices(self) -> Iterator[tuple[str, nn.Parameter, int | None]]:
        """Yield each matrix with its path and its dimension of the stream, or None if that is unknown."""
        (model,) = self._models
        before = [f"{path}." for path, module in model.named_modules() if isinstance(module, Embedder)]
        done: set[int] = set()
        for path, weight, role in parameter_roles(model):
            owner = model.get_submodule(path.rpartition(".")[0])
            name = path.rpartition(".")[2]
            dims = getattr(owner, "unit_dims", {})
            if id(weight) in done or (name not in dims and (weight.ndim < 2 or role not in MATRICES)):
                continue
            done.add(id(weight))  # a tied head and its embedder are one matrix
            dim = dims[name] if name in dims else _dim(owner, weight, role, path.startswith(tuple(before)))
            yield path, weight, dim


def _dim(owner: nn.Module, weight: Tensor, role: Any, before: bool) -> int | None:
    """Return the dimension of the stream in a matrix, or None. before: the matrix is in front of the blocks."""
    if isinstance(owner, nn.Linear):  # weights are (out, in)
        writes = role == "residual" or (role == "input" and before)
        return 0 if writes else 1
    if role in ("input", "output") and not isinstance(owner, nn.modules.conv._ConvNd):
        return weight.ndim - 1
    return None


def check_unit_weights(ctx: Context) -> None:
    """Raise ValueError under a parametrization: its rates are for weights that grow and shrink freely."""
    if ctx.parametrization.scales:
        raise ValueError(
            f"model.unit_weights: parametrization {type(ctx.parametrization).__name__} says how large weights are in "
            "wider models, and these have length one; use parametrization=standard, or model.unit_weights=false"
        )


def without_unit_weights(model: nn.Module) -> list[str]:
    """Return the reasons why an optimizer that evaluates an average of weights cannot train a model, as sentences."""
    if not any(isinstance(module, UnitWeights) for module in model.modules()):
        return []
    return ["model.unit_weights keeps the weights of a step at length one, and the average of several is shorter"]
