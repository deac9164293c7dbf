"""Which weights of a library's model are which of ours, each stated once and used in both directions.

A rule names our weights and theirs, with `{n}` for the block's number and `{kind}` for weight and bias, and holds the
two maps between them. Names of ours that are absent on both sides (a bias that neither has) are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from blockyard.errors import UserError, fold
from blockyard.weights.number_types import is_low_precision, number_type_problem

Map = Callable[[Sequence[Tensor]], Sequence[Tensor]]
# What is done with a weight of theirs, and what undoes it.
BothWays = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
KINDS = ("weight", "bias")
AS_IS: BothWays = (lambda x: x, lambda x: x)


@dataclass(frozen=True)
class ConversionRule:
    """Our weights `ours` are `to_ours` of theirs, and `theirs` are `to_theirs` of ours.

    Either may be empty: what only theirs has is checked by `to_ours`, and made from nothing by `to_theirs`.

    copies: further names of theirs for the first of `theirs`, which are written and need not be there to be read
    aliases: the same, but not written: a file leaves them out where its library ties them
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_ours: Map
    to_theirs: Map
    copies: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def named(self, **values: object) -> ConversionRule:
        """The rule with the fields of its names filled in."""

        def fill(names: tuple[str, ...]) -> tuple[str, ...]:
            filled = names
            for field, value in values.items():
                filled = tuple(name.replace(f"{{{field}}}", str(value)) for name in filled)
            return filled

        ours, theirs, copies, aliases = map(fill, (self.ours, self.theirs, self.copies, self.aliases))
        return replace(self, ours=ours, theirs=theirs, copies=copies, aliases=aliases)


def same(ours: str, theirs: str) -> ConversionRule:
    """Equal weights."""
    return ConversionRule((ours,), (theirs,), _as_is, _as_is)


def reshaped(ours: str, theirs: str, shape: Sequence[int], own: Sequence[int]) -> ConversionRule:
    """Equal numbers, theirs of `shape` and ours of shape `own`."""
    return mapped(ours, theirs, lambda x: x.reshape(*own), lambda x: x.reshape(*shape))


def transposed(ours: str, theirs: str) -> ConversionRule:
    """Matrices that they store transposed."""
    return mapped(ours, theirs, _transpose, _transpose)


def mapped(
    ours: str, theirs: str, to_ours: Callable[[Tensor], Tensor], to_theirs: Callable[[Tensor], Tensor]
) -> ConversionRule:
    """One weight of each side, with a map in each direction."""
    return ConversionRule((ours,), (theirs,), lambda x: [to_ours(x[0])], lambda x: [to_theirs(x[0])])


def scaled(ours: str, theirs: str, factor: float) -> ConversionRule:
    """Ours are theirs times `factor`."""
    return mapped(ours, theirs, lambda x: x * factor, lambda x: x / factor)


def table_and_head(theirs: str, head: str = "lm_head.weight", *, is_tied: bool) -> list[ConversionRule]:
    """The table of token ids `theirs`, and the output layer `head`, which is that table where they are tied."""
    ours = ("embedder.symbols.weight", "head.proj.weight")
    if not is_tied:
        return [same(ours[0], theirs), same(ours[1], head)]
    return [ConversionRule(ours, (theirs,), lambda x: [x[0]] * 2, lambda x: [x[0]], aliases=(head,))]


def stacked(
    ours: str, theirs: Sequence[str], maps: Sequence[BothWays] = (), sizes: Sequence[int] = ()
) -> ConversionRule:
    """Matrices (or biases) of theirs that we store below each other as one.

    maps: for each of theirs, what is done before stacking and after taking apart
    sizes: outputs of each, where they are not equal
    """

    def join(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([maps[i][0](part) if maps else part for i, part in enumerate(parts)])]

    def part(whole: Sequence[Tensor]) -> Sequence[Tensor]:
        parts = whole[0].split(list(sizes)) if sizes else whole[0].tensor_split(len(theirs))
        return [maps[i][1](each) if maps else each for i, each in enumerate(parts)]

    return ConversionRule((ours,), tuple(theirs), join, part)


def stacked_modules(
    ours: str,
    theirs: Sequence[str],
    maps: Sequence[BothWays] = (),
    sizes: Sequence[int] = (),
    kinds: Iterable[str] = KINDS,
) -> list[ConversionRule]:
    """The same for modules, such as the maps to queries, keys and values: their matrices, and their biases."""
    return [stacked(f"{ours}.{kind}", [f"{each}.{kind}" for each in theirs], maps, sizes) for kind in kinds]


def permuted(order: Tensor) -> BothWays:
    """Outputs in another order: ours at a position is theirs at `order` of it. Another number of them is refused."""
    back = order.argsort()

    def by(index: Tensor, x: Tensor) -> Tensor:
        if len(x) != len(index):
            raise ValueError(f"{len(x)} outputs, expected {len(index)}")
        return x[index]

    return partial(by, order), partial(by, back)


def spare(theirs: str, *shape: int, dtype: torch.dtype = torch.float32) -> ConversionRule:
    """A weight of theirs that no prediction depends on: not read where it is there, and written as zeros."""
    return ConversionRule((), (theirs,), lambda _: [], lambda _: [torch.zeros(shape, dtype=dtype)])


def modules(names: Mapping[str, str], kinds: Iterable[str] = KINDS) -> list[ConversionRule]:
    """Equal modules, ours -> theirs, of the given kinds of weights."""
    return [same(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in names.items() for kind in kinds]


def block_modules(
    names: Mapping[str, str], theirs: str, kinds: Iterable[str] = KINDS, ours: str = "blocks.{n}"
) -> list[ConversionRule]:
    """Equal modules of a block, ours -> names below their block `theirs`."""
    return modules({f"{ours}.{name}": f"{theirs}.{other}" for name, other in names.items()}, kinds)


def per_block(rules: Iterable[ConversionRule], depth: int) -> list[ConversionRule]:
    """The rules, of which one with `{n}` is repeated for the number of each block."""
    repeated = []
    for rule in rules:
        is_of_block = any("{n}" in name for name in (*rule.ours, *rule.theirs))
        repeated += [rule.named(n=n) for n in range(depth)] if is_of_block else [rule]
    return repeated


def differing_copies(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor]) -> dict[str, str]:
    """The weights of theirs that should be copies of another, and hold other numbers, with the name of the other.

    transformers does not tie these, whatever its config says, so that each of them has an effect of its own.
    """
    return {
        copy: rule.theirs[0]
        for rule in rules
        for copy in (*rule.copies, *rule.aliases)
        if copy in weights and rule.theirs[0] in weights and not _equal(weights[copy], weights[rule.theirs[0]])
    }


def has_own_head(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor]) -> bool:
    """Whether the output layer, the first alias of the table that is ours for both, differs from that table."""
    heads = [rule.aliases[0] for rule in rules if "head.proj.weight" in rule.ours and rule.aliases]
    return bool(differing_copies(rules, weights).keys() & heads)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((_full(one) == _full(other)).all())


def convert(
    rules: Sequence[ConversionRule],
    weights: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    *,
    ignored: Iterable[str] = (),
) -> dict[str, Tensor]:
    """Their weights under our names, in float32 where they are of lower precision.

    weights: theirs; wanted: ours, for names and shapes; ignored: names of theirs that hold nothing that ours needs

    Raises UserError for a weight that is missing, has no counterpart, is not floating point, or is of another shape.
    """
    left, missing, converted = set(weights) - set(ignored), [], dict[str, Tensor]()
    unusable, shapes = [], []
    for rule in rules:
        absent = [name for name in rule.theirs if name not in weights]
        ours = [name for name in rule.ours if name in wanted]
        if absent and not ours and (rule.ours or len(absent) == len(rule.theirs)):
            continue
        if absent:
            missing += absent
            continue
        if rule.ours and not ours:
            continue  # reported below: ours has nothing for it
        left -= {*rule.theirs, *rule.copies, *rule.aliases}
        if rule.ours:
            own = wanted[ours[0]].dtype
            problems = [number_type_problem(name, weights[name].dtype, own, weights) for name in rule.theirs]
            if any(problems):
                unusable += [problem for problem in problems if problem is not None]
                continue
        try:
            values = rule.to_ours([_full(weights[name]) for name in rule.theirs])
        except (RuntimeError, IndexError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            sizes = " and ".join(f"{name} {tuple(weights[name].shape)}" for name in rule.theirs)
            shapes.append(f"{sizes}, which {' and '.join(ours) or 'no weight of ours'} cannot be made of")
            continue
        converted |= dict(zip(rule.ours, values, strict=True))
    if unusable:
        raise UserError("; ".join(unusable[:1]) + (f" (and {len(unusable) - 1} more)" if unusable[1:] else ""))
    if missing:
        raise UserError(f"the weights have no {fold(sorted(missing))}")
    if left:
        raise UserError(f"the weights hold {fold(sorted(left))}, which the preset has no counterpart for")
    if shapes:
        raise UserError(f"weights of another shape: {fold(shapes)}")
    for copy, original in differing_copies(rules, weights).items():
        raise UserError(f"{copy} differs from {original}, and in the preset both are one weight")
    _check_shapes(converted, wanted)
    return {name: converted[name].contiguous() for name in wanted if name in converted}


def convert_back(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under their names. Raises UserError for one that no rule names."""
    left, converted = set(weights), dict[str, Tensor]()
    for rule in rules:
        if rule.ours and not set(rule.ours) & set(weights):
            continue
        values = rule.to_theirs([weights[name] for name in rule.ours])
        converted |= dict(zip(rule.theirs, values, strict=True)) | dict.fromkeys(rule.copies, values[0])
        left -= set(rule.ours)
    if left:
        raise UserError(f"the library's model has no place for {fold(sorted(left))}")
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in converted.items()}


def _check_shapes(converted: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    other = [
        f"{name} {tuple(converted[name].shape)}, expected {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in converted and converted[name].shape != value.shape
    ]
    if other:
        raise UserError(f"weights of another shape: {fold(other)}")


def _as_is(weights: Sequence[Tensor]) -> Sequence[Tensor]:
    return weights


def _transpose(x: Tensor) -> Tensor:
    return x.T if x.ndim == 2 else x


def _full(x: Tensor) -> Tensor:
    return x.float() if is_low_precision(x.dtype) else x
