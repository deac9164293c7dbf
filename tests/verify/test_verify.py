"""`blockyard verify` finds what a component breaks, and a run refuses what reads later tokens or padding."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.contracts import Context, Role, UpdateRule
from blockyard.errors import UserError
from blockyard.head.mean_pool import MeanPool
from blockyard.parametrization.mup import MuP
from blockyard.verify.run import PROPERTIES, Finding, verify
from tests.support.paths import ROOT
from tests.verify.own_mixer import write_package

OF_ALL = [each for each in PROPERTIES if each.name != "auxiliary"]  # which is of models that have such a loss
OWN = ["token_mixer=mine", "allow=[mine]"]
TRAIN = (
    "train token_mixer=mine 'allow=[mine]' --config-dir myconf data=code tokenizer=byte data.context=16 model=decoder "
    "head=token objective=next_token position=none debug=fast logger=none callbacks=quiet model.dim=16 model.heads=2"
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_package(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name == "mine" or name.startswith("mine.")]:
        del sys.modules[name]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing takes most of the time, and is checked once."""
    monkeypatch.setattr("blockyard.verify.run.PROPERTIES", [each for each in PROPERTIES if each.name != "compile"])


def findings_of(*overrides: str) -> dict[str, Finding]:
    return {each.name: each for each in verify([*OWN, "model.depth=1", *overrides], ["myconf"])}


def test_a_sound_component_holds_what_it_declares(own: Path) -> None:
    verdicts = {name: finding.verdict for name, finding in findings_of().items()}
    undeclared = {"packing", "packing, causal", "cached decoding", "permutation"}
    assert verdicts == {each.name: "not declared" if each.name in undeclared else "holds" for each in OF_ALL}


@pytest.mark.full
@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("override", "broken"), [("leak=false", set()), ("random=true", {"determinism"})])
def test_a_component_for_decoders_alone_is_checked_in_a_decoder(own: Path, override: str, broken: set[str]) -> None:
    """Also for the properties that every component must hold, which are checked in an encoder otherwise."""
    file = own / "mine" / "shift.py"
    file.write_text(file.read_text().replace("causal=True, padding", "causal=True, bidirectional=False, padding"))
    findings = findings_of(f"token_mixer.{override}")
    expected = {"causality", "padding", "determinism", "gradients", "bf16"}
    assert {name for name, each in findings.items() if each.verdict in ("holds", "broken")} == expected
    assert broken <= {name for name, each in findings.items() if each.verdict == "broken"}


@pytest.mark.parametrize(
    ("option", "name", "detail"),
    [
        ("leak", "causality", "replacing token 5 changes the output of token 4 by "),
        ("leak", "padding", "padding a sequence of 4 tokens to 6 changes the output of token 3 by "),
        ("dead", "gradients", "no gradient reaches blocks.0.token_mixer.spare.weight"),
        ("random", "determinism", "two evaluations of one input differ"),
    ],
)
def test_what_is_broken_comes_with_a_counter_example(
    own: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str, detail: str
) -> None:
    monkeypatch.setattr("blockyard.verify.run.PROPERTIES", [each for each in PROPERTIES if each.name == name])
    finding = findings_of(f"token_mixer.{option}=true")[name]
    assert finding.verdict == "broken"
    assert detail in finding.detail


@pytest.mark.full
@pytest.mark.usefixtures("no_compiler")
def test_the_command_says_it_and_exits_with_1(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "verify token_mixer=mine 'allow=[mine]' --config-dir myconf"
    assert main(shlex.split(line)) == 0
    assert main(shlex.split(f"{line} token_mixer.leak=true")) == 1
    assert "broken" in capsys.readouterr().out
    assert main(["verify"]) == 2
    assert "verify needs a choice" in capsys.readouterr().err


@pytest.mark.usefixtures("no_compiler")
def test_ours_hold_too() -> None:
    findings = {each.name: each for each in verify(["token_mixer=attention", "position=rope", "block=rezero"])}
    assert findings.pop("permutation").detail == "the position scheme tells tokens apart"
    assert {each.verdict for each in findings.values()} == {"holds"}


@pytest.mark.full
@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("choice", ["residual=hyper", "norm=rms", "token_mixer=delta_rule"])
def test_sizes_do_not_depend_on_the_width(choice: str) -> None:
    findings = {each.name: each for each in verify(["parametrization=mup", choice])}
    assert findings["sizes over widths"].verdict == "holds", findings["sizes over widths"].detail


@pytest.mark.full
@pytest.mark.usefixtures("no_compiler")
def test_a_wrong_exponent_of_a_rate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MuP.rate

    def wrong(self: MuP, role: Role, rule: UpdateRule, ctx: Context, *, in_block: bool) -> float:
        """The rate of hidden weights falls with the square root of the width."""
        factor = self.width_ratio(ctx) ** (0.5 if role == "hidden" else 0.0)
        return factor * right(self, role, rule, ctx, in_block=in_block)

    monkeypatch.setattr(MuP, "rate", wrong)
    findings = {each.name: each for each in verify(["parametrization=mup"])}
    assert findings["sizes over widths"].verdict == "broken"


@pytest.mark.usefixtures("no_compiler")
def test_ngrams_tell_tokens_apart() -> None:
    findings = {each.name: each for each in verify(["model=encoder", "model.ngrams=[2]", "model.depth=1"])}
    assert findings.pop("permutation").detail == "vectors of n-grams tell tokens apart"
    assert "broken" not in {each.verdict for each in findings.values()}


def test_layers_of_several_kinds_promise_what_all_of_them_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent layers tell tokens apart, as layers with a position scheme do; attention without one does not."""
    only = [each for each in PROPERTIES if each.name == "permutation"]
    monkeypatch.setattr("blockyard.verify.run.PROPERTIES", only)
    (finding,) = verify(["layers=hybrid"])
    assert (finding.verdict, finding.detail) == ("not declared", "a token mixer does not declare it")


@pytest.mark.full
@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("layers", ["hybrid", "no_positions", "local_global"])
def test_layers_of_several_kinds_hold_what_they_promise(layers: str) -> None:
    findings = {each.name: each for each in verify([f"layers={layers}", "position=rope"])}
    assert findings["permutation"].verdict == "not declared"
    assert "broken" not in {each.verdict for each in findings.values()}


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("head", "padding"), [("mean_pool", "holds"), ("flatten", "not declared")])
def test_a_head_for_sequences_is_held_to_what_it_gives(head: str, padding: str) -> None:
    findings = {each.name: each for each in verify([f"head={head}", "data=code_topics", "objective=classify"])}
    verdicts = {name: each.verdict for name, each in findings.items()}
    assert verdicts.pop("padding") == padding
    assert verdicts.pop("gradients") == verdicts.pop("determinism") == verdicts.pop("bf16") == "holds"
    assert set(verdicts.values()) == {"not declared"}


@pytest.mark.usefixtures("no_compiler")
def test_a_head_that_reads_padding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeanPool, "pool", lambda self, x, seq: x.mean(1))
    findings = {each.name: each for each in verify(["head=mean_pool", "data=code_topics", "objective=classify"])}
    assert findings["padding"].verdict == "broken"
    assert "padding a sequence of" in findings["padding"].detail


@pytest.mark.usefixtures("no_compiler")
def test_experts_hold_what_they_declare() -> None:
    """A token near a tie goes elsewhere in bf16, and in a small batch an expert may be sent no token."""
    verdicts = {each.name: each.verdict for each in verify(["channel_mixer=experts"])}
    assert set(verdicts.values()) == {"holds"}


@pytest.mark.usefixtures("no_compiler")
def test_what_no_model_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match="no small model can hold this"):
        verify(["token_mixer=gru", "position=rope"])


def test_a_run_refuses_a_decoder_that_reads_later_tokens(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"{TRAIN} token_mixer.leak=true")) == 2
    message = capsys.readouterr().err
    assert "mine.shift.Shift: the model is a decoder, but its prediction at token" in message
    assert main(shlex.split(TRAIN)) == 0


@pytest.mark.parametrize("wrong", [False, True])
def test_a_run_refuses_a_mixer_that_reads_padding(own: Path, capsys: pytest.CaptureFixture[str], wrong: bool) -> None:
    """An average over padded tokens trains without an error, and a prediction depends on the others of its batch."""
    rows = [f"{' '.join(['word'] * (1 + number % 9))} {number % 2}\t{'ab'[number % 2]}" for number in range(80)]
    (own / "texts.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    overrides = (
        "train token_mixer=mine 'allow=[mine]' --config-dir myconf data=table data.path=texts.tsv tokenizer=word "
        "data.context=16 model=encoder head=mean_pool objective=classify position=none debug=fast logger=none "
        f"callbacks=quiet model.dim=16 model.heads=2 token_mixer.average={wrong}"
    )
    assert main(shlex.split(overrides)) == (2 if wrong else 0)
    printed = capsys.readouterr().err
    assert ("mine.shift.Shift: a prediction changes by" in printed) == wrong
    assert ("reads padding" in printed) == wrong


@pytest.mark.full
def test_the_look_leaves_the_run_as_it_is(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run without the look has the same metrics, to the last digit."""
    assert main(shlex.split(f"{TRAIN} outputs=with")) == 0
    monkeypatch.setattr("blockyard.engine.setup.check_foreign", lambda *_: None)
    assert main(shlex.split(f"{TRAIN} outputs=without")) == 0
    tables = [next(Path(folder).glob("*/s0/metrics.csv")).read_text().splitlines() for folder in ("with", "without")]
    columns = [i for i, name in enumerate(tables[0][0].split(",")) if "loss" in name or "accuracy" in name]
    values = [[[row.split(",")[i] for i in columns] for row in table] for table in tables]
    assert values[0] == values[1]


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("context", "undeclared"),
    [
        (["model=decoder", "objective=next_token"], {"permutation"}),
        (["model=encoder", "objective=masked_token"], {"causality", "packing, causal", "cached decoding"}),
    ],
)
def test_a_property_is_checked_where_it_is_promised(context: list[str], undeclared: set[str]) -> None:
    """A shipped mixer is broken in no context: causal models promise no permutation, others no causality."""
    verdicts = {each.name: each.verdict for each in verify(["token_mixer=attention", "model.depth=1", *context])}
    assert {name for name, verdict in verdicts.items() if verdict != "holds"} == undeclared
    assert {verdicts[name] for name in undeclared} == {"not declared"}


@pytest.mark.parametrize("choice", ["optimizer=adamw", "objective=classify", "schedule=cosine", "data=digits"])
def test_a_family_without_properties_is_refused(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the families that are checked, not a table about the default mixer."""
    assert main(["verify", choice]) == 2
    assert "verify has no checks of" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.usefixtures("no_compiler")
def test_the_component_of_the_guide_is_verified_as_the_guide_says(own: Path) -> None:
    """Its files and its command as CONTRIBUTING.md prints them: code 0, and 1 once it reads later tokens."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in ("mypackage/running_mean.py", "myconf/token_mixer/running_mean.yaml"):
        (block,) = re.findall(rf'```\w+ title="{re.escape(path)}"\n(.*?)```', guide, re.DOTALL)
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        (own / path).write_text(block.replace("mypackage", "mine_of_guide"))
    (own / "mypackage").rename(own / "mine_of_guide")
    (line,) = [each for each in guide.splitlines() if each.startswith("blockyard verify token_mixer=running_mean")]
    arguments = shlex.split(line.replace("mypackage", "mine_of_guide"))[1:]
    assert main(arguments) == 0
    component = own / "mine_of_guide" / "running_mean.py"
    component.write_text(component.read_text().replace("x.cumsum(dim=1)", "x.flip(1).cumsum(dim=1)"))
    sys.modules.pop("mine_of_guide.running_mean")
    assert main(arguments) == 1
