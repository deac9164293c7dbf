"""Installed packages bring choices by the entry points `blockyard.components`, without `allow` or a config folder."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.config.untrusted import installed

NORM = '''
    """A gain without statistics.

    Source: a test
    """

    import torch
    from torch import nn


    class Gain(nn.Module):
        def __init__(self, ctx, *, start: float = 1.0):
            super().__init__()
            self.start = start
            self.gain = nn.Parameter(torch.empty(ctx.dim))

        def init_weights(self, init):
            init.ones("gain")

        def forward(self, x):
            return x * self.gain
'''
YAML = "_target_: tinypack.gain.Gain\n_partial_: true\nstart: 1.0\n"
CHECK = ["check", "experiment=vit_digits", "norm=tiny_gain"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path with the installed distribution tiny-pack 1.0, as pip leaves it."""
    conf = tmp_path / "tinypack" / "conf" / "norm"
    conf.mkdir(parents=True)
    (tmp_path / "tinypack" / "__init__.py").touch()
    (tmp_path / "tinypack" / "gain.py").write_text(textwrap.dedent(NORM).lstrip())
    (conf / "tiny_gain.yaml").write_text(YAML)
    entry_points(tmp_path, "tinypack.conf")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLOCKYARD_PROJECT", "none")
    monkeypatch.delenv(installed.VARIABLE, raising=False)
    installed._discover.cache_clear()
    yield tmp_path
    installed._discover.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tinypack"]:
        del sys.modules[name]


def entry_points(site: Path, value: str) -> None:
    """What pip writes beside a package."""
    info = site / "tiny_pack-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-pack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[blockyard.components]\ntiny = {value}\n")


def test_its_choice_is_listed_with_its_origin_and_nothing_of_it_is_imported(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "norm"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    assert "A gain without statistics." in lines["tiny_gain"]
    assert "tiny-pack" in lines["tiny_gain"]
    assert "blockyard" in lines["layer"]
    assert "tinypack" not in sys.modules


def test_its_choice_is_checked_explained_and_left_out(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(CHECK) == 0
    assert main(["explain", "norm=tiny_gain"]) == 0
    assert "start" in capsys.readouterr().out
    monkeypatch.setenv(installed.VARIABLE, "none")
    assert main(CHECK) == 2
    assert "tiny_gain" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "choice", "reason"),
    [
        ("tinypack", "tiny_gain", "expected PACKAGE.FOLDER"),
        ("tinypack.nothing", "tiny_gain", "the folder does not exist"),
        ("tinypack.conf", "layer", "brings norm=layer, which blockyard has already"),
        ("tinypack.conf", "tiny_gain", "hydra"),
    ],
)
def test_an_unsound_package_is_named_with_the_way_out(
    site: Path, value: str, choice: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry_points(site, value)
    (site / "tinypack" / "conf" / "norm" / f"{choice}.yaml").write_text(YAML)
    if reason == "hydra":
        (site / "tinypack" / "conf" / "hydra").mkdir()
    assert main(CHECK) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "BLOCKYARD_COMPONENTS=none leaves installed packages out" in error


def test_a_class_of_a_package_that_is_not_installed_as_components_needs_allow(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "tiny_pack-1.0.dist-info" / "entry_points.txt").write_text("")
    assert main([*CHECK, "--config-dir", str(site / "tinypack" / "conf")]) == 2
    assert "allow" in capsys.readouterr().err
