"""Files of the package are parsed once a process; what is composed from them is what Hydra composes by itself."""

from __future__ import annotations

import json
import pickle

import pytest
from hydra._internal import defaults_list
from omegaconf import OmegaConf, flag_override

from blockyard.config import hydra_config, hydra_sources
from blockyard.config.choices import catalog
from blockyard.config.hydra_config import as_hydra_names_it, compose_choices

CHOICES = [
    ("experiment=vit_digits", "block=post_norm", "norm=rms"),
    ("experiment=gpt_code_small", "source_tokenizer=patch", "logger=[tensorboard,wandb]", "callbacks=[default,ema]"),
    ("preset=llama", "experiment=gpt_code", "debug=fast"),
]
# A fifth of what is composed of many files; the full suite has all.
NAMED = [(f"{family}={name}",) for family in ("experiment", "preset") for name in catalog.choices(family)]
NAMED = [one if index % 5 == 0 else pytest.param(one, marks=pytest.mark.full) for index, one in enumerate(NAMED)]


def plain(composed):
    """The content in its order, and the choices."""
    return json.dumps(pickle.loads(composed.pickled)), composed.choices


def use_hydra_alone(monkeypatch):
    """Compose as Hydra does without anything of ours."""

    def merged(overrides):
        composed = hydra_config._compose(overrides)
        content = OmegaConf.to_container(composed, resolve=False)
        del content["hydra"]
        return content, {str(key): name for key, name in composed.hydra.runtime.choices.items()}

    monkeypatch.setattr(hydra_sources, "use_package_files", lambda: None)
    monkeypatch.setattr(hydra_sources, "merge_package_files", merged)
    monkeypatch.setattr(defaults_list, "_create_interpolation_map", hydra_sources._interpolation_map)


@pytest.mark.parametrize("overrides", [*CHOICES, *NAMED], ids=" ".join)
@pytest.mark.sampled(2)
def test_the_config_is_that_of_hydra_alone(overrides, monkeypatch):
    compose, overrides = compose_choices.__wrapped__, tuple(map(as_hydra_names_it, overrides))
    kept = [plain(compose(overrides)) for _ in range(2)]  # the second time from parsed files
    use_hydra_alone(monkeypatch)
    assert kept == [plain(compose(overrides))] * 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3], "d": None}, "e": 2}),
        ({"a": {"b": 1}}, {"a": 3}),
        ({"a": 3}, {"a": {"b": 1}}),
        ({"a": 3, "b": "???"}, {"a": "???", "b": 4, "c": "???"}),
        ({"a": None}, {"a": {"b": None}}),
        ({"a": {"b": 1}}, {"a": None}),
        ({"a": {}}, {"a": {"b": {}}}),
    ],
)
def test_files_are_merged_as_omegaconf_merges_them(before, after):
    expected = OmegaConf.to_container(OmegaConf.merge(before, after))
    hydra_sources._merge(before, after)
    assert json.dumps(before) == json.dumps(expected)


def test_an_interpolation_in_a_defaults_list_is_that_of_hydra_alone(tmp_path, monkeypatch):
    """Hydra's map of choices is built for such a list; without it the choice would not be known."""
    for family, text in {
        "experiment": "# @package _global_\ndefaults:\n  - /norm@extra: ${experiment}\n",
        "norm": "_target_: blockyard.norm.rms.RmsNorm\n",
    }.items():
        (tmp_path / family).mkdir()
        (tmp_path / family / "mine.yaml").write_text(text)
    overrides = ("experiment=mine", f"hydra.searchpath=[file://{tmp_path}]")
    text, choices = plain(compose_choices.__wrapped__(overrides))
    assert json.loads(text)["extra"]["_target_"] == "blockyard.norm.rms.RmsNorm"
    use_hydra_alone(monkeypatch)
    assert plain(compose_choices.__wrapped__(overrides)) == (text, choices)


def test_no_file_of_the_package_is_parsed_twice(monkeypatch):
    compose = compose_choices.__wrapped__
    compose(("block=parallel",))
    monkeypatch.setattr(OmegaConf, "load", lambda file: pytest.fail(f"{file} is parsed again"))
    assert compose(("block=parallel",)).choices["block"] == "parallel"


def test_files_of_a_user_are_read_again(tmp_path):
    choice = tmp_path / "norm" / "mine.yaml"
    choice.parent.mkdir()
    overrides = ("norm=mine", f"hydra.searchpath=[file://{tmp_path}]")
    for size in (1, 2):
        choice.write_text(f"_target_: blockyard.norm.rms.RmsNorm\nsize: {size}\n")
        composed = compose_choices.__wrapped__(overrides)
        assert pickle.loads(composed.pickled)["norm"]["size"] == size


def test_what_is_set_in_a_config_does_not_reach_the_next_one():
    overrides = ("experiment=gpt_code_small",)
    first = hydra_config._compose(overrides)
    before = OmegaConf.to_container(first, resolve=False)
    with flag_override(first, ["struct", "readonly"], False):
        for key in [key for key in first if key != "hydra"]:
            for inner in list(first[key]) if OmegaConf.is_dict(first[key]) else ():
                first[key][inner] = "changed"
        first.match.by = "changed"
    assert OmegaConf.to_container(hydra_config._compose(overrides), resolve=False) == before
