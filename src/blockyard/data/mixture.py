"""Several data sets of one modality in one run, with shares that may change over its steps.

Source: Arivazhagan et al. 2019, Massively Multilingual Neural Machine Translation in the Wild (arXiv 1907.05019),
    section 4.2, for the temperature; Bengio et al. 2009, Curriculum Learning (ICML), for shares that change
Reference: the formulas
Equation: share of part i: w_i / sum of all w; without weights w_i = n_i^(1/T), n_i its training samples

    data=mixture 'data.parts=[code,text_file]' 'data.weights={code: 3, text_file: 1}'
    data=mixture 'data.parts={easy: induction, hard: induction}' data.members.hard.length=128

A part is a choice of data, with its options under members, or a config node of your own there. Two parts of one choice
have names of their own. One tokenizer is fitted on the training texts of all parts. What a sample is must be the same
in all of them.

An epoch is as many samples as all training splits have together. A part that is due for more than it has starts over in
a new order; one that is due for less goes on in the next epoch where it was. Validation and test splits are one after
the other, each sample once whatever the weights are, and every metric is reported for each part too: `loss@code`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, ClassVar, TypeVar

from annotated_types import Ge, Le

from blockyard.contracts import (
    BatchSize,
    DataModule,
    DataSpec,
    ImageTokenizer,
    NonNegative,
    Positive,
    Split,
    Splits,
    Streamed,
    Text,
    TextTokenizer,
    Tokenizer,
)
from blockyard.data.files.digest import sha256
from blockyard.data.splits.mixed import MixedSplit, WeightCurve
from blockyard.errors import UserError, fold

Value = TypeVar("Value")
FROM_THE_CHOICES: Mapping[str, DataModule] = MappingProxyType({})
_MODALITIES = ("text", "symbols", "image")
_TARGETS = (None, "class", "symbols")
_OWN = {"slices", "class_names", "variable", "resizable"}  # facts in which parts may differ
_SIZES = ("batch_size", "eval_batch_size")


class Mixture(DataModule):
    """The training samples of several data sets in one stream; their validation and test splits, one after the other.

    Options:
        parts: the data sets, as a list of choices of data, or as names of your own with a choice each
        members: the data sets by name; filled in from the choices of data
        weights: the share of each part of the training samples, in any unit; 0 evaluates a part that is not trained on.
            null takes their numbers of samples, so that all samples come equally often
        temperature: where weights are null, above 1 small parts come more often than that: n^(1/temperature)
        schedule: weights that change, in place of weights: those at shares of the run, with straight lines between;
            a point is {at: 0.5, weights: {...}}
        batch_size: samples in a training step, of all parts together, over all processes
        eval_batch_size: samples in a validation or test step, of one part, over all processes
    """

    nested_choices: ClassVar[dict[str, tuple[str, str]]] = {"members": ("data", "parts")}
    incidental: ClassVar[frozenset[str]] = frozenset({"eval_batch_size"})

    def __init__(
        self,
        *,
        parts: tuple[Text, ...] | dict[str, Text] = ("code", "text_file"),
        members: dict[str, DataModule] = FROM_THE_CHOICES,  # type: ignore[assignment]
        weights: dict[str, NonNegative] | None = None,
        temperature: Positive = 1.0,
        schedule: tuple[SharesAt, ...] = (),
        batch_size: BatchSize = 32,
        eval_batch_size: BatchSize = 64,
    ) -> None:
        self.members = _checked(list(parts), members)
        self.weights, self.temperature, self.schedule = weights, temperature, tuple(schedule)
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self._fingerprint: str | None = None
        if (weights is not None) + (temperature != 1.0) + bool(schedule) > 1:
            raise ValueError("data.weights, data.temperature and data.schedule each say what the shares are; use one")
        if weights is not None:
            self._check_weights("data.weights", weights)
        points = [point.at for point in self.schedule]
        for point in self.schedule:
            self._check_weights(f"data.schedule, at {point.at:g}", point.weights)
        if len(points) == 1 or points != sorted(set(points)):
            raise ValueError(f"data.schedule has points at {points}: expected two or more, increasing")

    def _check_weights(self, key: str, weights: Mapping[str, float]) -> None:
        """Raise ValueError for weights of other parts, of too few, or of nothing."""
        if set(weights) != set(self.members):
            raise ValueError(
                f"{key} has weights for {', '.join(weights) or 'no part'}; the parts are {', '.join(self.members)}, "
                "and each needs a weight, which may be 0"
            )
        if not sum(weights.values()) > 0:
            raise ValueError(f"{key}: all weights are 0; one part at least must be trained on")

    @cached_property
    def spec(self) -> DataSpec:
        """The specification of a sample in all parts. Raises ValueError for a part that cannot be mixed, or differs."""
        specs = {name: self._of(name, lambda data: data.spec) for name in self.members}
        for name, spec in specs.items():
            problem = _problem(spec)
            if problem:
                raise ValueError(f"data.parts: {name} {problem}")
        shared = [field.name for field in fields(DataSpec) if field.name not in _OWN]
        first, *others = specs
        for other in others:
            for fact in shared:
                a, b = getattr(specs[first], fact), getattr(specs[other], fact)
                if a != b:
                    raise ValueError(
                        f"data.parts: samples of all parts must be alike, and {fact} is {a} in {first} and {b} in "
                        f"{other}; set options of data.members.{first} or data.members.{other}"
                    )
        class_names = {spec.class_names for spec in specs.values()}
        different = [names for names in class_names if names]
        if len(different) > 1:
            listed = "; ".join(sorted(fold(list(names)) for names in different))
            raise ValueError(
                f"data.parts: the classes of parts differ: {listed}; parts need the same ones in one order"
            )
        return replace(
            specs[first],
            slices=tuple(specs),
            mixed=True,
            class_names=class_names.pop() if len(class_names) == 1 else (),
            variable=any(spec.variable for spec in specs.values()),
            resizable=all(spec.resizable for spec in specs.values()),
        )

    def missing(self) -> str | None:
        """Return the message of the first incomplete part, or None."""
        for name, data in self.members.items():
            text = data.missing()
            if text:
                return f"{name}: {_with_keys(text, name, data)}"
        return None

    def to_download(self) -> bool:
        """Return whether a part has something to download."""
        return any(data.to_download() for data in self.members.values())

    def prepare(self) -> None:
        """Prepare each part, which downloads its files if its options allow it."""
        for data in self.members.values():
            data.prepare()

    def token_name(self, token_id: int) -> str | None:
        """Return the name of a token id where all parts agree in it."""
        names = {data.token_name(token_id) for data in self.members.values()}
        return names.pop() if len(names) == 1 else None

    def limits(self) -> tuple[str, ...]:
        """Return the limits of the parts, and the parts with slices that are not reported."""
        texts = [f"{name}: {text}" for name, data in self.members.items() for text in data.limits()]
        sliced = [name for name, data in self.members.items() if data.spec.slices]
        if sliced:
            texts.append(f"{', '.join(sliced)}: evaluated as a part of a mixture, and not by slices of its own")
        return tuple(texts)

    def bytes_in_memory(self) -> int:
        """Return the memory of all parts."""
        return sum(data.bytes_in_memory() for data in self.members.values())

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Load all parts, with a tokenizer that is fitted on the training texts of all of them."""
        if isinstance(tokenizer, ImageTokenizer):
            raise UserError(
                f"data=mixture does not make token ids of images, and {type(tokenizer).__name__} does; use "
                "tokenizer=patch, or one data set"
            )
        if isinstance(tokenizer, TextTokenizer) and not tokenizer.state():
            self._fit(tokenizer)
        loaded = {name: self._of(name, lambda data: data.load(tokenizer)) for name in self.members}
        for name, splits in loaded.items():
            if isinstance(splits.train, Streamed):
                raise UserError(
                    f"data.parts: {name} is a stream, and a mixture takes samples by their index; use another part"
                )
        self._fingerprint = sha256(text for name, data in self.members.items() for text in (name, data.fingerprint()))
        context = self.spec.shape[0]
        counts = {name: len(splits.train) for name, splits in loaded.items()}

        def part(number: int) -> dict[str, Split]:
            return {name: splits[number] for name, splits in loaded.items()}

        train = MixedSplit(part(0), context, self._curve(counts))
        return Splits(train, MixedSplit(part(1), context), MixedSplit(part(2), context))

    def fingerprint(self) -> str:
        """Return a hash of the fingerprints of the parts with their names."""
        assert self._fingerprint is not None, "fingerprint() is valid after load()"
        return self._fingerprint

    def _curve(self, counts: Mapping[str, int]) -> WeightCurve:
        """Return the weights over a run. counts: training samples of each part."""
        if self.schedule:
            points = tuple(point.at for point in self.schedule)
            return WeightCurve(points, tuple(self._in_order(point.weights) for point in self.schedule))
        weights = self.weights or {name: count ** (1 / self.temperature) for name, count in counts.items()}
        return WeightCurve((0.0,), (self._in_order(weights),))

    def _in_order(self, weights: Mapping[str, float]) -> tuple[float, ...]:
        return tuple(weights[name] for name in self.members)

    def _fit(self, tokenizer: TextTokenizer) -> None:
        """Fit a tokenizer on the texts that each part would fit one on."""
        texts: list[str] = []

        # A part gives its texts to a tokenizer alone, when it fits one: nothing needs to be encoded for that.
        def collect(part_texts: Iterable[str]) -> None:
            texts.extend(part_texts)
            raise _CollectedError

        for name in self.members:
            reader = copy(tokenizer)
            reader.fit = collect  # type: ignore[method-assign, assignment]
            try:
                self._of(name, lambda data, reader=reader: data.load(reader))  # type: ignore[misc]
            except _CollectedError:
                continue
        tokenizer.fit(texts)

    def _of(self, name: str, call: Callable[[DataModule], Value]) -> Value:
        """Return the result of a call for a part. Errors name its options as this config has them."""
        data = self.members[name]
        try:
            return call(data)
        except UserError as error:
            raise UserError(f"{name}: {_with_keys(str(error), name, data)}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {_with_keys(str(error), name, data)}") from error


@dataclass(frozen=True, kw_only=True)
class SharesAt:
    """The weights of all parts at one point of a run.

    at: a share of the run, from 0 to 1; weights: by part, in any unit
    """

    at: Annotated[float, Ge(0), Le(1)]
    weights: dict[str, NonNegative]


class _CollectedError(Exception):
    """A part has given the texts that it would fit a tokenizer on, and need not be read further."""


def _with_keys(text: str, name: str, data: DataModule) -> str:
    """Return a message of a part with the keys of its options: data.path=FILE is data.members.NAME.path=FILE."""
    names = "|".join(inspect.signature(type(data)).parameters)
    return re.sub(rf"(?<![\w/.-])data\.({names})\b", rf"data.members.{name}.\1", text)


def _checked(parts: list[str], members: Mapping[str, DataModule]) -> dict[str, DataModule]:
    """Return the data sets in the order of the parts. Raises ValueError for an unknown part, and an unused entry."""
    if len(parts) < 2 or len(set(parts)) < len(parts):
        raise ValueError(
            f"data.parts={parts}: expected two or more different names; the same data set twice has names of its own: "
            "data.parts={a: code, b: code}"
        )
    missing = [name for name in parts if name not in members]
    if missing:
        raise ValueError(f"data.parts: {', '.join(missing)} is neither a data set nor one of data.members")
    unused = [name for name in members if name not in parts]
    if unused:
        raise ValueError(f"data.members.{unused[0]} is not in data.parts=[{','.join(parts)}]; add it, or remove it")
    for name in parts:
        data = members[name]
        if isinstance(data, Mixture):
            raise ValueError(f"data.parts: {name} is a mixture itself; list its parts instead")
        for size in _SIZES:
            option = inspect.signature(type(data)).parameters.get(size)
            value = getattr(data, size, None)
            if option is not None and value != option.default:
                raise ValueError(f"data.members.{name}.{size}={value} has no effect: data.{size} is that of all parts")
    return {name: members[name] for name in parts}


def _problem(spec: DataSpec) -> str | None:
    """Return why a data set cannot be part of a mixture, or None."""
    if spec.modality not in _MODALITIES:
        return f"has {spec.things}; data=mixture mixes texts, symbols and images"
    if spec.source is not None or spec.joined:
        return "has a source beside each sample; data=mixture does not mix pairs"
    if spec.target not in _TARGETS:
        return f"has {spec.target} as targets; data=mixture mixes data without a target, with classes, or with symbols"
    return None
