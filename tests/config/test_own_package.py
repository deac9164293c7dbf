"""Components of the user's own: plugged in by name, and nothing of a package runs before it is allowed."""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from blockyard.cli import main

NORM = """
    import pathlib
    import torch
    from torch import nn

    pathlib.Path("IMPORTED").touch()

    class Scale(nn.Module):
        def __init__(self, ctx, start: float = 1.0):
            super().__init__()
            self.gain = nn.Parameter(torch.full((ctx.dim,), start))

        def init_weights(self, init):
            init.ones("gain")

        def forward(self, x):
            return x * self.gain

    class Silent(nn.Module):
        def __init__(self, ctx):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(ctx.dim))

        def forward(self, x):
            return x * self.gain

    class Broken(nn.Module):
        def __init__(self, ctx):
            self.nothing.there()
"""
WATCHER = """
    from blockyard.engine.callbacks.base import RunCallback

    class Teller(RunCallback):
        def __init__(self, *, path: str = "told"):
            self.path = path

        def on_evaluate(self, state, values):
            with open(self.path, "a") as file:
                file.write(f"{state.step}\\n")
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A folder with a package `ownpack` and a config folder `myconf`, which is the working folder."""
    (tmp_path / "ownpack").mkdir()
    for name, text in (("__init__", ""), ("norm", NORM), ("watch", WATCHER), ("torn", "def (")):
        (tmp_path / "ownpack" / f"{name}.py").write_text(textwrap.dedent(text))
    for choice, target in (
        ("scale", "norm.Scale"),
        ("silent", "norm.Silent"),
        ("broken", "norm.Broken"),
        ("torn", "torn.X"),
    ):
        path = tmp_path / "myconf" / "norm" / f"{choice}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"_target_: ownpack.{target}\n_partial_: true\n")
    callbacks = tmp_path / "myconf" / "callbacks" / "telling.yaml"
    callbacks.parent.mkdir()
    callbacks.write_text("# telling\ndefaults: [default]\nteller:\n  _target_: ownpack.watch.Teller\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("ownpack", "beside"))]:
        del sys.modules[name]


def typed(line: str) -> int:
    return main(shlex.split(f"{line} --config-dir myconf"))


def test_own_norm_trains(own):
    assert typed("train norm=scale norm.start=2.0 'allow=[ownpack]' debug=fast logger=none") == 0


def test_a_module_beside_the_package_is_named_too(own, capsys):
    """The working folder is importable for packages that `allow` names only, and a message says what else to name."""
    (own / "beside.py").write_text("START = 2.0\n")
    path = own / "ownpack" / "norm.py"
    path.write_text("import beside\n" + path.read_text())
    assert typed("check norm=scale 'allow=[ownpack]' debug=fast logger=none") == 2
    assert "allow=[..., beside]" in capsys.readouterr().err
    assert "beside" not in sys.modules
    assert typed("check norm=scale 'allow=[ownpack,beside]' debug=fast logger=none") == 0
    assert "ownpack" in sys.modules
    assert str(own) not in sys.path


def test_own_watcher_watches(own):
    assert typed("train callbacks=telling 'allow=[ownpack]' debug=fast logger=none") == 0
    assert (own / "told").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "list norm",
        "explain norm=scale",
        "check norm=rms",
        "check token_mixer=fourier position=rope",
        "check norm=scale",
        "train norm=scale",
    ],
)
def test_nothing_is_imported_unasked(own, line, capsys):
    assert typed(line) in (0, 2)
    assert not (own / "IMPORTED").exists()


def test_explain_of_an_allowed_package(own, capsys):
    assert typed("explain norm=scale 'allow=[ownpack]'") == 0
    assert "norm.start" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("choice", "texts"),
    [("silent", "declares no initial weights"), ("broken", "AttributeError"), ("torn", "cannot be imported")],
)
def test_broken_components_are_refused_with_words(own, choice, texts, capsys):
    assert typed(f"train norm={choice} 'allow=[ownpack]'") == 2
    assert texts in capsys.readouterr().err
    assert not (own / "outputs").exists()


EVIL = {
    "key": "# @package _global_\nhydra:\n  callbacks:\n    x: {_target_: logging.FileHandler, filename: CALLED}\n",
    "package": "# @package hydra.callbacks\nx: {_target_: logging.FileHandler, filename: CALLED}\n",
    "default": "# @package _global_\ndefaults:\n  - override /hydra/callbacks: evil\n",
    "relocated": "# @package _global_\ndefaults:\n  - /norm@hydra.callbacks.x: rms\n",
}


@pytest.mark.parametrize("kind", EVIL)
@pytest.mark.parametrize("verb", ["check", "train", "train -m", "train --cfg job"])
def test_a_yaml_cannot_reach_hydra_itself(tmp_path, monkeypatch, capsys, kind, verb):
    (tmp_path / "cfg" / "experiment").mkdir(parents=True)
    (tmp_path / "cfg" / "experiment" / "evil.yaml").write_text(EVIL[kind])
    monkeypatch.chdir(tmp_path)
    assert main([*verb.split(), "experiment=evil", "debug=fast", "--config-dir", "cfg"]) == 2
    assert "Hydra itself" in capsys.readouterr().err
    assert not (tmp_path / "CALLED").exists()


@pytest.mark.parametrize("line", ["explain norm=bomb", "train --cfg job norm=bomb", "train -m norm=bomb", "list norm"])
def test_an_alias_bomb_hangs_nothing(tmp_path, monkeypatch, capsys, line):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (tmp_path / "cfg" / "norm").mkdir(parents=True)
    (tmp_path / "cfg" / "norm" / "bomb.yaml").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    assert main([*line.split(), "--config-dir", "cfg"]) == 2
    assert "aliases" in capsys.readouterr().err
