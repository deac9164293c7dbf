"""From words to a config: choices, values, the user's own folders, and what every config holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.schema import Option, describe, options
from blockyard.config.untrusted.targets import locate


def issues(*arguments: str, folders: tuple[str, ...] = ()) -> list[str]:
    return [str(issue) for issue in check(compose(arguments, folders))]


@pytest.fixture
def own(tmp_path) -> str:
    """A config folder with a choice of its own."""
    (tmp_path / "channel_mixer").mkdir()
    text = "_target_: blockyard.channel_mixer.mlp.MLP\n_partial_: true\nexpansion: 2.0\n"
    (tmp_path / "channel_mixer" / "slim.yaml").write_text(text)
    return str(tmp_path)


def test_the_default_is_sound():
    assert issues() == []


def test_choices_and_values_arrive():
    config = compose(["position=rope", "model.dim=96", "optimizer.lr=1e-4", "tags=[a,b]"]).config
    assert config["position"]["_target_"] == "blockyard.position.rope.Rope"
    assert config["model"]["dim"] == 96
    assert config["optimizer"]["lr"] == 1e-4
    assert config["tags"] == ["a", "b"]


def test_a_value_outranks_an_experiment():
    assert compose(["experiment=gpt_code", "model.dim=32"]).config["model"]["dim"] == 32
    assert compose(["model.dim=32", "experiment=gpt_code"]).config["model"]["dim"] == 32


def test_null_takes_an_experiment_back():
    plain = compose(["model.dim=32"]).config
    assert compose(["experiment=null", "model.dim=32"]).config == plain
    assert compose(["experiment=gpt_code", "experiment=null", "model.dim=32"]).config == plain
    assert compose(["preset=null", "model.dim=32"]).config == plain


def test_what_is_done_to_a_config_does_not_reach_the_next():
    """Hydra's answer is kept; the resolvers in a value are asked anew."""
    overrides = ["experiment=vit_digits", "tags=[a]", "name=${oc.env:BLOCKYARD_TEST_NAME}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKYARD_TEST_NAME", "one")
        first = compose(overrides)
        first.config["model"]["dim"] = 1
        first.config["tags"].append("b")
        first.choices["model"] = "nothing"
        patch.setenv("BLOCKYARD_TEST_NAME", "two")
        second = compose(overrides)
    assert second.config["model"]["dim"] != 1
    assert (second.config["tags"], second.choices["model"], second.config["name"]) == (["a"], "encoder", "two")


def test_a_file_of_the_users_own_is_read_again_after_a_change(own, tmp_path):
    path = tmp_path / "channel_mixer" / "slim.yaml"
    assert compose(["channel_mixer=slim"], [own]).config["channel_mixer"]["expansion"] == 2.0
    path.write_text(path.read_text().replace("2.0", "3.0"))
    assert compose(["channel_mixer=slim"], [own]).config["channel_mixer"]["expansion"] == 3.0


def test_values_of_several_runs_keep_their_quotes():
    for line in ("name='a=b','c'", "tags=['a,b'],[c]", "model.dim=choice(64)"):
        assert not compose([line], multirun=True).issues


def test_a_nested_value_arrives():
    composed = compose(["model.prefix.registers=4"])
    assert composed.config["model"]["prefix"] == {"class_token": False, "registers": 4}
    assert check(composed) == []


def test_a_config_is_complete(own):
    """Options that a YAML leaves out are filled in, so that a frozen config says all."""
    node = compose(["channel_mixer=slim"], [own]).config["channel_mixer"]
    assert node["expansion"] == 2.0
    assert set(options(locate(node["_target_"]))) <= set(node)


def test_an_option_missing_from_the_yaml_can_still_be_set(own):
    assert issues("channel_mixer=slim", "channel_mixer.bias=true", folders=(own,)) == []


def test_config_dir_and_searchpath_do_the_same(own):
    by_flag = compose(["channel_mixer=slim"], [own])
    by_word = compose([f"hydra.searchpath=[file://{own}]", "channel_mixer=slim"])
    assert by_flag.config == by_word.config
    assert check(by_flag) == check(by_word) == []


def test_a_bad_yaml_of_the_user_s_is_named(tmp_path):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "odd.yaml").write_text("_target_: [\n")
    named = issues("norm=odd", folders=(str(tmp_path),))
    assert any("odd.yaml" in issue for issue in named), named


def test_unknown_options_in_a_user_s_yaml_are_found(tmp_path):
    (tmp_path / "norm").mkdir()
    text = "_target_: blockyard.norm.rms.RMS\n_partial_: true\nepsilonn: 1\n"
    (tmp_path / "norm" / "odd.yaml").write_text(text)
    assert any("norm.epsilonn" in issue for issue in issues("norm=odd", folders=(str(tmp_path),)))


def test_all_problems_at_once():
    messages = issues("model.dim=x", "optimizer.lr=-1", "block=prenorm", "typo=1", "head=token", "seed=1.5")
    for key in ("model.dim", "optimizer.lr", "block", "typo", "head", "seed"):
        assert any(issue.startswith(key) for issue in messages), (key, messages)


@pytest.mark.parametrize(
    ("overrides", "pair", "best", "varied"),
    [
        ("recipe=null data=series_table data.path=x.npz", "data with tokenizer", "tokenizer=series_patch", "tokenizer"),
        ("recipe=null data=table data.path=x.csv", "data with tokenizer", "tokenizer=word", "tokenizer"),
        ("data=table data.path=x.csv tokenizer=patch", "data with tokenizer", "tokenizer=word", "tokenizer"),
        ("recipe=null data=molecules data.path=x.graphs.jsonl", "data with tokenizer", "tokenizer=nodes", "tokenizer"),
        ("recipe=null data=molecules", "data with objective", "objective=regress", "objective"),
        ("token_mixer=fourier experiment=gpt_code_small", "position with token_mixer", "position=learned", "position"),
        ("tokenizer=word", "data with tokenizer", "data=", "data"),
    ],
)
def test_only_choices_that_were_not_typed_are_changed(overrides: str, pair: str, best: str, varied: str) -> None:
    """The choice that experiments use with the other one is first; typed data is never exchanged."""
    refusals = {issue.key: issue.legal for issue in check(compose(overrides.split()))}
    assert refusals[pair][0].startswith(best)
    assert {legal.partition("=")[0] for legal in refusals[pair]} == {varied}


def test_what_works_works():
    """Each alternative that a refusal names is accepted in place of what was refused."""
    overrides = ["token_mixer=fourier", "position=rope"]
    (refusal,) = check(compose(overrides))
    assert refusal.legal
    for override in refusal.legal:
        family = override.partition("=")[0]
        kept = [other for other in overrides if not other.startswith(f"{family}=")]
        assert check(compose([*kept, override])) == [], override


@pytest.mark.parametrize(
    ("annotation", "value", "fits"),
    [
        (int, 3, True),
        (int, 3.0, False),
        (int, True, False),
        (int, "3", False),
        (float, 3, True),
        (float, "1e-3", False),
        (bool, 1, False),
        (bool, False, True),
        (str, 3, False),
        (str | None, None, True),
        (int | None, "null", False),
        (list[str], ["a"], True),
        (list[str], "a", False),
        (tuple[float, float], [0.9, 0.95], True),
        (tuple[float, float], [0.9], False),
    ],
)
def test_values_are_taken_at_their_word(annotation, value, fits):
    assert (Option("x", annotation, None, "").problem(value) is None) == fits
    assert describe(annotation)


def test_a_callback_is_deleted() -> None:
    composed = compose(["~callbacks.gradient_norm", "~callbacks.progress"])
    assert composed.issues == []
    assert set(composed.config["callbacks"]) == {"learning_rate", "checkpoint", "device_stats"}
    assert check(composed) == []


def test_options_of_an_experiment_do_not_apply_to_another_choice(own):
    """Those that the other choice has too apply; what neither has, or the user sets, is refused."""
    config = compose(["experiment=speech_ctc", "source_tokenizer=waveform", "optimizer=sgd"]).config
    assert "mask_bands" not in config["source_tokenizer"]
    assert set(config["source_tokenizer"]) == set(compose(["source_tokenizer=waveform"]).config["source_tokenizer"])
    assert config["optimizer"]["lr"] == 2e-3
    assert compose(["experiment=speech_ctc"]).config["source_tokenizer"]["mask_bands"] == 8
    by_preset = compose(["experiment=speech_ctc", "preset=fnet"]).config
    assert "dropout" not in by_preset["token_mixer"]
    (issue,) = compose(["experiment=speech_ctc", "source_tokenizer=waveform", "source_tokenizer.mels=40"]).issues
    assert str(issue).startswith("source_tokenizer.mels")
    experiments = Path(own) / "experiment"
    experiments.mkdir()
    (experiments / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /tokenizer: patch\ntokenizer: {size: 4, typo: 1}\n"
    )
    mine = compose(["experiment=mine", "tokenizer=pixel"], [own]).config
    assert "size" not in mine["tokenizer"]
    assert mine["tokenizer"]["typo"] == 1
