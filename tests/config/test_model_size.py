"""The dial model.size: parameters near N for every kind of data, what was typed stays, and refusals."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.model_size import TOLERANCE
from blockyard.config.runnable import BUILT_IN
from blockyard.config.size_matching import ModelSizes

TARGETS = (100_000, 400_000, 1_600_000)
FROM_FILES = ("molecules",)
DATA = [
    *(name for name in BUILT_IN if name not in FROM_FILES),
    "code_topics",
    "canvas_drawings",
    "dial_numbers",
    "copy",
]


@pytest.mark.parametrize("data", DATA)
def test_sizes_are_near_and_grow(data: str) -> None:
    """The size is that of the saved config, within a tenth of N, and depth and width grow with it."""
    shapes = []
    for target in TARGETS:
        composed = compose([f"data={data}", f"model.size={target}"])
        assert not check(composed, builds=False)
        assert composed.sized is not None
        count = ModelSizes().measure(composed.config, "params")
        assert count == composed.sized.value
        assert abs(count / target - 1) <= TOLERANCE
        assert "size" not in composed.config["model"]
        shapes.append((composed.config["model"]["depth"], composed.config["model"]["dim"]))
    for (depth, dim), (next_depth, next_dim) in pairwise(shapes):
        assert next_depth >= depth
        assert next_dim > dim


def test_an_experiment_may_set_the_dial(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("# @package _global_\nmodel: {size: 300k}\n", encoding="utf-8")
    of_file = compose(["experiment=mine"], [str(tmp_path)])
    assert of_file.sized is not None
    assert of_file.sized.target == 300_000
    typed = compose(["experiment=mine", "model.size=tiny"], [str(tmp_path)])
    assert typed.sized is not None
    assert typed.sized.target == 100_000
    assert not check(typed, builds=False)


def test_the_rate_carries_over_and_steps_grow() -> None:
    base = compose(["data=code"]).config
    sized = compose(["data=code", "model.size=4M"]).config
    assert sized["optimizer"] == base["optimizer"]
    parametrization = sized["parametrization"]
    assert (parametrization["base_dim"], parametrization["base_depth"]) == (
        base["model"]["dim"],
        base["model"]["depth"],
    )
    parameters = ModelSizes().measure(base, "params")
    assert parameters is not None
    assert sized["trainer"]["max_steps"] == round(1500 * 4_000_000 / parameters)


def test_what_is_typed_stays() -> None:
    typed = ["data=code", "model.size=1M", "trainer.max_steps=7", "parametrization=standard"]
    composed = compose([*typed, "model.depth=3", "model.heads=8"])
    assert composed.sized is not None
    assert composed.sized.settings.keys() == {"model.dim"}
    model = composed.config["model"]
    assert (model["depth"], model["heads"], composed.config["trainer"]["max_steps"]) == (3, 8, 7)
    by_depth = compose([*typed, "model.dim=64"]).config["model"]
    assert by_depth["dim"] == 64
    assert by_depth["depth"] > 4


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ("model.size=huge", "expected a number of parameters"),
        ("model.size=0", "expected a number of parameters"),
        ("data=digits model.size=12", "no model of this kind has about 12 parameters"),
        ("model.size=tiny match.params=1e5", "match solves for a size too"),
        ("model.size=tiny model.dim=64 model.depth=2", "leaves nothing to solve"),
        ("data=co2 preset=dlinear model.size=tiny", "preset=dlinear has model.dim of its own"),
        ("model=bare token_mixer=none channel_mixer=none norm=none block=none model.size=tiny", "no model.depth"),
    ],
)
def test_refusals(overrides: str, reason: str) -> None:
    problems = [issue for issue in check(compose(overrides.split()), builds=False) if issue.key == "model.size"]
    assert len(problems) == 1
    assert reason in problems[0].text
