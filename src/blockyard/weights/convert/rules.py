"""Rules between the weights of a library's model and the weights of ours, each stated once for both directions.

A rule names weights of our model and of the library's, with `{n}` for the block's number and `{kind}` for weight and
bias, and holds the two maps between them. A rule is passed over if neither model has its weights, such as a bias.
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
# A map of one weight of the library's, and its inverse.
BothWays = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
KINDS = ("weight", "bias")
AS_IS: BothWays = (lambda x: x, lambda x: x)


@dataclass(frozen=True)
class ConversionRule:
    """The weights `model_names` of our model, and the equivalent `library_names` of the library's.

    Either may be empty: `to_model` checks a weight that only the library has, `to_library` makes it from nothing.

    copies: further names of the first library weight, which are written and may be absent when read
    aliases: further names of it that are not written: the library ties them, and leaves them out of its files
    transposes: whether the library stores its matrix as (in, out)
    """

    model_names: tuple[str, ...]
    library_names: tuple[str, ...]
    to_model: Map
    to_library: Map
    copies: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    transposes: bool = False

    def named(self, **values: object) -> ConversionRule:
        """Return the rule with the fields of its names filled in."""

        def fill(names: tuple[str, ...]) -> tuple[str, ...]:
            filled = names
            for field, value in values.items():
                filled = tuple(name.replace(f"{{{field}}}", str(value)) for name in filled)
            return filled

        return replace(
            self,
            model_names=fill(self.model_names),
            library_names=fill(self.library_names),
            copies=fill(self.copies),
            aliases=fill(self.aliases),
        )


def convert(
    rules: Sequence[ConversionRule],
    weights: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    *,
    ignored: Iterable[str] = (),
) -> dict[str, Tensor]:
    """Return a library's weights under our names; weights of lower precision as float32.

    weights: of the library; wanted: the state of our model, for names and shapes
    ignored: names of library weights that our model does not need

    Raises UserError for a weight that is missing, has no counterpart, is not floating point, or is of another shape.
    """
    left, missing, converted = set(weights) - set(ignored), [], dict[str, Tensor]()
    unusable, shapes = [], []
    for rule in rules:
        absent = [name for name in rule.library_names if name not in weights]
        model_names = [name for name in rule.model_names if name in wanted]
        if absent and not model_names and (rule.model_names or len(absent) == len(rule.library_names)):
            continue
        if absent:
            missing += absent
            continue
        if rule.model_names and not model_names:
            continue  # its library weights stay in `left`, which is refused below
        left -= {*rule.library_names, *rule.copies, *rule.aliases}
        if rule.model_names:
            dtype = wanted[model_names[0]].dtype
            problems = [number_type_problem(name, weights[name].dtype, dtype, weights) for name in rule.library_names]
            if any(problems):
                unusable += [problem for problem in problems if problem is not None]
                continue
        try:
            values = rule.to_model([_full(weights[name]) for name in rule.library_names])
        except (RuntimeError, IndexError, ValueError) as error:
            # A UserError is a ValueError too, and says itself what is wrong.
            if isinstance(error, UserError):
                raise
            sizes = " and ".join(f"{name} {tuple(weights[name].shape)}" for name in rule.library_names)
            shapes.append(f"{sizes}, which {' and '.join(model_names) or 'no weight of ours'} cannot be made of")
            continue
        converted |= dict(zip(rule.model_names, values, strict=True))
    if unusable:
        more = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
        raise UserError(f"{unusable[0]}{more}")
    if missing:
        raise UserError(f"the weights have no {fold(sorted(missing))}")
    if left:
        raise UserError(f"the weights hold {fold(sorted(left))}, which the preset has no counterpart for")
    if shapes:
        raise UserError(f"weights of another shape: {fold(shapes)}")
    for copy, original in differing_copies(rules, weights).items():
        raise UserError(f"{copy} differs from {original}, and in the preset both are one weight")
    result = {}
    other = []
    for name, value in wanted.items():
        if name in converted:
            result[name] = converted[name].contiguous()
            if converted[name].shape != value.shape:
                other.append(f"{name} {tuple(converted[name].shape)}, expected {tuple(value.shape)}")
    if other:
        raise UserError(f"weights of another shape: {fold(other)}")
    return result


def convert_back(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights under the library's names. Raises UserError for a weight that no rule names."""
    left, converted = set(weights), dict[str, Tensor]()
    for rule in rules:
        if rule.model_names and not set(rule.model_names) & set(weights):
            continue
        values = rule.to_library([weights[name] for name in rule.model_names])
        converted |= dict(zip(rule.library_names, values, strict=True)) | dict.fromkeys(rule.copies, values[0])
        left -= set(rule.model_names)
    if left:
        raise UserError(f"the library's model has no place for {fold(sorted(left))}")
    # Cloned: parts of one tensor would be written as the whole, and safetensors refuses memory that is shared.
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in converted.items()}


def per_block(rules: Iterable[ConversionRule], depth: int) -> list[ConversionRule]:
    """Return the rules; a rule with `{n}` once for each block."""
    repeated = []
    for rule in rules:
        is_of_block = any("{n}" in name for name in (*rule.model_names, *rule.library_names))
        repeated += [rule.named(n=n) for n in range(depth)] if is_of_block else [rule]
    return repeated


def differing_copies(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the library weights that should be copies of another one and hold other numbers, with its name.

    transformers does not tie these, whatever its config says, so that each of them has an effect of its own.
    """
    differing = {}
    for rule in rules:
        for copy in (*rule.copies, *rule.aliases):
            original = rule.library_names[0]
            if copy in weights and original in weights and not _equal(weights[copy], weights[original]):
                differing[copy] = original
    return differing


def has_own_head(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor]) -> bool:
    """Return whether the output layer differs from the table of token ids, although a rule takes one for both."""
    heads = [rule.aliases[0] for rule in rules if "head.proj.weight" in rule.model_names and rule.aliases]
    return bool(differing_copies(rules, weights).keys() & heads)


def same(model_name: str, library_name: str) -> ConversionRule:
    """Return the rule of equal weights."""
    return ConversionRule((model_name,), (library_name,), _as_is, _as_is)


def mapped(
    model_name: str, library_name: str, to_model: Callable[[Tensor], Tensor], to_library: Callable[[Tensor], Tensor]
) -> ConversionRule:
    """Return the rule of one weight in each model, with a map in each direction."""
    return ConversionRule((model_name,), (library_name,), lambda x: [to_model(x[0])], lambda x: [to_library(x[0])])


def reshaped(
    model_name: str, library_name: str, library_shape: Sequence[int], model_shape: Sequence[int]
) -> ConversionRule:
    """Return the rule of equal numbers in two shapes."""
    return mapped(model_name, library_name, lambda x: x.reshape(*model_shape), lambda x: x.reshape(*library_shape))


def transposed(model_name: str, library_name: str) -> ConversionRule:
    """Return the rule of a matrix that the library stores transposed; a bias stays as it is."""
    return replace(mapped(model_name, library_name, _transpose, _transpose), transposes=True)


def scaled(model_name: str, library_name: str, factor: float) -> ConversionRule:
    """Return the rule of a weight that is the library's times `factor`."""
    return mapped(model_name, library_name, lambda x: x * factor, lambda x: x / factor)


def table_and_head(table: str, head: str = "lm_head.weight", *, is_tied: bool) -> list[ConversionRule]:
    """Return the rules of the library's table of token ids and output layer, which are one weight if they are tied."""
    model_names = ("embedder.symbols.weight", "head.proj.weight")
    if not is_tied:
        return [same(model_names[0], table), same(model_names[1], head)]
    return [ConversionRule(model_names, (table,), lambda x: [x[0]] * 2, lambda x: [x[0]], aliases=(head,))]


def stacked(
    model_name: str, library_names: Sequence[str], maps: Sequence[BothWays] = (), sizes: Sequence[int] = ()
) -> ConversionRule:
    """Return the rule of several matrices (or biases) of the library that our model stores below each other as one.

    maps: for each of the library's weights, before stacking and after taking apart
    sizes: outputs of each, if they are not equal
    """
    maps = maps or [AS_IS] * len(library_names)

    def join(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([to_model(part) for (to_model, _), part in zip(maps, parts, strict=True)])]

    def split(whole: Sequence[Tensor]) -> Sequence[Tensor]:
        parts = whole[0].split(list(sizes)) if sizes else whole[0].tensor_split(len(library_names))
        return [to_library(part) for (_, to_library), part in zip(maps, parts, strict=True)]

    return ConversionRule((model_name,), tuple(library_names), join, split)


def stacked_modules(
    model_name: str,
    library_names: Sequence[str],
    maps: Sequence[BothWays] = (),
    sizes: Sequence[int] = (),
    kinds: Iterable[str] = KINDS,
) -> list[ConversionRule]:
    """Return the rules of stacked modules, such as the maps to queries, keys and values: their matrices and biases."""
    return [
        stacked(f"{model_name}.{kind}", [f"{name}.{kind}" for name in library_names], maps, sizes) for kind in kinds
    ]


def permuted(order: Tensor) -> BothWays:
    """Return the map to outputs in another order: output i of our model is output `order[i]` of the library's.

    It raises ValueError for another number of outputs.
    """
    inverse = order.argsort()

    def by(index: Tensor, x: Tensor) -> Tensor:
        if len(x) != len(index):
            raise ValueError(f"{len(x)} outputs, expected {len(index)}")
        return x[index]

    return partial(by, order), partial(by, inverse)


def spare(library_name: str, *shape: int, dtype: torch.dtype = torch.float32) -> ConversionRule:
    """Return the rule of a library weight that no prediction depends on: ignored when read, written as zeros."""
    return ConversionRule((), (library_name,), lambda _: [], lambda _: [torch.zeros(shape, dtype=dtype)])


def modules(names: Mapping[str, str], kinds: Iterable[str] = KINDS) -> list[ConversionRule]:
    """Return the rules of equal modules. names: model name -> library name; kinds: of weights"""
    rules = []
    for model_name, library_name in names.items():
        rules += [same(f"{model_name}.{kind}", f"{library_name}.{kind}") for kind in kinds]
    return rules


def block_modules(
    names: Mapping[str, str], library_block: str, kinds: Iterable[str] = KINDS, model_block: str = "blocks.{n}"
) -> list[ConversionRule]:
    """Return the rules of equal modules in a block. names: model name -> library name, below their blocks"""
    whole = {f"{model_block}.{name}": f"{library_block}.{library_name}" for name, library_name in names.items()}
    return modules(whole, kinds)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((_full(one) == _full(other)).all())


def _as_is(weights: Sequence[Tensor]) -> Sequence[Tensor]:
    return weights


def _transpose(x: Tensor) -> Tensor:
    return x.T if x.ndim == 2 else x


def _full(x: Tensor) -> Tensor:
    return x.float() if is_low_precision(x.dtype) else x
