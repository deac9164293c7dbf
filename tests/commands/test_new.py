"""`blockyard new`: what it writes works as it is, and nothing is overwritten."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.commands.new import BESIDE, families, kinds
from blockyard.config import project_file
from blockyard.config.choices import catalog
from blockyard.verify.run import PROPERTIES, verify
from tests.support.every import every
from tools import pages

TINY_RUN = (
    *("trainer.max_steps=2", "trainer.limit_val=1", "trainer.limit_test=1", "model.dim=16", "model.depth=1"),
    *("model.heads=2", "data.batch_size=8", "logger=none", "trainer.accelerator=cpu"),
)


# A mistake that the test of each template must notice: a passage of the component, and what replaces it.
BUGS = {
    ("token_mixer",): ("self.proj(self.gain * mean)", "self.proj(mean)"),
    ("token_mixer", "kind=carrying"): ("mean + seq.carry[GIVEN]", "mean - seq.carry[GIVEN]"),
    ("channel_mixer",): (".square()", ""),
    ("channel_mixer", "kind=routing"): ("scores.argmax(-1)", "scores.argmin(-1)"),
    ("norm",): ("x.abs()", "x.square()"),
    ("block",): ("self.channel_mixer(self.channel_norm(x), seq)", "self.channel_mixer(x, seq)"),
    ("residual",): ("return output, state[0]", "return output, output"),
    ("position",): ("torch.log1p(distance)", "torch.log1p(2 * distance)"),
    ("head",): ("x.amax(1)\n", "x.mean(1)\n"),
    ("model",): ("torch.tanh(logits / self.cap)", "torch.tanh(2 * logits / self.cap)"),
    ("data",): ("digits[:, 0] + digits[:, -1]", "digits.sum(1)"),
    ("tokenizer",): ("(letter) + 1", "(letter)"),
    ("objective",): (".square()", ".abs()"),
    ("parametrization",): ("return 1 / self.width_ratio(ctx) if", "return 2 / self.width_ratio(ctx) if"),
    ("optimizer",): (".grad.sign()", ".grad"),
    ("schedule",): ("** self.power", "* self.power"),
    ("callbacks",): (".square()", ".abs()"),
}
FAMILIES = families()
# Every template, as the arguments of `new` name it.
CASES = [(family,) for family in FAMILIES]
CASES += [(family, f"kind={kind}") for family in FAMILIES for kind in kinds(family)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder from which packages can be imported, and of which nothing stays imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mypackage", "ours")]:
        monkeypatch.delitem(sys.modules, name)  # of another test's folder
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mypackage", "ours"):
            del sys.modules[name]


def run_its_test(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_the_formula()


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_new_component_passes_its_own_test(
    case: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, *kind = case
    assert main(["new", family, "mine", *kind]) == 0
    output = capsys.readouterr().out
    written = {"mypackage/mine.py", "mypackage/__init__.py", f"myconf/{family}/mine.yaml", "tests/test_mine.py"}
    assert {str(path.relative_to(here)) for path in here.rglob("*.*")} == written | {"blockyard.yaml"}
    assert every(f"wrote {path}\n" in output for path in written)
    run_its_test(here / "tests" / "test_mine.py")
    # The formula is compared: a planted bug is noticed.
    component = here / "mypackage" / "mine.py"
    text = component.read_text()
    old, new = BUGS[case]
    assert text.count(old) == 1
    component.write_text(text.replace(old, new))
    for name in [name for name in sys.modules if name.startswith("mypackage")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    os.utime(component, (0, 0))  # bytecode of the sound file has its size, and may be of the same second
    with pytest.raises(AssertionError):
        run_its_test(here / "tests" / "test_mine.py")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in catalog.VERIFIED])
def test_a_new_component_trains(family: str, here: Path) -> None:
    assert main(["new", family, "mine"]) == 0
    overrides = [*TINY_RUN, f"{family}=mine", *BESIDE.get(family, ())]
    kept = {override.partition("=")[0] for override in overrides[len(TINY_RUN) :]}
    overrides = [
        override for override in overrides[: len(TINY_RUN)] if override.partition("=")[0] not in kept
    ] + overrides[len(TINY_RUN) :]
    assert main(["train", *overrides, "--config-dir", "myconf", "allow=[mypackage]"]) == 0
    (summary,) = here.glob("outputs/*/s0/summary.json")
    assert summary.is_file()


@pytest.mark.full
@pytest.mark.parametrize("case", [case for case in CASES if case[0] in catalog.VERIFIED], ids=" ".join)
def test_a_new_component_keeps_what_it_declares(case: Sequence[str], here: Path) -> None:
    family, *kind = case
    name = f"my_{'_'.join(case).replace('=', '_')}"  # torch's compiler remembers modules by their names
    assert main(["new", family, name, *kind]) == 0
    overrides = [f"{family}={name}", *BESIDE.get(family, ()), "allow=[mypackage]"]
    verdicts = {each.name: each.verdict for each in verify(overrides, ["myconf"])}
    assert "broken" not in verdicts.values(), verdicts
    assert verdicts["gradients"] == "holds"


def test_the_project_file_names_the_folders(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "blockyard.yaml").write_text("config_dirs: [choices]\nallow: [ours]\n")
    (here / "deeper").mkdir()
    assert main(["new", "norm", "mine"]) == 0
    assert (here / "ours" / "mine.py").exists()
    assert (here / "choices" / "norm" / "mine.yaml").read_text().count("ours.mine.Mine") == 1
    assert "add to" not in capsys.readouterr().out
    assert 'small_model(CHOICE, ["choices"]' in (here / "tests" / "test_mine.py").read_text()
    assert main(["new", "norm", "second", f"conf={here / 'choices'}"]) == 0
    assert str(here) not in (here / "tests" / "test_second.py").read_text()
    assert main(["new", "norm", "other", "package=elsewhere"]) == 0
    assert "allow: [elsewhere]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "takes one family and one name"),
        (["norm"], "takes one family and one name"),
        (["nrom", "mine"], "did you mean norm?"),
        (["logger", "mine"], "no template for logger"),
        (["norm", "My-Norm"], "not a name"),
        (["norm", "class"], "not a name"),
        (["norm", "rms"], "choice of blockyard already"),
        (["model", "transformer"], "Transformer, a name that the template uses"),
        (["optimizer", "sign_descent"], "SignDescent, a name that the template uses"),
        (["norm", "mine", "packages=x"], "did you mean package?"),
        (["norm", "mine", "kind=routing"], "norm has one template"),
        (["channel_mixer", "mine", "kind=rooting"], "did you mean routing?"),
        (["norm", "mine", "package=../x"], "not the name of a Python package"),
        (["norm", "mine", "package=os"], "package=os is of Python's standard library"),
        (["norm", "mine", "package=torch"], "package=torch is an installed package"),
        (["norm", "mine", "package=blockyard"], "package=blockyard is an installed package"),
        (["norm", "mine", 'conf=a"b'], "cannot be part of it"),
        (["norm", "mine", "conf=a\nb"], "cannot be part of it"),
    ],
)
def test_bad_input(arguments: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.parametrize("conf", ["a, b", "[a]", "#a", "*a", "!a", "a: b", "{a}", "&a", "- a", "a'b"])
def test_the_project_file_is_sound_whatever_the_folder_is_called(conf: str, here: Path) -> None:
    """A name that means something in YAML is quoted in blockyard.yaml."""
    assert main(["new", "norm", "mine", f"conf={conf}"]) == 0
    assert project_file.read(here / "blockyard.yaml").config_dirs == (str(here / conf),)
    assert (here / conf / "norm" / "mine.yaml").is_file()


def test_a_tilde_is_the_home(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """conf=~/x writes into the home folder, not into one called `~`."""
    monkeypatch.setenv("HOME", str(here / "home"))
    assert main(["new", "norm", "mine", "conf=~/x"]) == 0
    assert (here / "home" / "x" / "norm" / "mine.yaml").is_file()
    assert not (here / "~").exists()


def test_the_token_mixer_shows_a_parameter_of_its_own(here: Path) -> None:
    """A module with weights and no initial values for them is refused; the file to start from shows how."""
    assert main(["new", "token_mixer", "mine"]) == 0
    text = (here / "mypackage" / "mine.py").read_text()
    assert "self.gain = nn.Parameter(" in text
    assert "def init_weights(self, init: Init)" in text


def test_nothing_is_overwritten(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "norm", "mine"]) == 0
    (here / "mypackage" / "mine.py").write_text("# work\n")
    assert main(["new", "norm", "mine"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (here / "mypackage" / "mine.py").read_text() == "# work\n"


@pytest.mark.parametrize("name", ["mypackage", "myconf", "myconf/norm", "tests"])
def test_a_link_that_leads_out_of_the_folder_is_refused(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = here.parent / f"{here.name}-victim"
    victim.mkdir()
    link = here / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    before = sorted(here.rglob("*"))
    assert main(["new", "norm", "mine"]) == 2
    assert f"{link} is a link to {victim}, outside of" in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before
    assert not list(victim.iterdir())


def test_a_linked_file_is_not_overwritten(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mypackage").mkdir()
    link = here / "mypackage" / "mine.py"
    link.symlink_to(here.parent / "nothing-is-here")
    assert main(["new", "norm", "mine"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert link.is_symlink()


def test_families_are_completed() -> None:
    from blockyard.commands.completion import complete

    assert complete("blockyard new chan") == ["channel_mixer"]
    assert complete("blockyard new mod") == ["model"]
    assert complete("blockyard new norm m") == []
    assert complete("blockyard new channel_mixer mine kind=") == ["kind=routing"]


@pytest.mark.full
@pytest.mark.usefixtures("_without_compilation")
def test_a_routing_mixer_that_balances_padding_is_broken(here: Path) -> None:
    """Its outputs are those of a sound one; the loss that training adds is not."""
    assert main(["new", "channel_mixer", "routed", "kind=routing"]) == 0
    component = here / "mypackage" / "routed.py"
    assert component.read_text().count("(scores * real).sum") == 1
    component.write_text(component.read_text().replace("(scores * real).sum", "scores.sum"))
    importlib.invalidate_caches()
    findings = {each.name: each for each in verify(["channel_mixer=routed", "allow=[mypackage]"], ["myconf"])}
    assert {name for name, each in findings.items() if each.verdict == "broken"} == {"auxiliary"}
    assert "padding less changes the auxiliary loss" in findings["auxiliary"].detail


def typed(line: str) -> int:
    """The exit code of a command as it is printed, in this process."""
    program, *arguments = shlex.split(line)
    assert program == "blockyard"
    return main(arguments)


@pytest.fixture
def _without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` leaves out `torch.compile`, which takes half a minute; the full suite holds components to it."""
    quick = tuple(each for each in PROPERTIES if each.name != "compile")
    assert len(quick) == len(PROPERTIES) - 1
    monkeypatch.setattr("blockyard.verify.run.PROPERTIES", quick)


LONGER = [case for case in CASES if case[0] in catalog.VERIFIED and case != ("head",)]


@pytest.mark.usefixtures("_without_compilation")
@pytest.mark.parametrize("case", [pytest.param(n, marks=[pytest.mark.full] * (n in LONGER)) for n in CASES])
@pytest.mark.sampled(2)
def test_the_next_command_succeeds(case: Sequence[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `new` prints as next works as it is printed."""
    assert main(["new", case[0], "mine", *case[1:]]) == 0
    (following,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    command, test = following.removeprefix("next: ").split("; ")
    assert test == "python -m pytest tests/test_mine.py"
    assert typed(command) == 0


# Of a part of a model, of what surrounds it, and of data; the full suite types the command of every family.
EXPLAINED = ("token_mixer", "callbacks", "data")


@pytest.mark.parametrize(
    "family", [name if name in EXPLAINED else pytest.param(name, marks=pytest.mark.full) for name in FAMILIES]
)
def test_the_command_that_explain_prints_succeeds(family: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The `train` line that `explain` prints of a new choice works as it is printed, and `list` shows the choice."""
    assert main(["new", family, "mine"]) == 0
    assert typed(f"blockyard list {family}") == 0
    assert "mine" in capsys.readouterr().out
    assert typed(f"blockyard explain {family}=mine") == 0
    (train,) = (line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  blockyard train"))
    assert typed(f"{train} debug=fast logger=none") == 0
    assert len(list(here.glob("outputs/*/s0/summary.json"))) == 1


@pytest.mark.full
@pytest.mark.usefixtures("_without_compilation")
def test_the_commands_of_contributing_succeed(here: Path) -> None:
    """The commands on a component of one's own work as the page prints them, with the files that it shows."""
    page = pages.by_name()["CONTRIBUTING.md"]
    pages.write_files(page, here)
    (block,) = (block for block in pages.blocks(page) if block.body.startswith("blockyard list token_mixer"))
    lines = list(block.commands())
    assert [line.split()[1] for line in lines] == ["list", "explain", "check", "train", "verify"]
    for line in lines:
        assert typed(line) == 0, line
