"""Tables of single test samples, against scikit-learn, torchmetrics and counts by hand."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from blockyard.config import build
from blockyard.report.comparison import compare
from blockyard.report.load.run_record import read_run
from blockyard.report.samples.build import samples, value_table
from blockyard.report.samples.classes import calibration, class_scores, class_table, confusion
from blockyard.report.samples.selection import disputed, worst
from blockyard.report.samples.views import MAX_TEXT, _original_texts, _Test, _view, views
from blockyard.runs.predictions_file import TEST, SamplePredictions, write_predictions
from tests.report.report_runs import NORMS, sweep
from tests.support.engine_runs import run as trained
from tests.support.engine_runs import text_run
from tests.support.every import every
from tests.support.tiny import ON_CPU, SHORTEST, configured, steps
from tests.support.tolerances import float32


def classifier(seed: int, *, count: int = 200, classes: int = 6, missing: int = 0, **meta: Any) -> SamplePredictions:
    """Predictions of random logits, some of the targets missing."""
    generator = np.random.default_rng(seed)
    target = np.random.default_rng(99).integers(0, classes, count)
    logits = generator.normal(size=(count, classes)) + 2.0 * np.eye(classes)[target]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    order = np.argsort(-chances, axis=1)[:, :5]
    loss = -np.log(chances[np.arange(count), target])
    target, loss = target.copy(), loss.copy()
    target[:missing], loss[:missing] = -100, np.nan
    arrays = {
        "sample": np.arange(count, dtype=np.int32),
        "target": target.astype(np.int32),
        "loss": loss.astype(np.float32),
        "top": order.astype(np.int32),
        "probability": np.take_along_axis(chances, order, 1).astype(np.float32),
    }
    return SamplePredictions("classes", arrays, {"classes": classes, "of": count, "fingerprint": "f", **meta})


def test_the_scores_of_classes_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    predictions = classifier(1, missing=7)
    target, predicted = predictions["target"][7:], predictions["top"][7:, 0]
    counts = confusion(predictions, 6)
    np.testing.assert_array_equal(counts, confusion_matrix(target, predicted, labels=range(6)))
    theirs = precision_recall_fscore_support(target, predicted, labels=range(6), zero_division=np.nan)
    np.testing.assert_allclose(class_scores(counts), np.stack(theirs, axis=1))


def test_a_class_that_is_never_predicted_has_no_precision() -> None:
    counts = np.array([[3, 0, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(
        class_scores(counts), [[0.75, 1, 6 / 7, 3], [np.nan, 0, 0, 1], [np.nan, np.nan, np.nan, 0]]
    )


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    from torchmetrics.functional.classification import multiclass_calibration_error

    predictions = classifier(2)
    generator = np.random.default_rng(2)
    logits = generator.normal(size=(200, 6)) + 2.0 * np.eye(6)[predictions["target"]]
    theirs = multiclass_calibration_error(
        torch.from_numpy(logits).softmax(-1), torch.from_numpy(predictions["target"]).long(), 6, n_bins=15, norm="l1"
    )
    own = calibration(predictions)
    assert own.ece == pytest.approx(float(theirs), rel=float32(terms=200)["rtol"])
    assert own.count.sum() == 200


def test_the_ends_belong_to_the_first_and_the_last_bin() -> None:
    predictions = classifier(3, count=3)
    predictions["probability"][:, 0] = [0.0, 0.07, 1.0]
    assert np.flatnonzero(calibration(predictions).count).tolist() == [0, 1, 14]


def test_worst_is_by_the_mean_loss_over_runs_without_samples_that_have_no_target() -> None:
    runs = [classifier(seed, missing=3) for seed in (1, 2)]
    rows = worst(runs, 10)
    mean = (runs[0]["loss"] + runs[1]["loss"]) / 2
    assert rows.tolist() == sorted(range(3, 200), key=lambda row: -mean[row])[:10]
    assert len(worst([classifier(1, count=4, missing=3)], 10)) == 1


def test_disputed_is_the_share_of_runs_beside_the_most_frequent_class() -> None:
    runs = [classifier(seed, count=4) for seed in range(4)]
    for run, votes in zip(runs, ([0, 0, 1, 5], [0, 1, 1, 4], [0, 0, 2, 3], [0, 0, 2, 2]), strict=True):
        run["top"][:, 0] = votes
    rows, measure = disputed(runs, 10)
    assert dict(zip(rows.tolist(), measure.tolist(), strict=True)) == {3: 0.75, 2: 0.5, 1: 0.25}
    assert rows.tolist() == [3, 2, 1]
    assert len(disputed(runs[:1], 10)[0]) == 0


def test_disputed_values_and_their_errors() -> None:
    target = np.array([[0.0], [2.0], [4.0], [np.nan]], dtype=np.float32)
    predicted = [np.array([[1.0], [2.0], [3.0], [0.0]]), np.array([[-1.0], [2.0], [3.0], [9.0]])]
    runs = [
        SamplePredictions(
            "values",
            {"sample": np.arange(4), "target": target, "prediction": each, "loss": (each - target)[:, 0] ** 2},
            {},
        )
        for each in predicted
    ]
    rows, measure = disputed(runs, 4)
    std = np.std([0, 2, 4])
    assert rows.tolist() == [3, 0]
    np.testing.assert_allclose(measure, [4.5 / std, 1 / std])
    table = value_table("a", runs)
    assert table.rmse == pytest.approx(np.sqrt(2 / 3))
    assert table.mae == pytest.approx(2 / 3)
    assert table.bias == pytest.approx(np.mean([0.0, -2 / 3]))
    assert table.dots == [[0.0, 0.0], [2.0, 2.0], [4.0, 3.0]]


def test_many_classes_have_no_matrix_but_their_most_frequent_confusions() -> None:
    runs = [classifier(seed, classes=60, count=3000) for seed in (1, 2)]
    table = class_table("a", runs)
    assert table.confusion is None
    counts = confusion(runs[0], 60) + confusion(runs[1], 60)
    np.fill_diagonal(counts, 0)
    true, predicted, times = table.confused[0]
    assert times == counts.max() == counts[true, predicted]
    assert len(table.scores) == 60
    assert table.macro_f1 == pytest.approx(np.mean([np.mean(class_scores(confusion(r, 60))[:, 2]) for r in runs]))


def test_a_comparison_has_them_and_says_which_runs_it_leaves_out(tmp_path: Path) -> None:
    plan = sweep(tmp_path, NORMS, {"post": {0: 0.9, 1: 0.9, 2: 0.9}, "pre": {0: 0.9, 1: 0.9, 2: 0.9}})
    paths = {(plan.variants[cell.variant].arm, cell.seed): plan.path(cell) for cell in plan.cells}
    for (arm, seed), path in paths.items():
        if (arm, seed) != ("post", 2):  # a run of an older version
            write_predictions(path / TEST, classifier(seed + 10 * (arm == "pre")))
    write_predictions(paths["pre", 1] / TEST, classifier(5, count=190))  # other samples
    (paths["pre", 2] / TEST).write_bytes(b"damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # no 0 / 0 gets out
        result = compare(plan).samples
    assert result is not None
    assert {table.arm: table.runs for table in result.arms} == {"post": 2, "pre": 1}
    assert result.runs == 3
    assert "not those of the other runs" in " ".join(result.left_out)
    assert "damaged" in " ".join(result.left_out)
    assert len(result.worst["post"]) == 12
    assert result.note  # digits of another fingerprint
    assert not result.views
    assert compare(plan, changes=False).samples is None
    (paths["post", 0] / TEST).unlink()
    assert samples([read_run(paths["post", 0], arm="post")]) is None


def test_the_pictures_are_those_of_the_test_split(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    run_folder = trained(tmp_path, *SHORTEST, *steps(1, None))
    fingerprint = run_folder.summary()["data"]["fingerprint"]
    images, note = views(run_folder.path, fingerprint, [0, 5])
    assert note is None
    first = Image.open(io.BytesIO(base64.b64decode(images["5"].image.partition(",")[2])))
    pixels = np.asarray(first)
    digits = load_digits().images  # 0 to 16
    scaled = np.stack([np.round(255 * (each - each.min()) / (each.max() - each.min())) for each in digits])
    assert (np.abs(scaled - pixels).max((1, 2)) <= 1).any()
    assert "it has changed since" in str(views(run_folder.path, "0" * 64, [0])[1])


@pytest.mark.full
def test_the_texts_are_what_the_model_reads(tmp_path: Path) -> None:
    overrides = ("data=code_topics", "tokenizer=byte", "model=encoder", "head=mean_pool", "objective=classify")
    run_folder = text_run(tmp_path, *overrides, "data.context=64")
    texts, note = views(run_folder.path, run_folder.summary()["data"]["fingerprint"], [0, 1])
    assert note is None
    assert 20 < len(texts["0"].text) <= MAX_TEXT
    assert texts["0"] != texts["1"]


def test_words_out_of_the_vocabulary_are_shown_as_they_were_written(tmp_path: Path) -> None:
    """A text was decoded from its tokens: "\N{REPLACEMENT CHARACTER} and weird" instead of "dragons and weird"."""
    texts = [f"{'good' if k % 2 else 'bad'} film number{k} of many" for k in range(60)]
    lines = [f"{'yes' if k % 2 else 'no'}\t{text}" for k, text in enumerate(texts)]
    (tmp_path / "films.tsv").write_text("label\ttext\n" + "\n".join(lines) + "\n")
    config, _ = configured(
        "experiment=spam_table", *ON_CPU, f"data.path={tmp_path}/films.tsv", "tokenizer.max_words=8", "data.context=4"
    )
    components = build.Components(config)
    test = _Test(components.load().test, components)
    assert "\N{REPLACEMENT CHARACTER}" in _view(test, 0).text
    originals = _original_texts(test, [0, 1])
    assert every(any(text.startswith(shown) for text in texts) for shown in originals.values())
    assert every(shown.split()[2].startswith("number") for shown in originals.values())
    assert not any("many" in shown for shown in originals.values())  # beyond the context


def test_windows_of_code_are_shown_as_they_were_written() -> None:
    config, _ = configured("experiment=code_topics", *ON_CPU, "tokenizer.max_words=64")
    components = build.Components(config)
    test = _Test(components.load().test, components)
    texts = [components.data.test_texts([sample], components.tokenizer)[0] for sample in (0, 3)]
    for sample, text in zip((0, 3), texts, strict=True):
        window = test.split.batch(torch.tensor([sample]), None).inputs[0].tolist()
        assert components.tokenizer.encode(text) == window
        assert "\N{REPLACEMENT CHARACTER}" not in text


def _built(components: Any) -> tuple[dict[str, Any], Any]:
    """Views of the first two test samples of data that needs no run, and the test split."""
    splits = components.load()
    held = _Test(splits.test, components)
    return {str(sample): _view(held, sample) for sample in (0, 1)}, splits.test


def test_a_question_is_shown_with_its_image() -> None:
    config, _ = configured("experiment=canvas_questions", *ON_CPU, "data.train_size=8", "data.test_size=4")
    result, test = _built(build.Components(config))
    assert result["0"].image.startswith("data:image/png;base64,")
    batch = test.batch(torch.tensor([0]), None)
    assert result["0"].text.endswith("?")
    assert len(result["0"].text.split()) == int(batch.lengths[0])


def test_a_graph_has_its_nodes_and_edges() -> None:
    config, _ = configured("experiment=atlas", *ON_CPU)
    result, test = _built(build.Components(config))
    batch = test.batch(torch.tensor([1]), None)
    graph = result["1"].graph
    assert len(graph.nodes) == int(batch.lengths[0])
    degrees = [sum(node in edge for edge in graph.edges) for node in range(len(graph.nodes))]
    assert sorted(degrees) == sorted((batch.pairs[0, :, :, 0] == 1).sum(1)[: len(degrees)].tolist())
