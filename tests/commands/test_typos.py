"""Names of other projects, and forms of other command lines, lead to what works here; every one ends with code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blockyard.cli import main
from blockyard.config import habits
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.known_keys import FAMILIES, absent, family_for
from blockyard.config.overrides import unknown_choice

# A command line, and what its message proposes.
TYPOS = [
    ("check +trainer.foo=1", "trainer (TrainerPlan) has no option 'foo'"),
    ("check hydra.sweep.dir=x", "blockyard sweep --help"),
    ("check hydra.run.dir=x", "outputs=FOLDER"),
    ("check lr=1", "try optimizer.lr"),
    ("check epochs=1", "try trainer.max_epochs"),
    ("check batch_size=1", "try data.batch_size"),
    ("check pos=rope", "try position=rope"),
    ("check position=rotary", "did you mean rope?"),
    ("check norm=rmsnorm", "did you mean rms?"),
    ("check optimizer=lamb", "did you mean timm_optim?"),
    ("check vit_digits", "try experiment=vit_digits"),
    ("check model.num_layers=3", "try model.depth"),
    ("check data=imagenet", "did you mean image_folder?"),
    ("check max_steps=4", "try trainer.max_steps"),
    ("check hydra/sweeper=optuna", "blockyard sweep --help"),
    ("check model=vit", "did you mean preset=vit?"),
    ("check channel_mixer=moe", "did you mean experts?"),
    ("check block=swin", "(related, not the same: position=bias_table, token_mixer=windowed_attention)"),
    ("check token_mixer=slstm", "(related, not the same: token_mixer=lstm, token_mixer=mlstm)"),
    ("check channel_mixer=peer", "(related, not the same: channel_mixer=memory)"),
    ("check preset=kimi_linear", "(related, not the same: token_mixer=delta_rule, layers=hybrid)"),
    ("check data=mqar", "did you mean associative_recall?"),
    ("check token_mixer=flash_attention", "is token_mixer=attention trainer.attention=auto"),
    ("check wandb=true", "logger=wandb logger.project=NAME"),
    ("check ema=true", "try callbacks=ema"),
    ("check attn=flash", "try trainer.attention"),
    ("train --resume last", "resume=last"),
    ("train --resume=last", "resume=last"),
    ("train --resume", "resume=VALUE"),
    ("train --config-name other", "experiment=NAME"),
    ("eval last", "run=last"),
    ("check scheduler=cosine", "try schedule=cosine"),
    ("check scheduler=cosine_annealing", "try schedule=cosine"),
    ("check scheduler=", "try schedule=NAME"),
    ("check scheduler.warmup=3", "did you mean schedule?"),
    ("check callbacks=none", "did you mean quiet?"),
    ("check ~logger", "try logger=none"),
    ("check token_mixer=mamba", "did you mean selective_ssm?"),
    ("check token_mixer=ssm", "related, not the same: token_mixer=mamba2, token_mixer=selective_ssm"),
    ("check token_mixer=s4", "related, not the same: token_mixer=mamba2, token_mixer=selective_ssm"),
    ("check token_mixer=rwkv", "related, not the same: token_mixer=decayed_attention"),
    ("check token_mixer=hyena", "hyena is token_mixer=long_conv token_mixer.gated=true token_mixer.conv=3"),
    ("check hedgehog", "hedgehog is token_mixer=linear_attention token_mixer.feature=hedgehog"),
    ("explain based", "based is token_mixer=linear_attention token_mixer.feature=taylor"),
    ("check mamba", "token_mixer=selective_ssm"),
    ("check rwkv", "blockyard has no rwkv"),
    ("check rwkv=true", "blockyard has no rwkv"),
    ("explain rwkv", "blockyard has no rwkv"),
]


@pytest.mark.parametrize(("line", "hint"), TYPOS, ids=[line for line, _ in TYPOS])
def test_a_typo_leads_to_what_works(
    line: str, hint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message has the hint, and names no other mechanism as the one that was asked for."""
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert hint in err
    assert out == ""
    if absent(line.rpartition("=")[2]):
        assert "did you mean" not in err


# Names that the nearest spelling took to another mechanism, to one of another family or to a choice of another kind.
NOT_HERE = """
token_mixer=slstm token_mixer=mamba3 token_mixer=deltaproduct token_mixer=xlstm token_mixer=ttt token_mixer=nsa
channel_mixer=peer optimizer=shampoo optimizer=sam optimizer=ademamix preset=kimi_linear preset=dinov3 preset=llama4
preset=gemma3n preset=convnext objective=contrastive objective=diffusion position=cope position=kerple norm=scale
norm=derf
"""


@pytest.mark.parametrize("typed", NOT_HERE.split())
def test_a_mechanism_that_is_not_here_leads_to_related_ones_under_that_name(typed: str) -> None:
    family, _, name = typed.partition("=")
    text = unknown_choice(family, name, list(catalog.choices(family))).text
    assert f"blockyard has no {name} (related, not the same: " in text
    assert "did you mean" not in text


@pytest.mark.parametrize("typed", ["token_mixer=nope", "logger=csv", "debug=default", "norm=rotary"])
def test_a_name_of_another_kind_is_not_offered(typed: str) -> None:
    family, _, name = typed.partition("=")
    answer = "".join(f"; {sentence}" for choice, sentence in habits.CHOICES.items() if choice == typed)
    text = unknown_choice(family, name, list(catalog.choices(family))).text
    assert text == f"unknown {family} '{name}'{answer}"


def test_an_absent_mechanism_is_absent() -> None:
    """No choice has the name of a mechanism that is said not to be here."""
    for family in catalog.groups():
        for choice in catalog.choices(family).values():
            for name in choice.related:
                assert not any(name in catalog.choices(other) for other in catalog.groups() if other != "preset")


def test_a_name_of_a_family_is_no_family() -> None:
    """Every family exists, and no other name is a family or names two."""
    for family, names in FAMILIES.items():
        assert family in catalog.families()
        for name in names.split():
            assert name not in catalog.families()
            assert family_for(name) == family


def test_all_callbacks_are_deleted_together() -> None:
    """`~callbacks` leaves none, and the config is sound."""
    composed = compose(["~callbacks", "logger=none"])
    assert check(composed) == []
    assert composed.config["callbacks"] == {}


def test_info_needs_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    """`--info` alone is `--info all`, also before an override."""
    for line in (["--info"], ["-i", "seed=1"], ["--info", "defaults"]):
        assert main(["train", *line]) == 0
        assert "Defaults List" in capsys.readouterr().out


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.lr=0.1", "seed=3"],
        ["data=translation", "source_tokenizer=byte", "objective=translate", "model=encoder_decoder"],
        ["logger=[wandb,tensorboard]", "logger.wandb.project=x"],
        ["experiment=vit_digits", "preset=vit", "~callbacks.progress", "match.params=1e5"],
    ],
    ids=" ".join,
)
def test_the_printed_config_is_that_of_the_run(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the defaults that no YAML holds, and what Hydra alone does not know, such as a solved size."""
    assert main(["train", "--cfg", "job", *overrides]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == compose(overrides).config


@pytest.mark.parametrize(
    ("override", "allowed"),
    [("trainer.deterministic=warn", "true or false"), ("trainer.strategy=deepspeed", "auto, ddp, fsdp, context")],
)
def test_values_of_lightning_that_a_trainer_does_not_take_are_refused(
    override: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", override]) == 2
    assert allowed in capsys.readouterr().err
