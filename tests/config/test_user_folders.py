"""A user's config folder: what Hydra composes from it may not reach Hydra itself, and what users do with it works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blockyard.config.compose import compose
from blockyard.config.multirun import expand
from blockyard.config.untrusted import user_yaml
from blockyard.errors import UserError
from tests.battery.hostile_folders import GLOBAL, reaching_hydra

# Folders whose payload arrives at Hydra's own keys, or makes Hydra refuse; the other spellings are no keys of Hydra.
HARMLESS = ("dotted", "through the group", "defaults: /norm@:hydra")
REACHING = [folder for folder in reaching_hydra() if not folder.name.startswith(HARMLESS)]


@pytest.mark.parametrize(
    "folder",
    [
        folder
        for index, folder in enumerate(REACHING)
        if index % 9 == 0 or "[" in folder.name or "bracket" in folder.name
    ],
    ids=lambda folder: folder.name,
)
@pytest.mark.sampled(2)
def test_composed_keys_of_hydra_are_compared_where_the_text_says_nothing(folder, tmp_path, monkeypatch) -> None:
    """The guard behind the guard: with the search of a file's own names off, composing still refuses."""
    monkeypatch.setattr(user_yaml, "reaches_hydra", lambda *_: False)
    user_yaml._read.cache_clear()
    folder.write(tmp_path)
    composed = compose([folder.choice], [str(tmp_path / "conf")])
    user_yaml._read.cache_clear()
    assert composed.issues
    assert composed.config == {}


def _write(root: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def test_folders_of_users_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, nested files, groups of one's own, anchors, merges, interpolations and environment variables."""
    folder = _write(
        tmp_path / "a b, [c] 'd' %20 ü $HOME",
        {
            "experiment/mine.yaml": f"{GLOBAL}defaults:\n  - /mine/sizes\n  - sub/more\n  - override /norm: small\n"
            "tags: ['${model.depth}', '${oc.env:BLOCKYARD_TEST_TAG}']\noptimizer: {lr: 2e-3}\n",
            "experiment/sub/more.yaml": f"{GLOBAL}defaults: [/shared]\nseed: 7\n",
            "mine/sizes.yaml": f"{GLOBAL}model: &sizes {{dim: 32, depth: 2}}\n",
            "shared.yaml": f"{GLOBAL}name: shared\n",
            "elsewhere/small.yaml": "_target_: blockyard.norm.rms.RMS\n_partial_: true\n",
            ".github/workflows/ci.yml": "on: [push]\njobs: !x {a: 1}\n",
            "docker-compose.yaml": "a: 1\na: 2\n",
        },
    )
    os.symlink("elsewhere", Path(folder) / "norm")
    monkeypatch.setenv("BLOCKYARD_TEST_TAG", "mine")
    composed = compose(["experiment=mine", "data=digits"], [folder])
    assert composed.issues == []
    assert composed.config["model"]["dim"] == 32
    assert composed.config["norm"]["_target_"].endswith("RMS")
    assert composed.config["tags"] == [2, "mine"]
    assert (composed.config["seed"], composed.config["optimizer"]["lr"]) == (7, 2e-3)
    assert composed.config["name"] == "shared"


def test_a_search_path_is_read_as_hydra_reads_it(tmp_path: Path) -> None:
    folder = _write(tmp_path / "one", {"norm/mine.yaml": "_target_: blockyard.norm.rms.RMS\n_partial_: true\n"})
    for text in (f"hydra.searchpath=[{folder}]", f"hydra.searchpath=['file://{folder}']"):
        assert compose(["norm=mine", text]).issues == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=1,2", "norm=rms"], ["seed=1 norm=rms", "seed=2 norm=rms"]),
        (["seed=range(3)"], ["seed=0", "seed=1", "seed=2"]),
        (["optimizer.lr=range(0.1,0.3,0.1)"], ["optimizer.lr=0.1", "optimizer.lr=0.2"]),
        (["norm=glob(layer*)"], ["norm=layer", "norm=layer_plain"]),
        (["norm=glob([layer*,rms],exclude=*_plain)"], ["norm=layer", "norm=rms"]),
        (["norm=choice(rms,layer)"], ["norm=rms", "norm=layer"]),
        (["seed=sort(3,1,2)"], ["seed=1", "seed=2", "seed=3"]),
        (["tags=[a,b],[c]"], ["tags=[a,b]", "tags=[c]"]),
        (["name='a b',\"c,d\""], ["name='a b'", 'name="c,d"']),
        (["seed=1,2", "seed=3"], ["seed=3"]),
        (["match={params:1e5},{params:2e5}"], ["match={params:100000.0}", "match={params:200000.0}"]),
        (["a=1,2", "b=3,4"], ["a=1 b=3", "a=1 b=4", "a=2 b=3", "a=2 b=4"]),
    ],
)
def test_a_multirun_is_expanded_as_hydra_expands_it(overrides: list[str], expected: list[str]) -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert [" ".join(run) for run in expand(overrides)] == expected
    if not any("glob" in text for text in overrides):  # Hydra looks for these in its own configs
        parsed = OverridesParser.create().parse_overrides(overrides)
        assert [" ".join(run) for run in BasicSweeper.split_arguments(parsed, None)[0]] == expected


def test_a_multirun_has_a_largest_size() -> None:
    with pytest.raises(UserError, match="1,000,000 runs are too many"):
        expand(["a=range(1000)", "b=range(1000)"])


def test_a_choice_may_be_called_hydra(tmp_path: Path) -> None:
    """An experiment that chose it was refused as one that sets keys of Hydra itself."""
    choice = "_target_: blockyard.norm.rms.RMS\n_partial_: true\n"
    experiment = f"{GLOBAL}defaults:\n  - override /norm: hydra\nseed: 1\n"
    folder = _write(tmp_path / "conf", {"norm/hydra.yaml": choice, "experiment/x.yaml": experiment})
    for override in ("experiment=x", "norm=hydra"):
        composed = compose([override], [folder])
        assert composed.issues == []
        assert composed.config["norm"]["_target_"] == "blockyard.norm.rms.RMS"


@pytest.mark.parametrize(
    "text", ["allow: [os]\n", "allow: os\n", "allow: {os: 1}\n", "allow: ${tags}\n", "allow: ${oc.env:HOME}\n"]
)
def test_a_package_that_a_file_allows_is_not_imported(text: str, tmp_path: Path, monkeypatch) -> None:
    package = _write(tmp_path / "code", {"evilpackage/__init__.py": "raise SystemExit('imported')\n"})
    monkeypatch.syspath_prepend(package)
    content = f"{GLOBAL}tags: [evilpackage]\n{text}callbacks: {{x: {{_target_: evilpackage.Evil}}}}\n"
    folder = _write(tmp_path / "conf", {"experiment/x.yaml": content.replace("[os]", "[evilpackage]")})
    composed = compose(["experiment=x", "tags=[evilpackage]"], [folder])
    assert [issue.key for issue in composed.issues] in (["allow"], ["config"])
    assert composed.config == {}


@pytest.mark.parametrize("path", ["hydra", "hydra/launcher", "hydra/config", "..", "../hydra", "norm/../hydra"])
def test_hydra_sees_no_group_of_its_own_in_a_folder(path: str, tmp_path: Path) -> None:
    """What a user's folder has under `hydra` is neither a group nor a config, even where the folder was not refused."""
    from blockyard.config.hydra_sources import UserFolder

    (tmp_path / "conf/hydra/launcher").mkdir(parents=True)
    (tmp_path / "conf/norm").mkdir()
    (tmp_path / "hydra").mkdir()
    (tmp_path / "conf/hydra/config.yaml").write_text("mode: MULTIRUN\n")
    source = UserFolder("test", f"userfolder://{tmp_path}/conf")
    assert source.is_group("norm")
    assert not source.is_group(path)
    assert not source.is_config(path)
