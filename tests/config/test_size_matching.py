"""`match.params` and `match.flops`: the size that meets a budget, on any command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockyard.cli import main
from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.config.size_matching import ModelSizes, SizeSearch, describe_match
from blockyard.engine import cost_card
from tests.support.helpers import choices, node
from tests.support.tiny import DECODER
from tests.sweep.spec_plans import refusals

ONE_DEEP = ["model.depth=1", "logger=none"]
GMLP = ["preset=gmlp", "logger=none"]
WITH_EXPANSION = [name for name in choices("token_mixer") if "expansion" in node("token_mixer", name)[1]]


@pytest.mark.parametrize("what", ["params", "flops"])
@pytest.mark.parametrize(("by", "overrides"), [("dim", ["channel_mixer=glu"]), ("depth", []), ("expansion", [])])
@pytest.mark.sampled(3)
def test_the_size_is_the_nearest_there_is(what: str, by: str, overrides: list[str]) -> None:
    """Against the sizes around it, tried one by one."""
    family, name = {"dim": ("model", "dim"), "depth": ("model", "depth")}.get(by, ("channel_mixer", "expansion"))
    target = {"params": 60_000, "flops": 900_000}[what]
    start = [] if by == "dim" else ["model.dim=32"]
    composed = compose([*overrides, *start, "logger=none", f"match.{what}={target}", f"match.by={by}"])
    assert composed.issues == []
    assert "match" not in composed.config
    record, scales, size = composed.matched, ModelSizes(), composed.config[family][name]
    assert record["size"] == size
    assert record["value"] == scales.measure(composed.config, what)
    assert record["off"] == pytest.approx(record["value"] / target - 1)
    step = {"dim": 4, "depth": 1, "expansion": 1 / 32}[by]
    steps = [size + n * step for n in range(-4, 5) if size + n * step > 0]
    tried = [composed.config | {family: composed.config[family] | {name: each}} for each in steps]
    best = min(abs(weight - target) for each in tried if (weight := scales.measure(each, what)) is not None)
    assert abs(record["value"] - target) == best
    if what == "params":
        assert sum(p.numel() for p in Components(composed.config).model(0).parameters()) == record["value"]


SYMBOLS = ["experiment=recall", "logger=none", "model.depth=2", "model.heads=2"]
STATES = {
    # Two blocks, keys and values of every token in four bytes.
    "attention": ([], lambda dim, tokens: 2 * 2 * dim * tokens * 4),
    "grouped": (["token_mixer.num_kv_heads=1"], lambda dim, tokens: 2 * dim * tokens * 4),
    "window": (["token_mixer=windowed_attention", "token_mixer.window=16"], lambda dim, tokens: 16 * dim * 15),
    "recurrence": (["token_mixer=linear_recurrence"], None),
}


@pytest.mark.sampled(100)
@pytest.mark.parametrize("case", STATES)
def test_bytes_of_state_are_a_budget(case: str) -> None:
    """Those of a cache that has read as many tokens; of attention by hand."""
    overrides, by_hand = STATES[case]
    sizes = ModelSizes()
    for tokens in (None, 32):
        option = [] if tokens is None else [f"match.tokens={tokens}"]
        start = sizes.measure(compose([*SYMBOLS, *overrides, "model.dim=48"]).config, f"state@{tokens or 64}")
        composed = compose([*SYMBOLS, *overrides, f"match.state={start}", *option])
        assert composed.issues == []
        dim, record = composed.config["model"]["dim"], composed.matched
        assert (record["value"], record["tokens"], dim) == (start, tokens or 64, 48)
        assert f"bytes of state after {tokens or 64} tokens" in describe_match(record)
        model = Components(composed.config).model(0)
        cache = model.init_cache(1)
        for _ in range(tokens or 64):
            model(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
        assert cache.bytes == start
        if by_hand is not None:
            assert start == by_hand(dim, tokens or 64)


def test_a_state_is_matched_where_there_is_one() -> None:
    for overrides, message in (
        (["experiment=vit_digits", "match.state=1e5"], "decodes nothing, so it has no state"),
        ([*SYMBOLS, "token_mixer=pool", "match.state=1e5"], "cannot decode from a cache"),
        ([*SYMBOLS, "match.state=1e5", "match.tokens=0"], "from 1 to 1,048,576"),
        ([*SYMBOLS, "match.tokens=64"], "only together with match.state"),
        ([*SYMBOLS, "match.state=1e5", "match.flops=1e5"], "cannot meet two budgets"),
    ):
        assert message in " ".join(map(str, compose([*overrides, "logger=none"]).issues))


def test_check_prints_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *SYMBOLS, "model.dim=32"]) == 0
    assert "16,384 bytes of cache after 64 tokens" not in capsys.readouterr().out  # that of one block
    assert main(["check", *SYMBOLS, "model.dim=32"]) == 0
    assert "32,768 bytes of cache after 64 tokens" in capsys.readouterr().out
    assert main(["check", "experiment=vit_digits"]) == 0
    assert "bytes of cache" not in capsys.readouterr().out


@pytest.mark.parametrize("by", ["dim", "expansion"])
def test_the_parameters_that_a_token_uses_are_a_budget(by: str) -> None:
    """Of a mixture of experts they are fewer than all, and the expansion is that of each expert."""
    overrides = ["channel_mixer=experts", *ONE_DEEP, *([] if by == "dim" else ["model.dim=32"])]
    composed = compose([*overrides, "match.active=30000", f"match.by={by}"])
    assert composed.issues == []
    record, counts = composed.matched, ModelSizes()
    assert record["over"] == {"dim": "model.dim", "expansion": "channel_mixer.members.glu.expansion"}[by]
    assert record["value"] == counts.measure(composed.config, "active") < counts.measure(composed.config, "params")
    model = Components(composed.config).model(0)
    assert cost_card.parameters(model)["active"] == record["value"] == pytest.approx(30_000, rel=0.1)
    dense = ["channel_mixer=glu", *ONE_DEEP, "model.dim=32"]
    assert len({counts.measure(compose(dense).config, what) for what in ("active", "params")}) == 1
    assert "active" not in cost_card.parameters(Components(compose(dense).config).model(0))


@pytest.mark.parametrize("mixer", WITH_EXPANSION)
def test_without_hidden_channels_those_of_the_token_mixer_are_solved(mixer: str) -> None:
    """In whole numbers of hidden channels: the size next to the solved one is another model."""
    overrides = [
        f"token_mixer={mixer}",
        "channel_mixer=none",
        "block=single",
        "position=none",
        "model.dim=36",
        "logger=none",
    ]
    weight = ModelSizes().measure(compose(overrides).config, "params")
    composed = compose([*overrides, f"match.params={round(weight * 1.5)}", "match.by=expansion"])
    assert composed.issues == []
    record, multiple = composed.matched, node("token_mixer", mixer)[0].hidden_multiple
    assert record["over"] == "token_mixer.expansion"
    assert abs(record["off"]) < 0.05
    hidden = record["size"] * 36
    assert hidden == pytest.approx(multiple * round(hidden / multiple), abs=1e-3)
    mixers = composed.config["token_mixer"]
    sizes = [(hidden + step * multiple) / 36 for step in (-1, 0, 1)]
    less, same, more = (
        ModelSizes().measure(composed.config | {"token_mixer": mixers | {"expansion": e}}, "params") for e in sizes
    )
    assert less < same == record["value"] < more


def test_the_hidden_channels_of_a_channel_mixer_come_first() -> None:
    overrides = ["token_mixer=token_mlp", "position=none", "logger=none", "match.params=3e5", "match.by=expansion"]
    assert compose(overrides).matched["over"] == "channel_mixer.expansion"
    solved = compose(["channel_mixer=glu", *overrides[2:]])
    hidden = solved.matched["size"] * solved.config["model"]["dim"]
    assert hidden == pytest.approx(8 * round(hidden / 8), abs=1e-3)


def test_only_sizes_that_are_there_are_named() -> None:
    (issue,) = compose(["channel_mixer=none", "match.params=1e6", "match.by=expansion", "logger=none"]).issues
    assert issue.legal == ["match.by=dim", "match.by=depth"]


@pytest.mark.parametrize(
    ("text", "says"), [("5", "expected a mapping"), ("{parms: 1e5}", "match.parms: unknown config key")]
)
def test_a_file_that_says_match_wrongly_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\nmatch: {text}\n")
    assert any(says in str(issue) for issue in compose(["experiment=mine", "logger=none"], [str(tmp_path)]).issues)


def test_what_is_not_trained_is_not_counted() -> None:
    """By one measure for all configs, as a sweep has it."""
    sizes = ModelSizes()
    whole, frozen = (compose([*ONE_DEEP, *more]).config for more in ([], ["init.freeze=[blocks]"]))
    assert sizes.measure(frozen, "params") < sizes.measure(whole, "params")


def test_kinds_of_layers_have_the_expansion_that_is_solved_for() -> None:
    kinds = ["layers.kinds.far=[channel_mixer.activation=relu]", "layers.pattern=[far,base]", "model.depth=2"]
    composed = compose([*DECODER, "data=code", "tokenizer=byte", *kinds, "match.params=1.2e5", "match.by=expansion"])
    assert composed.issues == []
    config = composed.config
    assert config["layers"]["kinds"]["far"]["channel_mixer"]["expansion"] == config["channel_mixer"]["expansion"] != 4.0


def test_what_is_frozen_is_the_solved_size() -> None:
    """The same config as with the size typed, so that it is the same run."""
    matched = compose([*ONE_DEEP, "match.params=3e4"])
    plain = compose([*ONE_DEEP, f"model.dim={matched.matched['size']}"])
    assert matched.config == plain.config
    assert plain.matched is None


def test_encoders_with_a_decoder_are_matched_in_flops() -> None:
    """Their forward pass needs a source sequence beside the target."""
    overrides = ["preset=original_transformer", "data=translation", "logger=none"]
    composed = compose([*overrides, "match.flops=5e7"])
    assert composed.issues == []
    assert composed.matched["value"] == ModelSizes().measure(composed.config, "flops")
    assert composed.matched["off"] == pytest.approx(0, abs=0.1)


def test_learned_vocabularies_count_as_large_as_they_may_be() -> None:
    text = ["data=code", "tokenizer=char", *DECODER, "position=none"]
    assert "counted with a vocabulary of 256" in describe_match(compose([*text, "match.params=1e5"]).matched)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["match.params=abc"], "match.params: invalid value 'abc': expected a number of parameters"),
        (["match.params=-1"], "match.params: invalid value -1: expected a number"),
        (
            ["match.params=1e6", "match.flops=1e6"],
            "one size cannot meet two budgets; set params, flops, active",
        ),
        (["match.params=1e6", "model.dim=32"], "model.dim: is solved for by match"),
        (["match.params=1e6", "match.by=heads"], "match.by: unknown size 'heads' (try dim"),
        (["match.by=depth"], "has an effect only together with"),
        (["match.parms=1"], "match.parms: unknown config key (try match.params"),
        (
            ["match.params=1e6", "match.by=expansion", "channel_mixer=none"],
            "the config has no channel_mixer.expansion or token_mixer.expansion to solve for",
        ),
        (
            [*GMLP, "match.params=1e6", "match.by=expansion", "token_mixer.expansion=2"],
            "token_mixer.expansion: is solved for by match",
        ),
        (["match.params=1e6", "position=rope", "tokenizer.size=3"], "no model can be built near model.dim=64"),
    ],
)
def test_what_cannot_be_matched_is_said(overrides: list[str], says: str) -> None:
    assert any(says in str(issue) for issue in compose(overrides).issues)


def test_a_size_that_changes_nothing_of_a_budget_is_refused() -> None:
    """The state of a decoder has no hidden channels: its expansion was "solved" as that of one channel."""
    overrides = ["data=code", "tokenizer=byte", "model=decoder", "head=token", "objective=next_token"]
    composed = compose([*overrides, "match.by=expansion", "match.state=200000"])
    (issue,) = [str(issue) for issue in composed.issues]
    assert "channel_mixer.expansion does not change the bytes of state, which are 262,144" in issue
    constant = SizeSearch(lambda n: 300, target=200, largest=1000)
    assert constant.solve(40) == 40


def test_a_sweep_matches_once(tmp_path) -> None:
    text = "claim: x\nbase: [match.params=3e4]\narms: {a: [], b: [channel_mixer=glu]}\nmatch: params"
    assert refusals(tmp_path, text) == ["match: the base sets match.params too; remove one of them"]


def test_verbs_tell_what_is_left_over(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    typed = "model.depth=1 match.params=2e4"
    assert main(f"check {typed}".split()) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("matched"))
    assert main(f"train {typed} debug=fast logger=none".split()) == 0
    assert line.split(maxsplit=1)[1] in capsys.readouterr().out
    (facts,) = tmp_path.glob("outputs/*/s0/run.json")
    assert line.split(maxsplit=1)[1] == describe_match(json.loads(facts.read_text())["match"])
    assert main(["explain", "channel_mixer=glu", "match.params=1e5"]) == 0
    assert "matched    100,000 parameters by model.dim=" in capsys.readouterr().out


def test_planted_search_that_stops_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockyard.config.size_matching import SizeSearch

    monkeypatch.setattr(SizeSearch, "solve", lambda self, start: start if self._count(start) else None)
    with pytest.raises(AssertionError):
        test_the_size_is_the_nearest_there_is("params", "dim", [])
