"""Files of the package are parsed once a process; what is composed from them is what Hydra composes by itself."""

from __future__ import annotations

import pickle

import pytest
from hydra._internal import defaults_list
from omegaconf import OmegaConf, flag_override

from blockyard.config import hydra_config, hydra_sources
from blockyard.config.hydra_config import compose_choices

CHOICES = [("experiment=gpt_code_small",), ("experiment=vit_digits", "block=post_norm", "norm=rms"), ("preset=vit",)]


def plain(composed):
    return pickle.loads(composed.pickled), composed.choices


def use_hydra_alone(monkeypatch):
    monkeypatch.setattr(hydra_sources, "use_package_files", lambda: None)
    monkeypatch.setattr(defaults_list, "_create_interpolation_map", hydra_sources._interpolation_map)


@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_the_config_is_that_of_hydra_alone(overrides, monkeypatch):
    compose = compose_choices.__wrapped__
    kept = [plain(compose(overrides)) for _ in range(2)]  # the second time from parsed files
    use_hydra_alone(monkeypatch)
    assert kept == [plain(compose(overrides))] * 2


def test_an_interpolation_in_a_defaults_list_is_that_of_hydra_alone(tmp_path, monkeypatch):
    """Hydra's map of choices is built for such a list; without it the choice would not be known."""
    for family, text in {
        "experiment": "# @package _global_\ndefaults:\n  - /norm@extra: ${experiment}\n",
        "norm": "_target_: blockyard.norm.rms.RmsNorm\n",
    }.items():
        (tmp_path / family).mkdir()
        (tmp_path / family / "mine.yaml").write_text(text)
    overrides = ("experiment=mine", f"hydra.searchpath=[file://{tmp_path}]")
    content, choices = plain(compose_choices.__wrapped__(overrides))
    assert content["extra"]["_target_"] == "blockyard.norm.rms.RmsNorm"
    use_hydra_alone(monkeypatch)
    assert plain(compose_choices.__wrapped__(overrides)) == (content, choices)


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
        assert plain(composed)[0]["norm"]["size"] == size


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
