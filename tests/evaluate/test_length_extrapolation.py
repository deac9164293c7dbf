"""Decoders judged at rows longer than those of training: the same text, and no figure where there can be none."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.commands import _reader
from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch
from blockyard.data.splits.mixed import MixedSplit
from blockyard.data.splits.texts import Lines, Windows
from blockyard.errors import UserError
from blockyard.evaluate.length_extrapolation import (
    Curve,
    evaluate_longer,
    extrapolate,
    picture,
    scaled_positions,
    table,
)
from blockyard.objective.next_token import NextToken
from blockyard.position.bias_table import BiasTable
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity
from tests.components.properties.checks import cached_decoding, causality
from tests.support import engine_runs
from tests.support.every import every
from tests.support.helpers import LENGTH, choices, node, reads_later, tiny, token_ids, traits
from tests.support.tolerances import float32

MEAN = float32(terms=96)["rtol"]  # of the tokens of a text


def text(total: int = 6 * 16 + 4, packed: bool = False) -> Windows:
    """Rows of `LENGTH` random symbols; packed, documents of ten."""
    stream = token_ids(1, total, seed=5)[0].int()
    return Windows(stream, torch.arange(total, dtype=torch.int32) // 10 if packed else None, LENGTH, 1.0)


def curve(model: nn.Module, *factors: int, split: object = None, **settings: int) -> Curve:
    """The curve of a tiny decoder."""
    return extrapolate(model, split or text(), NextToken(), factors, part="test", batch_size=4, **settings)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_joined_rows_ask_for_the_same_symbols(factor: int, packed: bool) -> None:
    split = text(packed=packed)
    joined = split.at_length(16, factor)
    assert len(joined) == 16 // factor
    batch = NextToken().prepare(joined.batch(torch.arange(len(joined)), None))
    assert batch.inputs.shape == (16 // factor, LENGTH * factor)
    plain = NextToken().prepare(split.batch(torch.arange(16), None))
    assert_close(batch.target.flatten(), plain.target.flatten())
    assert_close(batch.inputs.flatten(), plain.inputs.flatten())


def nats(model: nn.Module, factor: int, stream: Tensor | None = None, count: int = 16) -> Tensor:
    """By hand: what each symbol after the first of `count` rows costs in rows so many times longer, (rows, N)."""
    stream = (text().stream if stream is None else stream).long()
    inputs, wanted = (stream[start : start + count * LENGTH].reshape(-1, LENGTH * factor) for start in (0, 1))
    with torch.no_grad():
        return F.cross_entropy(model(inputs).transpose(1, 2), wanted, reduction="none")


@pytest.mark.parametrize("position", ["alibi", "rope", "none"])
def test_figures_are_means_over_the_same_text(position: str) -> None:
    model = tiny(causal=True, position=position)
    result = curve(model, 2, 4)
    assert [each.factor for each in result.lengths] == [1, 2, 4]
    assert result.tokens == 96
    for each in result.lengths:
        costs = nats(model, each.factor)
        assert each.metrics["loss"] == pytest.approx(costs.mean().item(), rel=MEAN)
        assert each.by_position == pytest.approx(
            costs.unflatten(1, (each.factor, LENGTH)).mean((0, 2)).tolist(), rel=MEAN
        )
        assert each.tokens == LENGTH * each.factor
    assert result.metrics()["test/loss@2x"] == result.lengths[1].metrics["loss"]
    assert set(result.metrics()) >= {"test/loss@1x", "test/perplexity@4x", "test/accuracy@4x"}
    assert len({each.metrics["loss"] for each in result.lengths}) == 3


def test_a_limit_keeps_the_text_the_same() -> None:
    result = curve(tiny(causal=True, position="alibi"), 2, 4, limit=2)
    assert result.tokens == 8 * LENGTH
    assert not result.refused()


BOUNDED = [name for name in choices("position") if node("position", name)[0].bounded]


@pytest.mark.parametrize("position", BOUNDED)
def test_bounded_schemes_are_refused_with_a_word(position: str) -> None:
    result = curve(tiny(causal=True, position=position), 2)
    name = node("position", position)[0].__name__
    assert result.refused()["test@2x"].startswith(f"position {name} supports 6 positions and the sequence has 12")
    assert set(result.metrics()) == {
        f"test/{metric}@1x" for metric in ("loss", "accuracy", "perplexity", "bits_per_byte")
    }


UNBOUNDED = [name for name in choices("position") if name not in BOUNDED and not reads_later(name)]


@pytest.mark.parametrize("position", UNBOUNDED)
def test_every_other_scheme_reads_longer_rows(position: str) -> None:
    result = curve(tiny(causal=True, position=position), 2, 8)
    assert not result.refused()
    assert every(torch.isfinite(torch.tensor(each.by_position)).all() for each in result.lengths)


STRETCHING = [
    ("learned", {"beyond": "interpolate"}),
    *(("rope", {"scaling": how}) for how in ("linear", "ntk", "yarn")),
]


@pytest.mark.parametrize(("position", "options"), STRETCHING, ids=str)
def test_stretched_rows_stay_causal(position: str, options: dict[str, str]) -> None:
    """The factor is the evaluation's, not the row's: a first token does not know how long its row will be."""
    model = tiny(causal=True, position=position, options={"position": options}, sizes={"heads": 2})
    before = model(token_ids(1, LENGTH))
    with scaled_positions(model, 2) as how:
        assert how == "positions 2 times closer"
        causality(model, 2 * LENGTH)
        cached_decoding(model, 2 * LENGTH)
        longer = model(token_ids(1, LENGTH))
    assert (longer - before).abs().max() > 1e-6
    assert_close(model(token_ids(1, LENGTH)), before, rtol=0, atol=0)
    result = curve(model, 2)
    assert result.lengths[1].how == "positions 2 times closer"
    assert result.lengths[0].how == "as in training"


@pytest.mark.parametrize("factor", [2, 4])
def test_learned_is_interpolated_to_longer_causal_rows(factor: int) -> None:
    """As torch resizes a row of vectors, edges kept; one more place than that is refused."""
    model = tiny(causal=True, position="learned", options={"position": {"beyond": "interpolate"}})
    size = factor * LENGTH
    wanted = F.interpolate(model.position.table.T[None], size=size, mode="linear", align_corners=False)[0].T
    with scaled_positions(model, factor):
        steps = model.steps(token_ids(1, size))
        assert_close(steps["placed"] - steps["embedded"], wanted[None])
        with pytest.raises(ValueError, match=f"the sequence has {size + 1}"):
            model(token_ids(1, size + 1))


def test_what_cannot_be_longer_is_refused() -> None:
    lines = Lines(token_ids(1, 60)[0].int(), torch.full((10,), 6), LENGTH - 1, 1.0)
    model = tiny(causal=True, position="alibi")
    assert curve(model, 2, split=lines).refused() == {"test@2x": "this data has no longer sequences"}
    few = curve(model, 2, 8, split=text(6 * 3 + 1))
    assert few.refused() == {"test@8x": "the test split has 3 sequences of 6 tokens, too few for one of this length"}
    assert few.tokens == 2 * LENGTH
    fixed = [m for m in choices("token_mixer") if not (t := traits(m)).any_length and t.causal]
    for mixer in fixed:
        if 1 in traits(mixer).axes:
            assert (
                "takes sequences of one length only"
                in curve(tiny(causal=True, token_mixer=mixer), 2).refused()["test@2x"]
            )


def windows(count: int) -> Windows:
    return Windows(token_ids(1, count * LENGTH + 1)[0], None, LENGTH, 1.0)


def test_each_part_of_a_mixture_has_the_same_tokens_at_every_length() -> None:
    """Of parts of 5 and 7 sequences, whose largest multiples of 2 and of 4 are not the same."""
    split = MixedSplit({"a": windows(5), "b": windows(7)}, LENGTH)
    model = tiny(causal=True, position="rope")
    result = curve(model, 2, 4, split=split)
    assert not result.refused()
    assert (result.sequences, result.tokens) == (8, 8 * LENGTH)
    for length in result.lengths:
        costs = [nats(model, length.factor, own.stream[: 4 * LENGTH + 1], 4) for own in split.parts.values()]
        assert length.metrics["loss"] == pytest.approx(torch.stack(costs).mean().item(), rel=MEAN)
    alone = curve(model, 2, 6, split=split).refused()
    assert alone == {"test@6x": "the test split has 12 sequences of 6 tokens, too few for one of this length"}


def test_factors_that_share_too_few_sequences_are_named() -> None:
    model = tiny(causal=True, position="rope")
    result = curve(model, 3, 4, split=windows(10))
    assert result.tokens == 9 * LENGTH
    reason = "too few for the same tokens at 3x and 4x, which takes 12; evaluate it by itself"
    assert result.refused() == {"test@4x": f"the test split has 10 sequences of 6 tokens, {reason}"}
    assert not curve(model, 4, split=windows(10)).refused()
    with pytest.raises(UserError, match="the test split has no sequence to evaluate"):
        extrapolate(model, windows(0), NextToken(), (2,), part="test", batch_size=4)


PROBES = [
    ("associative_recall", "answer", "token"),
    ("copy", "answer", "token"),
    ("long_agreement", "answer", "token"),
    ("listops", "classify", "mean_pool"),
]


@pytest.mark.parametrize(("data", "objective", "head"), PROBES)
def test_tasks_are_drawn_anew_at_every_length(data: str, objective: str, head: str) -> None:
    """As many rows of the same part, with as much asked in each; at factor 1 the very rows there are."""
    overrides = [f"data={data}", f"objective={objective}", f"head={head}", "tokenizer=symbols", "position=rope"]
    sizes = ["data.length=32", "data.samples=40", "data.eval_samples=24", "model=decoder", "model.dim=16"]
    few = ["data.pairs=4"] * (data == "associative_recall")
    plan = Components(compose([*overrides, *sizes, *few, "model.depth=1", "model.heads=2"]).config)
    split = plan.data.load(plan.tokenizer).test
    order = torch.arange(24)
    first, same, long = (each.batch(order, None) for each in (split, split.at_length(24, 1), split.at_length(24, 4)))
    assert_close(same.inputs, first.inputs)
    assert_close(same.target, first.target)
    if objective == "answer":
        assert long.inputs.shape == (24, 128)
        assert_close((long.target != Batch.ignore).sum(1), (first.target != Batch.ignore).sum(1))
    else:
        assert long.lengths.min() >= 32
        assert long.lengths.max() <= 128
    model = plan.model(0).eval()
    result = extrapolate(model, split, plan.objective, (4,), part="test", batch_size=8)
    assert (result.sequences, result.redrawn, result.refused()) == (24, True, {})
    with torch.no_grad():
        wanted = plan.objective.loss(model(long), long.target).item()
    assert result.metrics()["test/loss@4x"] == pytest.approx(wanted, rel=MEAN)
    assert "24 sequences of the test split at every length, newly generated" in table(result.plain())
    ElementTree.fromstring(picture(result.plain()))
    expected = [False] * 3 + [True] if data in ("copy", "long_agreement") else [True] * 4
    assert [place is not None for place in result.lengths[1].by_position] == (expected if objective == "answer" else [])


def test_planted_overlap_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: longer rows that begin where the short ones did, so that most of the text is asked for twice."""
    model = tiny(causal=True, position="alibi")
    wanted = nats(model, 2).mean().item()

    def overlapping(self: Windows, count: int, factor: int) -> Windows:
        windows = Windows(self.stream, None, self.context * factor, 1.0)
        windows.batch = lambda order, key: Windows.batch(windows, order // 2, key)
        return windows

    monkeypatch.setattr(Windows, "at_length", overlapping)
    assert curve(model, 2).lengths[1].metrics["loss"] != pytest.approx(wanted, rel=MEAN)


def test_a_scheme_that_looks_both_ways_reads_what_it_is_to_do_beyond_its_table() -> None:
    for beyond, refused in (("refuse", True), ("interpolate", False)):
        model = tiny(causal=False, position="learned", options={"position": {"beyond": beyond}})
        assert bool(curve(model, 2).refused()) == refused


def test_a_scheme_says_itself_how_longer_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (plain,) = curve(tiny(causal=True, position="bias_table"), 2).refused().values()
    assert plain.endswith(f"supports {LENGTH} positions and the sequence has {2 * LENGTH}")
    monkeypatch.setattr(BiasTable, "length_advice", "position.more=true helps")
    (advised,) = curve(tiny(causal=True, position="bias_table"), 2).refused().values()
    assert advised == f"{plain}; position.more=true helps"


def test_pictures_and_tables_of_refused_lengths() -> None:
    result = curve(tiny(causal=True, position="learned"), 2, 4).plain()
    assert "refused: position Learned supports 6 positions" in table(result)
    assert "position.beyond=interpolate" in table(result)
    drawn = ElementTree.fromstring(picture(result))
    assert [node.text for node in drawn.iter() if node.text == "refused"] == ["refused"] * 2


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run that was judged at longer rows."""
    overrides = (
        "tokenizer=char",
        "position=rope",
        "trainer.extrapolate=[2,4]",
        "trainer.limit_test=2",
        "data.eval_batch_size=16",
    )
    return engine_runs.text_run(tmp_path_factory.mktemp("longer"), *overrides)


def test_a_run_records_its_curve(run_folder: RunFolder) -> None:
    summary = run_folder.summary()
    for part in ("val", "test"):
        for factor in (1, 2, 4):
            assert summary["metrics"][f"{part}/loss@{factor}x"] > 0
            assert summary["directions"][f"{part}/loss@{factor}x"] == "min"
            assert summary["directions"][f"{part}/accuracy@{factor}x"] == "max"
        content = json.loads((run_folder.path / f"extrapolation-{part}.json").read_text())
        assert content["weights"] == summary["weights"]
        assert [each["factor"] for each in content["lengths"]] == [1, 2, 4]
        ElementTree.parse(run_folder.path / f"extrapolation-{part}.svg")
    assert summary["refused"] == {}


def test_eval_gives_the_same_figures(run_folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = evaluate_longer(run_folder.path, [2, 4])
    recorded = run_folder.summary()["metrics"]
    assert result.metrics() == {name: value for name, value in recorded.items() if "@" in name and "test/" in name}
    assert _reader.run("eval", [f"run={run_folder.path}", "extrapolate=[2]", "split=validation"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:3] == ["length", "tokens", "loss"]
    assert "of the val split at every length" in out


def test_curves_of_changed_positions_lie_beside_the_runs_own(run_folder: RunFolder) -> None:
    own = (run_folder.path / "extrapolation-test.json").read_text()
    assert (
        _reader.run(
            "eval", [f"run={run_folder.path}", "extrapolate=[2]", "position.scaling=yarn", "position.base=500.0"]
        )
        == 0
    )
    content = json.loads((run_folder.path / "extrapolation-test-base-500.0-scaling-yarn.json").read_text())
    assert content["position"] == {"base": 500.0, "scaling": "yarn"}
    assert (run_folder.path / "extrapolation-test.json").read_text() == own


def test_eval_reads_positions_otherwise(run_folder: RunFolder) -> None:
    plain, _ = evaluate_longer(run_folder.path, [2])
    scaled, _ = evaluate_longer(run_folder.path, [2], position={"scaling": "linear"})
    assert scaled.lengths[0].metrics == plain.lengths[0].metrics
    assert scaled.lengths[1].metrics != plain.lengths[1].metrics
    assert scaled.lengths[1].how == "positions 2 times closer"
    with pytest.raises(UserError, match=r"position\.scalling: .*has no option 'scalling'"):
        evaluate_longer(run_folder.path, [2], position={"scalling": "linear"})


def test_bad_words_are_refused(run_folder: RunFolder) -> None:
    for argument in ("extrapolate=[1]", "extrapolate=2;4", "extrapolate="):
        with pytest.raises(UserError, match=r"extrapolate=.*whole numbers >= 2"):
            _reader.run("eval", [f"run={run_folder.path}", argument])
    with pytest.raises(UserError, match=r"position\.scaling=yarn has an effect with extrapolate= only"):
        _reader.run("eval", [f"run={run_folder.path}", "position.scaling=yarn"])


def test_models_that_are_no_decoders_are_refused_before_they_run() -> None:
    issues = check(compose(["experiment=vit_digits", "trainer.extrapolate=[2]"]))
    assert ["evaluates a decoder on longer sequences" in str(issue) for issue in issues] == [True]
    issues = check(compose(["experiment=gpt_code", "data.sample=line", "trainer.extrapolate=[2]"]))
    assert any("data.sample=window" in str(issue) for issue in issues)
    issues = check(compose(["experiment=recall", "model=encoder", "trainer.extrapolate=[2]"]))
    assert any("use model=decoder" in str(issue) for issue in issues)
    assert not check(compose(["experiment=recall", "position=rope", "trainer.extrapolate=[2]"]))
    issues = check(compose(["experiment=gpt_code", "trainer.extrapolate=[1]"]))
    assert any("expected a list of int >= 2" in str(issue) for issue in issues)


def test_a_concatenated_position_and_a_tied_head_are_refused_by_a_rule() -> None:
    overrides = ["experiment=gpt_code", "position=sinusoidal", "position.combine=concat"]
    (issue,) = check(compose(overrides))
    assert issue.key == "head with position"
    assert not check(compose([*overrides, "head.tied=false"]))


def test_runs_with_and_without_longer_rows_are_not_the_same_run() -> None:
    """They do not hold the same figures, so that a sweep must not take one for the other."""
    plain, longer = (compose(["experiment=gpt_code", f"trainer.extrapolate={f}"]).config for f in ("[]", "[2]"))
    assert identity(plain) != identity(longer)
    del plain["trainer"]["extrapolate"]
    assert identity(plain) == identity(compose(["experiment=gpt_code"]).config)
