"""What the cells of a sweep share while they are composed and checked changes no config and no issue."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from omegaconf import OmegaConf

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.tree import put
from blockyard.config.trial_build import BuiltModels

SMALL = ["model.dim=16", "model.depth=1", "model.heads=2", "logger=none"]
NO_MATRIX = ["token_mixer=pool", "channel_mixer=none"]  # for optimizer=muon to train
VALUES = [
    ["optimizer.lr=1e-3", "model.depth=3", "trainer.compile=true"],
    ["model.depth=2", "optimizer.lr=2"],  # a float as an integer
    ["trainer.max_epochs=null", "trainer.max_steps=7"],
    ["data.batch_size=eight"],
    ["model.depth=[1,2]"],
    ["tags=[a,b]", "seed=3"],
    ["name=with-dash", "outputs=some/where"],
    ["name=''", "outputs=/tmp/a_b.c d", "tags=null", "resume_from=~/x:y@z"],
    ["name='???'"],
    ["outputs=a\\\\b"],
    ["outputs=a?b"],
    ["optimizer.lr=${optimizer.weight_decay}"],
    ["model={dim: 8}"],
    ["optimizer.betas=[0.8,0.9]", "optimizer.lr=3e-4"],
    ["optimizer.nothing=1"],
    ["trainer.max_steps=inf"],
]


@pytest.mark.parametrize("values", VALUES, ids=" ".join)
def test_values_are_set_as_omegaconf_sets_them(values, monkeypatch):
    direct = compose([*SMALL, *values])
    monkeypatch.setattr("blockyard.config.merge.put", put_by_omegaconf)
    by_omegaconf = compose([*SMALL, *values])
    assert repr(direct.config) == repr(by_omegaconf.config)
    assert direct.issues == by_omegaconf.issues
    assert direct.choices == by_omegaconf.choices


def put_by_omegaconf(config, path, value):
    """Set a value as Hydra does; a list and a mapping, which cannot be merged, are exchanged."""
    tree = OmegaConf.create(config)
    old = OmegaConf.select(tree, ".".join(path), throw_on_resolution_failure=False)
    unlike = isinstance(value, dict) if OmegaConf.is_list(old) else isinstance(value, list) and OmegaConf.is_dict(old)
    OmegaConf.update(tree, ".".join(path), value, merge=not unlike, force_add=True)
    config.update(OmegaConf.to_container(tree))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a", {"b": 2, "e": [4]}),
        ("a", {"b": "???"}),
        ("a", [1]),
        ("a.c", {"d": 1}),
        ("a.c", [5]),
        ("a.c.0", 5),
        ("a.b.x", 5),
        ("new.inside", {"x": None}),
        ("none", {"x": 1}),
        ("none.x", 1),
        ("lists.1.x", 3),
    ],
)
def test_a_value_of_any_kind_is_put_as_omegaconf_puts_it(key, value):
    config = {"a": {"b": 1, "c": [1, 2]}, "none": None, "lists": [{"x": 1}, {"x": 2}]}
    expected = deepcopy(config)
    put_by_omegaconf(expected, key.split("."), value)
    put(config, key.split("."), value)
    assert json.dumps(config) == json.dumps(expected)


@pytest.mark.parametrize("key", ["a.2", "a.x", "a.2.x", "a.x.y"])
def test_an_item_that_a_list_does_not_have_is_refused(key):
    with pytest.raises(ValueError, match=r"the value has no item [2x]"):
        put({"a": [1, 2]}, key.split("."), 3)


def test_most_values_need_no_omegaconf(monkeypatch):
    monkeypatch.setattr(OmegaConf, "create", lambda *_: pytest.fail("OmegaConf was used"))
    assert compose([*SMALL, "optimizer.lr=1e-3"]).config["optimizer"]["lr"] == 1e-3
    assert compose([*SMALL, "optimizer.betas=[0.8,0.9]"]).config["optimizer"]["betas"] == [0.8, 0.9]


def test_a_preset_s_interpolation_follows_a_value():
    """It has to be resolved after the value was set."""
    config = compose(["preset=dlinear", "data=co2", "data.history=32"]).config
    assert config["model"]["dim"] == 32


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["optimizer.lr=1e-2", "seed=4"],
        ["model.depth=2"],
        ["model.dim=15"],
        ["model.dim=1000000"],  # does not fit into memory
        ["model.dim=1000000", "optimizer.lr=1e-2"],
        [*NO_MATRIX, "optimizer=muon"],
        ["optimizer=muon"],
        ["data.batch_size=1000000000"],
        ["init.freeze=[nothing]"],
        ["callbacks=dropout_schedule"],  # and no dropout
        ["callbacks=dropout_schedule", "model.dropout=0.1"],
    ],
    ids=" ".join,
)
@pytest.mark.sampled(2)
def test_models_that_were_built_before_are_not_built_again_and_report_the_same(overrides):
    alone = [str(issue) for issue in check(compose([*SMALL, *overrides]))]
    models = BuiltModels()
    for before in ([], ["model.dim=1000000"], ["model.depth=2", "optimizer.lr=1e-4"], NO_MATRIX, overrides):
        check(compose([*SMALL, *before]), models=models)
    assert [str(issue) for issue in check(compose([*SMALL, *overrides]), models=models)] == alone


def test_arms_that_differ_in_how_they_train_share_a_model(monkeypatch):
    models = BuiltModels()
    assert check(compose(SMALL), models=models) == []
    assert len(models) == 1
    monkeypatch.setattr("blockyard.config.trial_build.build_model", lambda *_, **__: pytest.fail("built again"))
    assert check(compose([*SMALL, "optimizer.lr=1e-2", "schedule=constant"]), models=models) == []


def test_an_optimizer_that_keeps_more_is_checked_again():
    models = BuiltModels()
    for choice in ("adamw", "sgd"):
        check(compose([*SMALL, f"optimizer={choice}"]), models=models)
    assert len(models) == 2
