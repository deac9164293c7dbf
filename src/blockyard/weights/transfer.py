"""Transfer of a source's tensors into a model, by name and shape, part by part.

A tensor is taken if name and shape agree. A learned table of positions of another grid is resized, if its scheme can,
and a table of token ids loses or gains the row of the mask. Other tensors are left: a tensor of the model keeps its
initial values, a tensor of the source is not used.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Embedder, Position
from blockyard.errors import UserError, fold
from blockyard.model._part_names import is_in
from blockyard.weights.lora import plain_name
from blockyard.weights.number_types import number_type_problem
from blockyard.weights.parts import HEAD

log = logging.getLogger("blockyard")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class WeightLayout:
    """Facts of a model's tokens that resizing needs besides the shapes of its weights.

    grid: of a full sequence; None if not known
    mask: whether the last token id is one that hides others, which an objective has added
    """

    grid: Shape | None = None
    mask: bool = False


UNKNOWN = WeightLayout()


class TableResizer:
    """Resizes tables to the tokens of a model: tables of positions by their scheme, tables of token ids by the mask."""

    def __init__(self, model: nn.Module, source: WeightLayout, target: WeightLayout) -> None:
        self.source, self.target = source, target
        modules = dict(model.named_modules())
        names = {id(tensor): name for name, tensor in reversed(plain_tensors(model).items())}
        self.schemes = {}
        for path, module in modules.items():
            if isinstance(module, Position):
                for name, _ in module.named_parameters(recurse=False):
                    self.schemes[f"{path}.{name}"] = module
        embedders = [module for module in modules.values() if isinstance(module, Embedder)]
        self.token_tables = {names[id(embedder.table)] for embedder in embedders if embedder.table is not None}

    def resized(self, name: str, target: Tensor, source: Tensor) -> Tensor | None:
        """Return a source tensor resized to the model's shape, or None if it needs no change or cannot be resized.

        target: the tensor of the model; it keeps its row of the mask if the source has none
        """
        if name in self.schemes:
            return self.schemes[name].resized(name.rpartition(".")[2], source, self.source.grid)
        if name not in self.token_tables or self.source.mask == self.target.mask:
            return None
        # The mask is the last row, so that all other token ids have the same rows in both tables.
        rows = len(target) - self.target.mask
        if source.shape[1:] != target.shape[1:] or len(source) - self.source.mask != rows:
            return None
        return torch.cat([source[:rows], target[rows:]])


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model by their names without LoRA, and without its additions."""
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        plain = plain_name(name)
        if plain is not None:
            tensors[plain] = tensor
    return tensors


@dataclass(frozen=True)
class Transfer:
    """Names of the tensors that a model takes of a source, and of the tensors that are left.

    taken: unchanged tensors; resized: tables of positions and of token ids, with the shapes in source and model
    missing: tensors of the model that the source lacks; differing: tensors of another shape, with both shapes
    outside: tensors of the model in no part that is taken; unused: tensors of the source
    unusable: the reason why the numbers of a tensor are no weights, a sentence each
    """

    taken: tuple[str, ...]
    resized: Mapping[str, tuple[Shape, Shape]]
    missing: tuple[str, ...]
    differing: Mapping[str, tuple[Shape, Shape]]
    outside: tuple[str, ...]
    unused: tuple[str, ...]
    unusable: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """True where every tensor of the model is taken unchanged, so that none keeps its initial values."""
        return not (self.resized or self.missing or self.differing or self.outside)

    def problems(self, parts: tuple[str, ...] | None, *, strict: bool) -> Iterator[str]:
        """Yield the reasons why these weights cannot be taken. strict: also refuse tensors that would be left"""
        shapes = [
            f"{name} ({_text(source)} there, {_text(target)} here)" for name, (source, target) in self.differing.items()
        ]
        if not self.taken and not self.resized:
            names = sorted((*self.missing, *self.outside))
            reason = f"it has {fold(self.unused) or 'none'}, and the model, with blockyard's names, {fold(names)}"
            if shapes:
                reason = f"those of the same names have other shapes: {fold(shapes)}"
            yield f"no tensor of it fits this model: {reason}"
            return
        if self.unusable:
            more = len(self.unusable) - 1
            tensors = "tensor" if more == 1 else "tensors"
            yield f"{self.unusable[0]} (and {more} more {tensors})" if more else self.unusable[0]
        if not strict:
            return
        otherwise = "init.strict=false leaves such tensors at their initial values, init.parts=[...] leaves out parts"
        if shapes:
            yield f"its shapes differ: {fold(shapes)}; {otherwise}"
        if self.missing:
            yield f"it lacks {fold(self.missing)}; {otherwise}"
        # Only modules that the model takes something of: a source may have other heads, which nobody asked for.
        modules = {name.partition(".")[0] for name in (*self.taken, *self.resized, *self.differing)}
        if parts:
            modules &= {part.partition(".")[0] for part in parts}
        of_modules = [name for name in self.unused if name.partition(".")[0] in modules]
        extra = [name for name in of_modules if name not in self.differing and name not in self.outside]
        if extra:
            yield f"it also has {fold(extra)}, which this model lacks; init.strict=false leaves them out"

    def plain(self) -> dict[str, Any]:
        """Return plain data, for run.json."""

        def listed(shapes: Mapping[str, tuple[Shape, Shape]]) -> dict[str, list[list[int]]]:
            return {name: [list(source), list(target)] for name, (source, target) in shapes.items()}

        return {
            "taken": list(self.taken),
            "resized": listed(self.resized),
            "differing": listed(self.differing),
            "missing": list(self.missing),
            "outside": list(self.outside),
            "unused": list(self.unused),
        }

    def __str__(self) -> str:
        """One line for the terminal."""
        texts = [f"{len(self.taken)} tensors taken"]
        for name, (source, target) in self.resized.items():
            texts.append(f"{name} resized from {_text(source)} to {_text(target)}")
        for name, (source, target) in self.differing.items():
            texts.append(f"{name} left, of shape {_text(source)} there and {_text(target)} here")
        initial = (*self.missing, *self.outside)
        if initial:
            texts.append(f"initial: {fold(initial)}")
        if self.unused:
            texts.append(f"not used: {fold(self.unused)}")
        return "; ".join(texts)


def compare(
    model: nn.Module,
    shapes: Mapping[str, Shape],
    parts: tuple[str, ...] | None,
    *,
    head: bool,
    source_layout: WeightLayout = UNKNOWN,
    target_layout: WeightLayout = UNKNOWN,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Transfer:
    """Return the transfer of tensors with these shapes into `model`, with or without LoRA. Allocates nothing.

    parts: the parts that are taken; None is all, with the head if `head`: it predicts the same in both
    source_layout, target_layout: of the tokens in the source and in the model
    dtypes: the number types of the source's tensors; None if they are known to be the model's
    """
    tensors, resizer = plain_tensors(model), TableResizer(model, source_layout, target_layout)
    first: dict[int, str] = {}  # a tensor with several names, such as a tied head, is transferred once
    for name, tensor in tensors.items():
        first.setdefault(id(tensor), name)
    taken, resized, missing, differing, outside = [], {}, [], {}, []
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if first[id(tensor)] != name:
            continue
        if not (is_in(name, parts) if parts is not None else head or not is_in(name, [HEAD])):
            outside.append(name)
        elif name not in shapes:
            missing.append(name)
        elif resizer.resized(name, tensor.to("meta"), torch.empty(shapes[name], device="meta")) is not None:
            resized[name] = (shapes[name], shape)
        elif shapes[name] == shape:
            taken.append(name)
        else:
            differing[name] = (shapes[name], shape)
    shared = {name for name, tensor in tensors.items() if first[id(tensor)] != name}
    unused = [name for name in shapes if name not in taken and name not in resized and name not in shared]
    unusable = []
    if dtypes is not None:
        for name in (*taken, *resized):
            problem = number_type_problem(name, dtypes[name], tensors[name].dtype, shapes)
            if problem is not None:
                unusable.append(problem)
    return Transfer(
        taken=tuple(taken),
        resized=resized,
        missing=tuple(missing),
        differing=differing,
        outside=tuple(outside),
        unused=tuple(unused),
        unusable=tuple(unusable),
    )


def _warn_of_tied(tensors: Mapping[str, Tensor], source: Mapping[str, Tensor], transfer: Transfer) -> None:
    """Warn of a tensor that is separate in the source, such as a head, and shared with another tensor in the model."""
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        kept = first.setdefault(id(tensor), name)
        if kept == name or name not in source or kept not in transfer.taken:
            continue
        if source[name].shape != source[kept].shape or not torch.equal(source[name], source[kept]):
            log.warning("%s of the source is left out: the model ties it to %s", name, kept)


def load(
    model: nn.Module,
    source: Mapping[str, Tensor],
    transfer: Transfer,
    *,
    source_layout: WeightLayout = UNKNOWN,
    target_layout: WeightLayout = UNKNOWN,
) -> None:
    """Copy the taken tensors of a source into a model. Raises UserError if one of them is not finite."""
    tensors, resizer = plain_tensors(model), TableResizer(model, source_layout, target_layout)
    _warn_of_tied(tensors, source, transfer)
    with torch.no_grad():
        for name in (*transfer.taken, *transfer.resized):
            model_tensor = tensors[name]
            value = source[name].to(model_tensor.dtype)
            if name in transfer.resized:
                resized = resizer.resized(name, model_tensor, value)
                assert resized is not None, "`compare` has resized it already"
                value = resized
            if model_tensor.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UserError(f"init.from: {name} holds values that are not finite")
            model_tensor.copy_(value)


def content_hash(tensors: Mapping[str, Tensor], more: Iterable[bytes] = ()) -> str:
    """Return the SHA-256, in hex, of names, types, shapes and values: the same in whatever file the weights lie.

    more: further content that belongs to the tensors
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):  # files keep tensors in any order
        tensor = tensors[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    for content in more:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a scalar"
