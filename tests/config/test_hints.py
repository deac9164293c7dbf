"""What `check` proposes and what `explain` says of a choice: words that work, each said once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Issue
from blockyard.generate import api
from blockyard.generate.request import GeneratedText
from blockyard.generate.stats import Stats
from tests.support.every import every


def refusals(*arguments: str) -> list[Issue]:
    return [issue for issue in check(compose([*arguments, "logger=none"])) if " with " in issue.key]


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=gpt_code_small", "norm=batch"],
        ["experiment=gpt_code_small", "token_mixer=cycle", "token_mixer.pattern=[fourier,attention]"],
        ["experiment=gpt_code_small", "position=learned", "position.combine=concat"],
    ],
    ids=["norm", "cycle", "concat"],
)
def test_what_is_proposed_needs_no_more_words(overrides: list[str]) -> None:
    """A choice that another rule refuses is not proposed, nor the refused choice itself."""
    (refusal,) = refusals(*overrides)
    assert refusal.legal
    refused = {override.partition("=")[0]: override for override in overrides}
    for override in refusal.legal:
        family = override.partition("=")[0]
        assert override != refused.get(family)
        kept = [other for other in overrides if not other.startswith((f"{family}=", f"{family}."))]
        assert refusals(*kept, override) == [], override


def test_a_choice_that_was_typed_is_kept_where_another_one_works() -> None:
    (refusal,) = refusals("experiment=vit_digits", "head=token")
    assert refusal.key == "head with objective"
    assert refusal.legal == ["objective=restore"]  # the head was typed
    (refusal,) = refusals("experiment=vit_digits", "objective=masked_token", "head=token")
    assert refusal.key == "data with objective"
    assert refusal.legal == ["objective=restore"]  # alone: it reads images and gives something for each token


def test_images_read_as_text_are_refused_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "preset=vit", "data=code"]) == 2
    message = capsys.readouterr().err
    assert "tokenizer=patch reads images, but data=code gives texts" in message
    assert "shapes" not in message


def test_explain_says_each_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    for choice in ("token_mixer=cycle", "position=t5_bias"):
        assert main(["explain", choice]) == 0
        output = capsys.readouterr().out
        families = re.findall(r"^  with (\w+):", output, re.M)
        assert families
        assert len(families) == len(set(families))
        reasons = [line.partition(": ")[2] for line in output.splitlines() if line.startswith("    not ")]
        assert len(reasons) == len(set(reasons))
        for accepted, refused in re.findall(r"^  with \w+: (.*)\n((?:    not .*\n)+)", output, re.M):
            names = re.findall(r"^    not (.*?): ", refused, re.M)
            assert not set(accepted.split(", ")) & {name for line in names for name in line.split(", ")}
    assert "    not bare, perceiver: position=t5_bias acts inside" in output


def test_explain_says_where_options_change_what_is_declared(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for name in ("cycle", "gru"):
        assert main(["explain", f"token_mixer={name}"]) == 0
        shown[name] = capsys.readouterr().out
    assert "others change what it declares" in shown["cycle"]
    assert "others change what it declares" not in shown["gru"]


def test_a_single_layer_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    pattern = "token_mixer.pattern=[windowed_attention,windowed_attention,attention]"
    assert main(["check", "experiment=gpt_code_small", "token_mixer=cycle", pattern]) == 0
    output = capsys.readouterr().out
    assert "2 layers: " in output
    assert "1 layer: " in output


def test_what_is_said_of_a_run_stands_before_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that comes with the first pass does not cut the prompt from what follows it."""
    lines: list[str] = []

    class Stream:
        texts, stats = [GeneratedText("def ", [1])], Stats()

        def __iter__(self) -> Iterator[tuple[int, str]]:
            lines.append("warning\n")
            yield from ((0, "f"), (0, "("))

    monkeypatch.setattr(api, "generate_all", lambda *_, **__: Stream())
    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=lines.append, flush=lambda: None))
    api.stream_to_terminal("run", ["def "])
    assert "".join(lines) == "warning\ndef f(\n"


def test_piped_lines_end_where_their_words_do(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["list", "norm"], ["explain", "norm=batch"], ["check", "norm=rms"]):
        assert main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) > 40
        assert every(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("override", "proposal"),
    [
        ("data.mixup=0.2", "try objective.mixup"),
        ("trainer.lr=0.1", "try optimizer.lr"),
        ("mixup=0.2", "try objective.mixup"),
        ("trainer.benchmark=true", "try trainer.extra.benchmark"),
        ("hydra.run.dir=x", "runs are written below outputs=FOLDER"),
    ],
)
def test_an_option_under_another_name_is_proposed_where_it_is(
    override: str, proposal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", override]) == 2
    assert proposal in capsys.readouterr().err


def test_a_flag_without_its_value_lists_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg"]) == 2
    assert "--cfg: a value is missing, one of job, hydra, all" in capsys.readouterr().err
