"""Averages of weights: against a sum by hand, what is in a greedy one, and what has no average."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from blockyard.contracts import Inputs
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate
from blockyard.evaluate.soup import _greedy, average, best_first, cook
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from blockyard.weights.convert.exporting import export_weights
from tests.support.engine_runs import run, text_run
from tests.support.fork import blockyard
from tests.support.tiny import SHORTEST, steps
from tests.support.tolerances import float32

pytestmark = pytest.mark.xdist_group("soup")  # its tests share runs

SHORT = (*steps(6, 3), "data.shift=0", "token_mixer.dropout=0")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Three runs that start from one, with other rates, dropout and losses; the last trains additions of LoRA."""
    outputs = tmp_path_factory.mktemp("tuned")
    source = run(outputs, *steps(20, 10), "name=source")
    start = (*SHORT, f"init.from={source.path}")
    return [
        run(outputs, *start, "name=one", "optimizer.lr=1e-3"),
        run(
            outputs, *start, "name=two", "optimizer.lr=3e-3", "token_mixer.dropout=0.2", "objective.label_smoothing=0.1"
        ),
        run(outputs, *start, "name=three", "init.lora.rank=2", "init.lora.layers=[token_mixer,channel_mixer]"),
    ]


def files(runs: list[RunFolder]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for each in runs for path in each.path.rglob("*") if path.is_file()}


def test_a_mean_is_summed_in_float64() -> None:
    states = [{"w": torch.tensor([1e8, value]), "n": torch.tensor(3)} for value in (1.0, 2.0, 6.0)]
    assert average(states)["w"].tolist() == [1e8, 3.0]
    halves = [{"w": torch.tensor([value], dtype=torch.bfloat16)} for value in (1.0, 2.0, 3.0)]
    assert average(halves)["w"].dtype == torch.bfloat16
    assert average(halves)["w"].item() == 2.0
    assert average([{"w": torch.tensor([1e8])}, {"w": torch.tensor([8.0])}])["w"].item() == 5e7 + 4


def test_a_uniform_soup_is_the_mean_and_a_run(tuned: list[RunFolder], tmp_path: Path) -> None:
    before = files(tuned[:2])
    soup = cook([str(each.path) for each in tuned[:2]], tmp_path / "soup")
    saved = [read(each.checkpoints / "best.ckpt")["state_dict"] for each in tuned[:2]]
    averaged = load(tmp_path / "soup").model.state_dict()
    assert averaged.keys() == {name.removeprefix("model.") for name in saved[0]}
    for name, tensor in averaged.items():
        by_hand = sum(state[f"model.{name}"].double() for state in saved) / 2
        torch.testing.assert_close(tensor.double(), by_hand, rtol=1e-7, atol=1e-9)
    assert evaluate(tmp_path / "soup", split="validation")["val/accuracy"] == soup.result.value
    assert [each.value for each in soup.ingredients] == [
        each.summary()["metrics"]["val/accuracy"] for each in tuned[:2]
    ]
    assert soup.result.test is None
    assert files(tuned[:2]) == before


def test_a_greedy_soup_keeps_what_does_not_make_it_worse(tuned: list[RunFolder], tmp_path: Path) -> None:
    paths = [str(each.path) for each in tuned]
    soup = cook(paths, tmp_path / "soup", recipe="greedy", test=True)
    values = [each.value for each in soup.ingredients]
    assert soup.result.value >= max(values)
    assert soup.ingredients[values.index(max(values))].used
    tested = evaluate(tmp_path / "soup")["test/accuracy"]
    assert soup.result.test == tested
    assert [each.test for each in soup.ingredients] == [each.summary()["metrics"]["test/accuracy"] for each in tuned]


@pytest.mark.parametrize(("mode", "order"), [("max", [3, 2, 0, 1]), ("min", [0, 2, 3, 1])])
def test_a_metric_that_is_nan_is_the_worst(mode: str, order: list[int]) -> None:
    assert best_first([0.4, math.nan, 0.5, 0.7], mode) == order
    kept = _greedy(order, lambda chosen: math.nan if 1 in chosen else 0.5, mode)
    assert kept == order[:3]
    with pytest.raises(UserError, match="no ingredient has a validation metric"):
        _greedy(order, lambda chosen: math.nan, mode)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_greedy_recipe_by_every_table_of_values(mode: str) -> None:
    """Against the recipe as the paper states it, for all orders of the values of the averages of three."""
    sign = 1 if mode == "max" else -1
    for values in itertools.product([0, 1, 2], repeat=4):
        table = dict(zip([(0,), (0, 1), (0, 2), (0, 1, 2)], values, strict=True))
        kept: tuple[int, ...] = (0,)
        for number in (1, 2):
            if sign * table[(*kept, number)] >= sign * table[kept]:
                kept = (*kept, number)
        assert tuple(_greedy([0, 1, 2], lambda chosen, table=table: table[tuple(chosen)], mode)) == kept


def test_additions_are_put_into_the_weights_and_the_run_stays(tuned: list[RunFolder], tmp_path: Path) -> None:
    """Two checkpoints of a run with LoRA; and an export of one of them predicts what the run does."""
    lora = tuned[2]
    before = files([lora])
    soup = cook([str(lora.path)], tmp_path / "soup", which=["previous", "last"])
    assert len(soup.ingredients) == 2
    merged = load(tmp_path / "soup").model
    assert not any("parametrizations" in name for name in merged.state_dict())
    states = [load(lora.path, which=which).model for which in ("previous", "last")]
    layers = [dict(model.named_modules())["blocks.0.token_mixer.proj_out"] for model in states]
    mean = (layers[0].weight.double() + layers[1].weight.double()) / 2  # the weight with its addition
    torch.testing.assert_close(merged.blocks[0].token_mixer.proj_out.weight.double(), mean, **float32(terms=4))
    assert files([lora]) == before
    export_weights(load(lora.path), tmp_path / "exported", kind="safetensors")
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own, alone = (load(path).model(Inputs(images)) for path in (lora.path, tmp_path / "exported"))
    torch.testing.assert_close(alone, own, **float32(terms=64, layers=8))
    assert files([lora]) == before
    facts = RunFolder.open(tmp_path / "soup").facts()["soup"]
    assert [each["run"] for each in facts["ingredients"]] == [str(lora.path)] * 2


@pytest.mark.full
def test_what_has_no_average_is_refused(tuned: list[RunFolder], tmp_path: Path) -> None:
    one = str(tuned[0].path)
    wide = run(tmp_path, "name=wide", "model.dim=32", base=SHORTEST)
    less = run(tmp_path, "name=less", "data.train_size=640", base=SHORTEST)
    causes = {
        "at least two": [one],
        "would count twice": [one, one],
        r"differ in model\.dim \(16 and 32\)": [one, str(wide.path)],
        "differ in the data, or their split": [one, str(less.path)],
    }
    for reason, runs in causes.items():
        with pytest.raises(UserError, match=reason):
            cook(runs, tmp_path / "soup")
    norms = [run(tmp_path, f"name=bn{seed}", f"seed={seed}", "norm=batch", base=SHORTEST) for seed in (0, 1)]
    with pytest.raises(UserError, match=r"running_mean is not a weight but a statistic"):
        cook([str(each.path) for each in norms], tmp_path / "soup")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("")
    with pytest.raises(UserError, match="it exists"):
        cook([one, str(tuned[1].path)], tmp_path / "there")
    assert not (tmp_path / "soup").exists()


@pytest.mark.full
def test_another_learned_tokenizer_is_refused(tmp_path: Path) -> None:
    texts = []
    for name, text in (("one", "the cat sat on the mat. "), ("two", "pack my box with jugs! ")):
        (tmp_path / f"{name}.txt").write_text(text * 80)
        data = ("data=text_file", f"data.path={tmp_path / name}.txt", "tokenizer=char")
        texts.append(text_run(tmp_path, *data, f"name={name}"))
    with pytest.raises(UserError, match="what the tokenizer has learned"):
        cook([str(each.path) for each in texts], tmp_path / "soup")


def test_the_command_prints_each_of_them_and_the_soup(tuned: list[RunFolder], tmp_path: Path) -> None:
    printed = blockyard(tmp_path, "soup", str(tuned[0].path), str(tuned[1].path), "out=soups/both", "weights=greedy")
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    assert lines[0].split() == ["ingredient", "in", "the", "soup", "val/accuracy"]
    assert [line.split()[0] for line in lines[1:4]] == [tuned[0].name, tuned[1].name, "soup"]
    assert lines[-1] == str(tmp_path / "soups" / "both")
    assert blockyard(tmp_path, "eval", "run=soups/both", "split=validation").stdout.split()[-1] == lines[3].split()[-1]
    refused = blockyard(tmp_path, "soup", str(tuned[0].path), "out=x", "weight=greedy")
    assert refused.returncode == 2
    assert "did you mean weights" in refused.stderr
