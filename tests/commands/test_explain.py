"""`explain` describes every choice and every option, and ends with a command that `check` accepts."""

from __future__ import annotations

import shlex

import pytest

from blockyard.cli import main
from blockyard.config import runnable
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose

EVERY = [f"{family}={name}" for family in catalog.groups() for name in catalog.choices(family)]
# Those whose command was refused or whose description failed, and one of each kind of companion.
QUICK = (
    *("optimizer=muon", "data=co2", "tokenizer=waveform", "preset=wav2vec2", "preset=whisper", "preset=vilt"),
    *("data=parity", "data=breast_cancer", "block=single", "token_mixer=windowed_attention", "position=xpos"),
    *("experiment=vit_digits", "data=arrays"),
)


def command(out: str) -> tuple[list[str], str | None]:
    """The overrides of the command that `explain` ends with, and what it says is needed besides."""
    lines = out.rstrip().splitlines()
    needs = lines.pop().strip().removeprefix("needs: ") if lines[-1].startswith("  needs: ") else None
    assert lines[-1].startswith("  blockyard train ")
    return shlex.split(lines[-1])[2:], needs


@pytest.mark.parametrize("choice", EVERY)
@pytest.mark.sampled(12)
def test_every_choice_is_described(
    choice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No default, declaration or combination of any choice stops the description."""
    monkeypatch.setattr(runnable, "check", lambda composed, **_: [])
    family, _, name = choice.partition("=")
    assert main(["explain", choice]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{choice}\n")
    assert catalog.choices(family)[name].summary in out


def assert_sound(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed command has the choice, and passes, or has the one problem that is printed below it."""
    assert main(["explain", choice]) == 0
    overrides, needs = command(capsys.readouterr().out)
    assert choice in overrides
    issues = check(compose(overrides))
    assert [issue.text for issue in issues] == [] if needs is None else needs in str(issues[0])
    # Files and devices may be missing here; a combination that is refused never runs.
    assert [each.key for each in issues if each.key not in ("data", "trainer") and not each.key.endswith(".path")] == []


@pytest.mark.parametrize("choice", QUICK)
def test_the_printed_command_passes(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` accepts the command, or names the file that `explain` says is needed."""
    assert_sound(choice, capsys)


@pytest.mark.full
@pytest.mark.parametrize("choice", [choice for choice in EVERY if not choice.startswith("executor=")])
def test_every_printed_command_passes(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As above, for every choice of every family of a run."""
    assert_sound(choice, capsys)


def test_only_files_and_devices_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """What reads no file of the user's gets a command that runs as it is."""
    for choice in ("preset=whisper", "data=parity", "tokenizer=log_mel"):
        assert main(["explain", choice]) == 0
        assert command(capsys.readouterr().out)[1] is None
    assert main(["explain", "data=arrays"]) == 0
    assert "data.path=FILE.npz" in str(command(capsys.readouterr().out)[1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "qk_norm",
            ["token_mixer.qk_norm", "attention, ", "windowed_attention", "model.cross.qk_norm", "RMS-normalises"],
        ),
        ("model.dim", ["model.dim", "encoder", "64"]),
        ("d_model", ["model.dim"]),
        ("seed", ["seed", "int >= 0"]),
        ("callbacks.ema.decay", ["callbacks.ema.decay", "0.999"]),
    ],
)
def test_an_option_is_described_by_its_name(name: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """All components that have the option, with type, default and help."""
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    for text in expected:
        assert text in out


@pytest.mark.parametrize(
    ("name", "hint"),
    [("qk_nrom", "token_mixer.qk_norm"), ("cosin", "schedule=cosine"), ("positio", "position"), ("zzz", "unknown")],
)
def test_an_unknown_name_is_refused(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the nearest choice or option."""
    assert main(["explain", name]) == 2
    assert hint in capsys.readouterr().err


def test_a_budget_is_met_by_a_choice_that_is_named_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "rope", "match.params=100000"]) == 0
    assert "matched    100,000 parameters by model.dim=" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["position=rope", "match.foo=1"], "match.foo: unknown config key"),
        (["qk_norm", "match.params=1e5"], "match.params=1e5 has an effect beside a choice, and qk_norm is an option"),
    ],
)
def test_a_budget_that_does_nothing_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *arguments]) == 2
    assert message in capsys.readouterr().err
