"""The name of a metric, taken apart and put together."""

from __future__ import annotations

import pytest

from blockyard.runs.metric_name import MetricName


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("val/accuracy@ema", ("val", "accuracy", "ema")),
        ("test/loss", ("test", "loss", "")),
        ("accuracy@4x", ("", "accuracy", "4x")),
        ("test/accuracy@a/b", ("test", "accuracy", "a/b")),
        ("step_seconds", ("", "step_seconds", "")),
        ("steps_to(val/accuracy>=0.9)", ("", "steps_to(val/accuracy>=0.9)", "")),
    ],
)
def test_a_name_has_a_split_a_metric_and_a_variant(text: str, parts: tuple[str, str, str]) -> None:
    name = MetricName.parse(text)
    assert (name.split, name.name, name.variant) == parts
    assert str(name) == text


def test_the_same_metric_on_another_split() -> None:
    name = MetricName.parse("test/accuracy@ema")
    assert str(name.on("val")) == "val/accuracy@ema"
    assert str(name.on("val").plain()) == "val/accuracy"
    assert str(name.on("")) == "accuracy@ema"
