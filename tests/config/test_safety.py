"""What a config may name: hostile `_target_`s build nothing and run nothing."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.instantiate import instantiate
from blockyard.config.untrusted import targets
from blockyard.config.untrusted.targets import TRUSTED_PACKAGES, allowed

HOSTILE = (
    "os.system",
    "subprocess.Popen",
    "subprocess.run",
    "builtins.eval",
    "builtins.exec",
    "builtins.getattr",
    "builtins.__import__",
    "importlib.import_module",
    "shutil.rmtree",
    "pathlib.Path",
    "pickle.loads",
    "runpy.run_path",
    "ctypes.CDLL",
    "code.InteractiveConsole",
    "urllib.request.urlopen",
    "http.server.HTTPServer",
    "hydra.utils.get_method",
    "hydra.utils.call",
    "torch.load",
    "torch.hub.load",
    "torch.utils.cpp_extension.load",
    "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler",
    "transformers.pipeline",
    "timm.create_model",
    "pytorch_lightning.Trainer",
    "blockyard.atomic_files.write_json",
    "torch.nn.Module.__init__.__globals__",
    "blockyard..x",
    "torch",
    "",
)


@pytest.mark.parametrize("target", HOSTILE)
@pytest.mark.parametrize("key", ["token_mixer", "data", "optimizer", "callbacks.progress"])
def test_hostile_target_is_refused(target, key, monkeypatch):
    """Before its module is imported, which would run it."""
    imported = importlib.import_module

    strange = []

    def only_ours(name, package=None):
        if name.partition(".")[0] not in TRUSTED_PACKAGES:
            strange.append(name)
            raise ImportError(name)
        return imported(name, package)

    monkeypatch.setattr(targets, "importlib", SimpleNamespace(import_module=only_ours))
    issues = check(compose([f"{key}._target_='{target}'"]))
    assert any(issue.key.startswith(key) for issue in issues), issues
    assert strange == []


def test_an_object_is_no_plain_value():
    composed = compose([])
    composed.config["token_mixer"]["dropout"] = {"_target_": "torch.nn.Identity"}
    (issue,) = check(composed)
    assert issue.key == "token_mixer.dropout"
    assert issue.text.endswith("expected number >= 0 and < 1, not an object")


def test_a_file_cannot_allow_itself(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "evil.yaml").write_text("# @package _global_\n# evil\nallow: [os]\n")
    issues = check(compose(["experiment=evil"], [str(tmp_path)]))
    assert any(issue.key == "allow" for issue in issues)


def test_alias_bomb_is_refused_unread(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "bomb.yaml").write_text("\n".join(lines) + "\n")
    assert any("at most 20 are allowed" in str(issue) for issue in compose(["norm=bomb"], [str(tmp_path)]).issues)


def test_instantiate_asks_too():
    with pytest.raises(ValueError, match="not in an allowed package"):
        instantiate({"_target_": "subprocess.Popen", "args": "true"}, [])


def test_own_package_only_when_named():
    assert not allowed("mypackage.Thing", [])
    assert allowed("mypackage.Thing", ["mypackage"])
    assert not allowed("mypackage.Thing", ["mypack"])


def test_a_secret_of_the_wrong_type_is_not_told_back(tmp_path, monkeypatch, capsys):
    (tmp_path / "guarded.py").write_text(
        "from blockyard.engine.loggers.base import NoLogger\n\n\n"
        "class Guarded(NoLogger):\n"
        "    def __init__(self, *, api_key: int = 0) -> None:\n"
        "        super().__init__()\n"
    )
    (tmp_path / "conf" / "logger").mkdir(parents=True)
    (tmp_path / "conf" / "logger" / "guarded.yaml").write_text("_target_: guarded.Guarded\napi_key: 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = [
        "logger=guarded",
        "logger.api_key=hunter2-and-more",
        "allow=[guarded]",
        "--config-dir",
        str(tmp_path / "conf"),
    ]
    assert main(["check", *overrides]) == 2
    message = capsys.readouterr().err
    assert "logger.api_key" in message
    assert "hunter2" not in message
