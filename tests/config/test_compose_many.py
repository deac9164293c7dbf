"""Configs put together from parts are the configs that Hydra composes, to the last key."""

from __future__ import annotations

import itertools

import pytest

from blockyard.config import catalog
from blockyard.config.compose import compose
from blockyard.config.compose_many import Composer

pytestmark = pytest.mark.xdist_group("sweep_composer")  # its composer is made once

# Lines of words, each composed at once. The first ones have values that only Hydra can set.
ODD = [
    ["model.prefix={class_token:true}", "model.prefix.registers=2"],
    ["optimizer.betas=[0.8,0.99]", "optimizer.betas.0=0.5"],
    ["optimizer.lr='${model.dim}'", "model.dim=32"],
]
SOUND = [
    ["model.dim=32", "optimizer.lr=1e-4", "model.prefix.registers=2", "optimizer.betas=[0.8,0.99]", "seed=3"],
    ["tags=[a,'b,c']", "name='x y'", "trainer.max_epochs=null", "token_mixer.num_kv_heads=2", "model.dim=abc"],
    ["name=null", "token_mixer._target_=blockyard.token_mixer.pool.Pool", "model.dim=1", "model.dim=2"],
    ["experiment=vit_digits", "block=parallel", "block=post_norm", "optimizer=muon", "model.dim=96"],
    ["model.dim=96", "experiment=gpt_code", "debug=fast", "position=rope", "norm=rms", "tokenizer=bpe"],
    ["debug=fast", "trainer=cpu", "callbacks=early_stopping", "callbacks.early_stopping.patience=3"],
]
WRONG = [
    ["model.dmi=3", "block=prenorm", "typo=1", "position.name=rope", "+new=1", "~block", "block=pre_norm,parallel"],
    ["optimizer.lr", "hydra.run.dir=x", "position/rope=1", "nofamily.x=1", "model._partial_=true", "optimizer.lr=["],
    ["model=1", "block=null", "model.dim=48", "model.depth=2"],
]


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


def same(composer: Composer, *words: str) -> None:
    ours, hydra = composer.compose(words), compose(words, composer.config_dirs)
    assert ours.config == hydra.config, words
    assert ours.choices == hydra.choices, words
    assert list(ours.config) == list(hydra.config)
    assert [str(issue) for issue in ours.issues] == [str(issue) for issue in hydra.issues], words


@pytest.mark.parametrize("words", [*ODD, *SOUND, *WRONG], ids=lambda words: words[0])
def test_a_line_of_words(composer, words):
    same(composer, *words)


@pytest.mark.full
def test_every_choice_beside_an_experiment(composer):
    """Line i takes the choice number i of each family, so that each YAML is met."""
    choices = {family: list(catalog.choices(family)) for family in catalog.families()}
    for line in range(max(map(len, choices.values()))):
        same(composer, *(f"{family}={names[line % len(names)]}" for family, names in choices.items()), "model.dim=48")


def test_hydra_is_asked_once_per_choice(monkeypatch):
    import blockyard.config.compose_many as module

    asked = []
    original = module._compose
    monkeypatch.setattr(module, "_compose", lambda words, issues: asked.append(words) or original(words, issues))
    monkeypatch.setattr(module, "compose", None)
    composer = Composer()
    factors = [
        [f"{family}={name}" for name in catalog.choices(family)] for family in ("block", "norm", "channel_mixer")
    ]
    lines = [[*words, f"optimizer.lr={lr}"] for words in itertools.product(*factors) for lr in (0.1, 0.2)]
    for words in lines:
        composer.compose(["experiment=vit_digits", *words])
    assert len(lines) > 40
    assert len(asked) == 1 + sum(map(len, factors))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("block/odd", "_target_: blockyard.block.pre_norm.PreNorm\n_partial_: true\nlayers: ${model.depth}\n"),
        ("debug/odd", "# @package _global_\noptimizer:\n  lr: ${model.dim}\n"),
        ("experiment/odd", "# @package _global_\ndefaults:\n  - override /block: parallel\n  - vit_digits\n"),
        ("experiment/flat", "# @package _global_\ndefaults:\n  - override /block: parallel\nmodel: {depth: 2}\n"),
        ("norm/odd", "# @package _global_\nmodel:\n  depth: 7\n"),
    ],
)
def test_a_yaml_that_reaches_further(tmp_path, name, text):
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text(text)
    family, _, choice = name.partition("/")
    composer = Composer([str(tmp_path)])
    for words in (["block=post_norm", "model.depth=3"], ["model.dim=40", "position=rope", "model=decoder"]):
        words = [word for word in words if not word.startswith(f"{family}=")]
        same(composer, f"{family}={choice}", *words)
    same(composer, "model.dim=40")


def test_a_folder_that_is_not_there():
    same(Composer(["/no/such/folder"]), "model.dim=40")
