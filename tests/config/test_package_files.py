"""Files of the package are parsed once a process; what is composed from them is what Hydra composes by itself."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hydra import compose as compose_by_hydra
from hydra import initialize_config_dir
from hydra._internal import defaults_list
from omegaconf import OmegaConf

from blockyard.config import hydra_sources, merge
from blockyard.config.choices import catalog
from blockyard.config.hydra_sources import File, as_hydra_names_it, searchpath
from blockyard.config.merge import merge_choices
from blockyard.config.tree import merge_into

CHOICES = [
    ("experiment=vit_digits", "block=post_norm", "norm=rms"),
    ("experiment=gpt_code_small", "source_tokenizer=patch", "logger=[tensorboard,wandb]", "callbacks=[default,ema]"),
    ("preset=llama", "experiment=gpt_code", "debug=fast"),
]
# A fifth of what is composed of many files; the full suite has all.
NAMED = [(f"{family}={name}",) for family in ("experiment", "preset") for name in catalog.choices(family)]
NAMED = [one if index % 5 == 0 else pytest.param(one, marks=pytest.mark.full) for index, one in enumerate(NAMED)]


def merged(groups, folders=()):
    """The config in its order, and the choices, merged anew."""
    merge._merge_files.cache_clear()
    config, choices = merge_choices(groups, (), folders)
    return json.dumps(config), choices


def use_hydra_alone(monkeypatch):
    """Let Hydra compose without anything of ours."""

    def read_files(groups, folders):
        with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
            overrides = [*map(as_hydra_names_it, groups), *searchpath(folders)]
            composed = compose_by_hydra("config", overrides, return_hydra_config=True)
        content = OmegaConf.to_container(composed, resolve=False)
        del content["hydra"]
        choices = {key.rpartition("@")[2]: name for key, name in composed.hydra.runtime.choices.items()}
        return [File(merge.PRIMARY, frozenset(), content)], choices

    monkeypatch.setattr(defaults_list, "_create_interpolation_map", hydra_sources._interpolation_map)
    monkeypatch.setattr(hydra_sources, "read_files", read_files)


@pytest.mark.parametrize("overrides", [*CHOICES, *NAMED], ids=" ".join)
@pytest.mark.sampled(2)
def test_the_config_is_that_of_hydra_alone(overrides, monkeypatch):
    ours = [merged(overrides) for _ in range(2)]  # the second time from parsed files
    use_hydra_alone(monkeypatch)
    assert ours == [merged(overrides)] * 2


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
    merge_into(before, after)
    assert json.dumps(before) == json.dumps(expected)


def test_an_interpolation_in_a_defaults_list_is_that_of_hydra_alone(tmp_path, monkeypatch):
    """Hydra's map of choices is built for such a list; without it the choice would not be known."""
    for family, text in {
        "experiment": "# @package _global_\ndefaults:\n  - /norm@extra: ${experiment}\n",
        "norm": "_target_: blockyard.norm.rms.RmsNorm\n",
    }.items():
        (tmp_path / family).mkdir()
        (tmp_path / family / "mine.yaml").write_text(text)
    ours = merged(["experiment=mine"], (tmp_path,))
    assert json.loads(ours[0])["extra"]["_target_"] == "blockyard.norm.rms.RmsNorm"
    use_hydra_alone(monkeypatch)
    assert merged(["experiment=mine"], (tmp_path,)) == ours


def test_no_file_of_the_package_is_parsed_twice(monkeypatch):
    merged(["block=parallel"])
    monkeypatch.setattr(OmegaConf, "load", lambda file: pytest.fail(f"{file} is parsed again"))
    assert merged(["block=parallel"])[1]["block"] == "parallel"


def test_files_of_a_user_are_read_again(tmp_path):
    choice = tmp_path / "norm" / "mine.yaml"
    choice.parent.mkdir()
    for size in (1, 2):
        choice.write_text(f"_target_: blockyard.norm.rms.RmsNorm\nsize: {size}\n")
        assert merge_choices(["norm=mine"], (), (tmp_path,))[0]["norm"]["size"] == size


def test_what_is_set_in_a_config_does_not_reach_the_next_one():
    config, choices = merge_choices(["experiment=gpt_code_small"], (), ())
    before = deepcopy((config, choices))
    for node in config.values():
        if isinstance(node, dict):
            node.update(dict.fromkeys(node, "changed"))
    choices["norm"] = "changed"
    assert merge_choices(["experiment=gpt_code_small"], (), ()) == before
