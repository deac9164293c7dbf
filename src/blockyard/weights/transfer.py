"""Which tensors of a source a model takes: by name and shape, part by part.

A tensor is taken where name and shape agree. A learned table of positions of another grid is resized, if its scheme
can, and a table of token ids loses or gains the row of the mask. The others are left: those of the model keep their
initial values, those of the source are not used.
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


class Fitting:
    """Resizes tables to the tokens of a model: those of positions by their scheme, those of token ids by the mask."""

    def __init__(self, model: nn.Module, theirs: WeightLayout, ours: WeightLayout) -> None:
        self.theirs, self.ours = theirs, ours
        modules = dict(model.named_modules())
        names = {id(tensor): name for name, tensor in reversed(own_tensors(model).items())}
        self.schemes = {
            f"{path}.{name}": module
            for path, module in modules.items()
            if isinstance(module, Position)
            for name, _ in module.named_parameters(recurse=False)
        }
        embedders = [module for module in modules.values() if isinstance(module, Embedder)]
        self.token_tables = {names[id(each.table)] for each in embedders if each.table is not None}

    def fitted(self, name: str, own: Tensor, value: Tensor) -> Tensor | None:
        """A tensor of the source as one of the model's; None where it is taken as it is, or cannot be.

        own: the model's, whose row of the mask stays where the source has none
        """
        if name in self.schemes:
            return self.schemes[name].resized(name.rpartition(".")[2], value, self.theirs.grid)
        if name not in self.token_tables or self.theirs.mask == self.ours.mask or value.shape[1:] != own.shape[1:]:
            return None
        rows = len(own) - self.ours.mask
        if len(value) - self.theirs.mask != rows:
            return None
        return torch.cat([value[:rows], own[rows:]])


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by the names they have without additions."""
    state = model.state_dict(keep_vars=True)
    return {plain: tensor for name, tensor in state.items() if (plain := plain_name(name)) is not None}


@dataclass(frozen=True)
class Transfer:
    """What a model takes of a source, by the names of tensors.

    taken: as they are; resized: tables of positions and of token ids, with the shapes of source and model
    missing: tensors of the model that the source lacks; differing: tensors of another shape, with both shapes
    outside: tensors of the model in no part that is taken; unused: tensors of the source
    unusable: why the numbers of a tensor are no weights, a sentence each
    """

    taken: tuple[str, ...]
    resized: Mapping[str, tuple[Shape, Shape]]
    missing: tuple[str, ...]
    differing: Mapping[str, tuple[Shape, Shape]]
    outside: tuple[str, ...]
    unused: tuple[str, ...]
    unusable: tuple[str, ...] = ()

    def problems(self, parts: tuple[str, ...] | None, *, strict: bool) -> Iterator[str]:
        """Why these weights cannot be taken; `strict` also objects to what would be left."""
        shapes = [
            f"{name} ({_text(theirs)} there, {_text(ours)} here)" for name, (theirs, ours) in self.differing.items()
        ]
        if not self.taken and not self.resized:
            names = sorted((*self.missing, *self.outside))
            other = f"those of the same names have other shapes: {fold(shapes)}"
            none = f"it has {fold(self.unused) or 'none'}, and the model, with blockyard's names, {fold(names)}"
            yield f"no tensor of it fits this model: {other if shapes else none}"
            return
        if self.unusable:
            more = len(self.unusable) - 1
            yield self.unusable[0] + (f" (and {more} more tensor{'s' if more > 1 else ''})" if more else "")
        if not strict:
            return
        otherwise = "init.strict=false leaves such tensors at their initial values, init.parts=[...] leaves out parts"
        if shapes:
            yield f"its shapes differ: {fold(shapes)}; {otherwise}"
        if self.missing:
            yield f"it lacks {fold(self.missing)}; {otherwise}"
        of_parts = {part.partition(".")[0] for part in parts or ()}
        ours = {name.partition(".")[0] for name in (*self.taken, *self.resized, *self.differing)}
        extra = [
            name for name in self.unused if (top := name.partition(".")[0]) in ours and (not parts or top in of_parts)
        ]
        extra = [name for name in extra if name not in self.differing and name not in self.outside]
        if extra:
            yield f"it also has {fold(extra)}, which this model lacks; init.strict=false leaves them out"

    def plain(self) -> dict[str, Any]:
        """As run.json holds it."""
        shapes = {"resized": self.resized, "differing": self.differing}
        return {
            "taken": list(self.taken),
            **{
                key: {name: [list(each) for each in pair] for name, pair in value.items()}
                for key, value in shapes.items()
            },
            "missing": list(self.missing),
            "outside": list(self.outside),
            "unused": list(self.unused),
        }

    def __str__(self) -> str:
        """One line for the terminal."""
        texts = [f"{len(self.taken)} tensors taken"]
        texts += [f"{name} resized from {_text(a)} to {_text(b)}" for name, (a, b) in self.resized.items()]
        texts += [
            f"{name} left, of shape {_text(a)} there and {_text(b)} here" for name, (a, b) in self.differing.items()
        ]
        for what, names in (("initial", (*self.missing, *self.outside)), ("not used", self.unused)):
            texts += [f"{what}: {fold(names)}"] if names else []
        return "; ".join(texts)


def compare(
    model: nn.Module,
    shapes: Mapping[str, Shape],
    parts: tuple[str, ...] | None,
    *,
    head: bool,
    theirs: WeightLayout = UNKNOWN,
    ours: WeightLayout = UNKNOWN,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Transfer:
    """What `model`, with or without additions of LoRA, takes of tensors with these shapes. Allocates nothing.

    parts: that are taken; None is all, with the head where `head` says that it predicts the same
    theirs, ours: the tokens of the source and of the model
    dtypes: the number types of the source's tensors; None where they are known to be the model's
    """
    tensors, fitting = own_tensors(model), Fitting(model, theirs, ours)
    first: dict[int, str] = {}  # tensors that several names share are one
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
        elif fitting.fitted(name, tensor.to("meta"), torch.empty(shapes[name], device="meta")) is not None:
            resized[name] = (shapes[name], shape)
        elif shapes[name] == shape:
            taken.append(name)
        else:
            differing[name] = (shapes[name], shape)
    shared = {name for name, tensor in tensors.items() if first[id(tensor)] != name}
    unused = [name for name in shapes if name not in taken and name not in resized and name not in shared]
    problems = (
        number_type_problem(name, dtypes[name], tensors[name].dtype, shapes)
        for name in (*taken, *resized)
        if dtypes is not None
    )
    unusable = tuple(problem for problem in problems if problem is not None)
    return Transfer(tuple(taken), resized, tuple(missing), differing, tuple(outside), tuple(unused), unusable)


def _warn_of_tied(tensors: Mapping[str, Tensor], source: Mapping[str, Tensor], transfer: Transfer) -> None:
    """Warn of a tensor that is one of its own in the source, such as a head, and shared with another in the model."""
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
    theirs: WeightLayout = UNKNOWN,
    ours: WeightLayout = UNKNOWN,
) -> None:
    """Put the taken tensors of a source into a model. Raises UserError where one of them is not finite."""
    tensors, fitting = own_tensors(model), Fitting(model, theirs, ours)
    _warn_of_tied(tensors, source, transfer)
    with torch.no_grad():
        for name in (*transfer.taken, *transfer.resized):
            own, value = tensors[name], source[name].to(tensors[name].dtype)
            if name in transfer.resized:
                fitted = fitting.fitted(name, own, value)
                assert fitted is not None, "only what can be resized is"
                value = fitted
            if own.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UserError(f"init.from: {name} holds values that are not finite")
            own.copy_(value)


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a scalar"


# The hash of tensors by name: the same for the same weights, whatever file they lie in.


def content_hash(tensors: Mapping[str, Tensor], more: Iterable[bytes] = ()) -> str:
    """Return the SHA-256, in hex, of names, types, shapes and values, in the order of the names.

    more: further content that belongs to the tensors
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    for content in more:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
