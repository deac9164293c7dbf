"""Options of data sets and tokenizers: inherited ones keep their types, their checks and their help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from blockyard.config import schema
from blockyard.config.choices import catalog
from blockyard.config.untrusted import targets
from blockyard.data.cifar10_views import CIFAR10Views
from blockyard.data.digits import Digits
from blockyard.data.splits.split import DrawnSplits

CLASSES = [
    pytest.param(targets.locate(choice.target), id=f"{family}-{name}")
    for family in ("data", "tokenizer")
    for name, choice in catalog.choices(family).items()
]
DRAWN = [case for case in CLASSES if isinstance(case.values[0], type) and issubclass(case.values[0], DrawnSplits)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_option_has_a_type_and_a_help(cls: type) -> None:
    for name, option in schema.options(cls).items():
        assert option.annotation is not Any, name
        assert option.help, name


def test_inherited_types_are_resolved_where_they_are_declared() -> None:
    """Neither class is in a module that imports `Count` or `Fraction`."""

    @dataclass(kw_only=True, eq=False)
    class Larger(Digits):
        train_size: int | None = 500

    for cls in (CIFAR10Views, Larger):
        options = schema.options(cls)
        assert options["batch_size"].problem(0) == "expected int >= 1 and <= 1,048,576"
        assert options["validation_fraction"].problem(1.0) == "expected number > 0 and < 1"
    assert schema.options(Larger)["train_size"].problem("all") is not None


def test_fixed_fields_are_no_options() -> None:
    """Views are cropped from images that are not augmented."""
    assert not {"shift", "crop", "_fingerprint"} & schema.options(CIFAR10Views).keys()
    with pytest.raises(TypeError, match="shift"):
        CIFAR10Views(shift=2)  # type: ignore[call-arg]


def test_a_subclass_states_what_differs() -> None:
    assert (Digits().batch_size, CIFAR10Views().batch_size, CIFAR10Views(size=8).spec.shape) == (64, 128, (4, 3, 8, 8))


@pytest.mark.parametrize("cls", DRAWN)
def test_a_data_set_keeps_samples_to_train_on(cls: type) -> None:
    with pytest.raises(ValueError, match="leave nothing to train on; their sum must be below 1"):
        cls(validation_fraction=0.6, test_fraction=0.4)
