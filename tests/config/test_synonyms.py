"""What people call things elsewhere leads to what they are called here."""

from __future__ import annotations

import pytest

from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.known_keys import COMPOSED, OPTIONS, choices_for, options_for
from blockyard.config.schema import options
from blockyard.config.untrusted.targets import locate

ALIASES = {
    f"{family}={name}": " ".join(choice.aliases)
    for family in catalog.groups()
    for name, choice in catalog.choices(family).items()
    if choice.aliases
}


@pytest.mark.parametrize("family", catalog.groups())
def test_no_choice_has_a_name_that_means_another_one(family: str) -> None:
    there = catalog.choices(family)
    for choice in there.values():
        names = {*choice.aliases, *choice.related}
        assert not names & set(there), choice.name
        assert names == {name.lower().replace("-", "_") for name in names}
        assert not choice.summary.startswith(("aka", "related"))


def test_names_elsewhere_are_read_from_the_comments_of_a_file() -> None:
    assert "rotary" in catalog.choices("position")["rope"].aliases
    assert "rwkv7" in catalog.choices("token_mixer")["delta_rule"].related
    assert len(ALIASES) > 80


@pytest.mark.parametrize("name", COMPOSED)
def test_a_composed_mechanism_has_no_problem_and_no_choice_of_its_name(name: str) -> None:
    composed = compose(COMPOSED[name].split())
    assert check(composed) == []
    assert name not in catalog.choices("token_mixer")


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_exists(option: str) -> None:
    family, _, name = option.partition(".")
    targets = [choice.target for choice in catalog.choices(family).values() if choice.target]
    declared = [set(options(locate(str(target)))) for target in targets]
    assert any(name in each for each in declared)
    assert not any(set(OPTIONS[option].split()) & each for each in declared) or option in ("optimizer.lr",)


def test_no_name_means_two_things_in_a_family() -> None:
    for table, find in ((ALIASES, choices_for), (OPTIONS, options_for)):
        for target, names in table.items():
            family = target.replace("=", ".").partition(".")[0]
            for name in names.split():
                assert find(name, family) == [target], name


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("check position=rotary", "unknown position 'rotary'; did you mean rope?"),
        ("check schedule=cosine-annealing", "did you mean cosine?"),
        ("check epochs=3", "epochs: unknown config key (try trainer.max_epochs)"),
        ("check trainer.gpus=1", "(try trainer.devices;"),
        ("check optimizer.learning_rate=1e-3", "(try optimizer.lr;"),
        ("check model.gradient_checkpointing=true", "(try trainer.checkpoint_blocks;"),
        ("check vit_digits", "cannot parse 'vit_digits' (no value given) (try experiment=vit_digits)"),
        ("check rotary", "(try position=rope)"),
        (
            "check --experiment vit_digits",
            "--experiment: not a flag; families and options are written experiment=vit_digits",
        ),
        ("explain cosin", "cosin: unknown family"),
        ("sweep quickstart seeds=5", "--seeds 5 on the command line"),
        ("compare nosuch outputs=/nowhere", "nosuch: no run, sweep or folder of this name"),
        ("explain none", "none: the name of several choices; which one?"),
    ],
)
def test_a_message_says_what_was_meant(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rope", "rotary"])
def test_explain_finds_a_choice_by_its_name_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    assert capsys.readouterr().out.startswith("position=rope")
