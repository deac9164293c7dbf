"""Bad values for every option of every choice, generated from the schema: what each type of option must refuse."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from blockyard.config.choices import catalog
from blockyard.config.schema import Option, Root, options, slot
from blockyard.config.untrusted.targets import locate

OBJECT = "{_target_:torch.nn.Identity}"
HUGE_OBJECT = "{_target_:torch.nn.Embedding,num_embeddings:1000000000,embedding_dim:100000}"
REMOTE_OBJECT = "{_target_:torchmetrics.text.BERTScore,model_name_or_path:nobody/nothing}"
DIGITS = "9" * 4000
NUMBERS = ("nan", "inf", "-inf", "1e30", "9223372036854775808", DIGITS)


class BadValue(NamedTuple):
    """Overrides of which one has a bad value. key: that the message must name; executor: its options are not a run's"""

    overrides: tuple[str, ...]
    key: str
    executor: str = ""


class Chosen(NamedTuple):
    """An option of a choice. overrides: that make the choice; key: of the option"""

    overrides: tuple[str, ...]
    key: str
    option: Option
    executor: str = ""


@cache
def every_option() -> tuple[Chosen, ...]:
    """Every option of every class that a config of ours can name, once."""
    wanted: list[Chosen] = [Chosen((), name, option) for name, option in options(Root).items()]
    seen = set()
    for family in catalog.groups():
        for choice in catalog.choices(family).values():
            for key, target in _targets(family, choice):
                if target not in seen:
                    seen.add(target)
                    executor = choice.name if family in catalog.OUTSIDE_RUN else ""
                    chosen = () if executor else (f"{family}={choice.name}",)
                    for name, option in options(locate(target)).items():
                        wanted.append(Chosen(chosen, name if executor else f"{key}.{name}", option, executor))
    return tuple(wanted)


def _targets(family: str, choice: catalog.Choice) -> Iterator[tuple[str, str]]:
    """The keys and classes of a choice's nodes."""
    content = catalog.content(choice.path) or {}
    if family in ("experiment", "preset", "debug"):
        return
    if "_target_" in content:
        yield family, content["_target_"]
    for name, node in content.items():
        if isinstance(node, dict) and "_target_" in node:
            yield f"{family}.{name}", node["_target_"]


@cache
def bad_values() -> tuple[BadValue, ...]:
    """A bad value for each way that an option can be wrong, mixed, so that any part holds all kinds."""
    values = []
    for chosen in every_option():
        for value in _refused(chosen.option):
            written = f"{chosen.key}={value}"
            values.append(BadValue((*chosen.overrides, written), chosen.key, chosen.executor))
    Random(0).shuffle(values)
    return tuple(values)


def _refused(option: Option) -> list[str]:
    """Values as they are written that no option of this type may take."""
    kinds = _kinds(option.annotation)
    if "slot" in kinds:  # a node is never written as a value
        return []
    if dict in kinds:  # whatever is a mapping, but no objects
        return ["5", "abc", "[1]", "{a:" + OBJECT + "}", OBJECT]
    refused = [OBJECT, HUGE_OBJECT, REMOTE_OBJECT, "{a:1}", "[[[1]]]"]
    refused += ["null"] if type(None) not in kinds else []
    refused += ["[{a:1}]", "[" + OBJECT + "]"] if list in kinds else ["[1]", "[a,b]", "[]"]
    if not {int, float} & kinds.keys():
        refused += ["-1.5", *(NUMBERS if str not in kinds else ["1e30"])]
    if not {str, Literal} & kinds.keys():
        refused += ["''", "abc", "'\u00e9\u6f22\u2192'", "'1'"]
    if Literal in kinds:
        refused += ["nonsense", "''", f"{kinds[Literal][0]}x", "'\u6f22'"]
        numbers = [each for each in kinds[Literal] if isinstance(each, int)]
        refused += [text for each in numbers for text in (f"{each}.0", str(each + 1)) if each + 1 not in numbers]
    if str in kinds:
        refused += ["'" + "x" * 2000 + "'", "'a\tb'", "''"] if kinds[str] else ["5", "true"]
    if bool not in kinds:
        refused += ["true"]
    if bool in kinds:
        refused += ["1", "maybe", "0.5"]
    if {int, float} & kinds.keys():
        low, high = kinds.get(int) or kinds[float]
        refused += ["nan", "inf", "-inf", DIGITS]
        refused += [] if float in kinds else ["1.5", "1e30", "9223372036854775808"]
        refused += [] if low is None else [str(low - 1), str(low - 10**6)]
        refused += [] if high is None else [str(high + 1 if high < 10**30 else high * 1.1)]
    return refused


def _kinds(annotation: Any) -> dict[Any, Any]:
    """The kinds of values that a type takes: of numbers the range, of literals the values, of text whether bounded."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if slot(annotation) is not None:
        return {"slot": None}
    if origin in (Union, types.UnionType):
        return {kind: bounds for each in arguments for kind, bounds in _kinds(each).items()}
    if origin is Literal:
        numbers = [each for each in arguments if isinstance(each, int)]
        return {Literal: arguments} | ({int: (min(numbers), max(numbers))} if numbers else {})
    if origin is Annotated:
        (kind,) = _kinds(arguments[0])
        if kind is str:
            return {str: True}
        lows = [each.ge if type(each) is Ge else each.gt for each in arguments[1:] if type(each) in (Ge, Gt)]
        highs = [each.le if type(each) is Le else each.lt for each in arguments[1:] if type(each) in (Le, Lt)]
        return {kind: (max(lows, default=None), min(highs, default=None))}
    if origin in (list, tuple):
        return {list: None}
    if annotation is dict or origin is dict or hasattr(annotation, "__dataclass_fields__"):
        return {dict: None}
    return {annotation: (None, None) if annotation in (int, float) else False}
