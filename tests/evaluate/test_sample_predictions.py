"""The prediction for each test sample that every run keeps, against the model called by hand."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from blockyard.cli import main
from blockyard.contracts import Batch, DataSpec
from blockyard.data.text_file import TextFile
from blockyard.evaluate.sample_predictions import TOP, SampleRecorder
from blockyard.objective.classify import Classify
from blockyard.objective.next_token import NextToken
from blockyard.objective.regress import Regress
from blockyard.runs import predictions_file
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from blockyard.runs.predictions_file import TEST, read_predictions, write_predictions
from blockyard.tokenizer.byte import Byte
from tests.support.engine_runs import run, text_run
from tests.support.every import every
from tests.support.tiny import steps
from tests.support.tolerances import float32

pytestmark = pytest.mark.xdist_group("evaluate")

CLASSES = DataSpec("image", (1, 2, 2), target="class", classes=7)
VALUES = DataSpec("series", (3, 1), target="values", values=(2,))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("image"), *steps(12, 4), "trainer.limit_val=null", "trainer.limit_test=null")


def test_a_run_keeps_what_its_model_says_of_each_test_sample(image: RunFolder) -> None:
    kept, summary = read_predictions(image.path / TEST), image.summary()
    loaded = load(image.path)
    test = loaded.components.load().test
    with torch.no_grad():
        batch = test.batch(torch.arange(len(test)), None)
        chances = loaded.model(batch.inputs).double().softmax(-1)  # (n, V)
    assert isinstance(batch.target, Tensor)
    assert kept.kind == "classes"
    np.testing.assert_array_equal(kept["sample"], np.arange(len(test)))
    np.testing.assert_array_equal(kept["target"], batch.target)
    best, order = chances.topk(TOP)
    np.testing.assert_array_equal(kept["top"], order)
    np.testing.assert_allclose(kept["probability"], best, rtol=1e-4)
    own = -chances[torch.arange(len(test)), batch.target].log()
    np.testing.assert_allclose(kept["loss"], own, rtol=1e-3, atol=float32(terms=64, layers=8)["atol"])
    assert kept["loss"].mean() == pytest.approx(summary["metrics"]["test/loss"], rel=float32(terms=359)["rtol"])
    accuracy = (kept["top"][:, 0] == kept["target"]).mean()
    assert accuracy == pytest.approx(summary["metrics"]["test/accuracy"], rel=1e-6)
    assert summary["predictions"] == {"file": TEST, "samples": len(test), "of": len(test)}
    assert kept.meta["weights"] == summary["weights"]
    assert kept.meta["fingerprint"] == summary["data"]["fingerprint"]
    assert kept.meta["classes"] == 10


def test_eval_writes_the_same_bytes_for_a_run_without_them(
    image: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(image.path, copied := tmp_path / image.path.parent.name / "s0")
    (copied / TEST).unlink()
    assert main(["eval", f"run={copied}", "predictions=true"]) == 0
    assert (copied / TEST).read_bytes() == (image.path / TEST).read_bytes()
    printed = capsys.readouterr()
    assert "test/accuracy" in printed.out
    assert TEST in printed.err
    other = "best" if image.summary()["weights"] == "last.ckpt" else "last"
    assert main(["eval", f"run={copied}", "predictions=true", f"which={other}"]) == 0
    assert (copied / TEST).read_bytes() == (image.path / TEST).read_bytes()
    assert (copied / f"predictions-test-{other}.npz").is_file()
    assert main(["eval", f"run={copied}", "predictions=true", "write=true"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_of_a_language_model_the_sums_of_each_sequence_are_kept(tmp_path: Path) -> None:
    run_folder = text_run(tmp_path, "tokenizer=byte")
    kept, metrics = read_predictions(run_folder.path / TEST), run_folder.summary()["metrics"]
    assert kept.kind == "tokens"
    assert kept["loss"].sum() / kept["count"].sum() == pytest.approx(metrics["test/loss"], rel=1e-5)
    assert len(kept) == kept.meta["of"]
    assert every(count == 16 for count in kept["count"].tolist())  # the context


@pytest.mark.parametrize("sample", ["window", "line"])
def test_sequences_know_the_text_that_they_are_from(sample: str, tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{number:02d} word\n" * (number + 3))
    data = TextFile(path=str(tmp_path), split_by="document", sample=sample, context=8)  # type: ignore[arg-type]
    test = data.load(Byte()).test
    texts: dict[int, list[str]] = {}
    for index in range(len(test)):
        order = torch.tensor([index])
        written = "".join(map(chr, test.batch(order, None).inputs[0].tolist()))
        texts.setdefault(int(test.document_of(order)), []).append(written)
    assert len(texts) > 1
    if sample == "line":  # each text has a number of its own in every line
        assert every(len({line[:2] for line in lines}) == 1 for lines in texts.values())
        assert len({lines[0][:2] for lines in texts.values()}) == len(texts)
    else:
        assert list(texts) == sorted(texts)


def test_an_objective_of_tokens_says_why_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = text_run(tmp_path, "tokenizer=byte", "model=encoder", "objective=masked_token")
    assert not (run_folder.path / TEST).exists()
    assert "predicts the parts of a sample" in run_folder.summary()["predictions"]["left_out"]
    assert main(["eval", f"run={run_folder.path}", "predictions=true"]) == 2
    assert "predicts the parts of a sample" in capsys.readouterr().err


def _batches(count: int, width: int, target: Callable[[Tensor], Tensor], size: int = 8) -> list[tuple[Tensor, Batch]]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, width, generator=generator)
    parts = torch.arange(count).split(size)
    return [(values[part], Batch(torch.zeros(len(part), 1), target(part), sample=part)) for part in parts]


def test_values_are_in_the_units_of_the_data() -> None:
    class Split:
        mean, std = torch.tensor([10.0, -1.0]), torch.tensor([2.0, 0.5])

    def target(part: Tensor) -> Tensor:
        values = torch.stack([part.float(), -part.float()], 1)
        return values.masked_fill(torch.tensor([False, True]) & (part == 3)[:, None], torch.nan)

    recorder = SampleRecorder(Regress(), Split(), VALUES, total=20)  # type: ignore[arg-type]
    batches = _batches(20, 2, target)
    for prediction, batch in batches:
        recorder(prediction, batch)
    kept = recorder.result(part="test")
    assert kept is not None
    raw = torch.cat([prediction for prediction, _ in batches]).numpy()
    scaled = target(torch.arange(20)).numpy()
    np.testing.assert_allclose(kept["prediction"], raw * [2.0, 0.5] + [10.0, -1.0], rtol=1e-6)
    np.testing.assert_allclose(kept["target"], scaled * [2.0, 0.5] + [10.0, -1.0], rtol=1e-6)
    np.testing.assert_allclose(kept["loss"], np.nanmean((raw - scaled) ** 2, axis=1), rtol=1e-5)
    assert np.isnan(kept["target"][3, 1])


def test_a_loss_that_branches_on_values_is_computed_sample_by_sample() -> None:
    class Branching(Regress):
        def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
            return super().loss(prediction, target) if bool((target > 0).all()) else prediction.sum() * 0 - 1

    target = torch.tensor([[1.0, 2.0], [-1.0, 2.0], [3.0, 0.5]])
    losses = []
    for objective in (Regress(), Branching()):
        recorder = SampleRecorder(objective, object(), VALUES, total=3)  # type: ignore[arg-type]
        recorder(torch.zeros(3, 2), Batch(torch.zeros(3, 1), target, sample=torch.arange(3)))
        kept = recorder.result()
        assert kept is not None
        losses.append(kept["loss"].tolist())
    assert losses == [[2.5, 2.5, 4.625], [2.5, -1.0, 4.625]]


def test_of_equal_logits_the_first_counts_as_it_does_in_the_metrics() -> None:
    logits = torch.tensor([[0.0] * 7, [1, 2, 2, 2, 2, 2, 2], [0, 1, 2, 3, 4, 5, 6], [9, 9, 0, 1, 0, 0, 0.5]])
    recorder = SampleRecorder(Classify(), SimpleNamespace(), CLASSES, total=4)  # type: ignore[arg-type]
    recorder(logits, Batch(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), sample=torch.arange(4)))
    kept = recorder.result()
    assert kept is not None
    assert kept["top"][:, 0].tolist() == logits.argmax(-1).tolist()
    assert kept["top"][2:].tolist() == [[6, 5, 4, 3, 2], [0, 1, 3, 6, kept["top"][3, 4]]]
    assert every(len(set(row)) == TOP for row in kept["top"].tolist())


def test_dummies_are_left_out_and_samples_without_a_target_have_no_loss() -> None:
    recorder = SampleRecorder(Classify(), SimpleNamespace(), CLASSES, total=4)  # type: ignore[arg-type]
    target = torch.tensor([1, Batch.ignore, 2, Batch.ignore])
    sample = torch.tensor([0, 1, 2, -1])
    recorder(torch.randn(4, 7), Batch(torch.zeros(4, 1), target, sample=sample))
    kept = recorder.result()
    assert kept is not None
    assert kept["sample"].tolist() == [0, 1, 2]
    assert np.isnan(kept["loss"]).tolist() == [False, True, False]


def test_the_file_is_bounded_and_every_run_keeps_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six classes in batches of 8 or of 50: as many samples as fit, evenly spaced, whatever the batch."""
    monkeypatch.setattr("blockyard.evaluate.sample_predictions.MAX_BYTES", 30 * 4 * (3 + 2 * TOP))
    kept = []
    for size in (8, 50):
        recorder = SampleRecorder(Classify(), SimpleNamespace(), CLASSES, total=100)  # type: ignore[arg-type]
        for prediction, batch in _batches(100, 7, lambda part: part % 7, size):
            recorder(prediction, batch)
        result = recorder.result()
        assert result is not None
        assert sum(array.nbytes for array in result.arrays.values()) <= 30 * 4 * (3 + 2 * TOP)
        assert recorder.record(result, TEST) == {"file": TEST, "samples": 30, "of": 100}
        kept.append(result["sample"].tolist())
    assert kept[0] == kept[1]
    gaps = np.diff(kept[0])
    assert set(gaps.tolist()) == {3, 4}


def test_what_has_no_one_prediction_is_refused_with_a_reason() -> None:
    several = SampleRecorder(NextToken(), object(), CLASSES, total=4)  # type: ignore[arg-type]
    several(torch.zeros(2, 3, 2, 7), Batch(torch.zeros(2, 3), torch.zeros(2, 3).long(), sample=torch.arange(2)))
    assert "not those of one next token" in str(several.reason)
    huge = SampleRecorder(Regress(), object(), VALUES, total=4)  # type: ignore[arg-type]
    width = predictions_file.MAX_BYTES // 800 + 1
    huge(torch.zeros(2, width), Batch(torch.zeros(2, 1), torch.zeros(2, width), sample=torch.arange(2)))
    assert huge.result() is None
    assert "more than the file is for" in str(huge.record(None, TEST)["left_out"])


def test_a_damaged_file_is_named(image: RunFolder, tmp_path: Path) -> None:
    kept = read_predictions(image.path / TEST)
    path = tmp_path / TEST
    path.write_bytes((image.path / TEST).read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        read_predictions(path)
    for change in ({"top": kept["top"][:-1]}, {"sample": kept["sample"][::-1]}, {"loss": kept["target"]}):
        write_predictions(path, predictions_file.SamplePredictions("classes", {**kept.arrays, **change}, kept.meta))
        with pytest.raises(ValueError, match="damaged"):
            read_predictions(path)
    np.savez(path, meta=np.array(json.dumps({"kind": "classes"})), sample=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="damaged"):  # a pickle is not read
        read_predictions(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sample.npy", bytes(3 * predictions_file.MAX_BYTES))
    with pytest.raises(ValueError, match="more than"):
        read_predictions(path)
