"""Addresses of object stores are refused wherever a path may be typed: exit code 2, one message, no folder `s3:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.config.untrusted.local_path import local_path, url_problem
from tests.support.fork import blockyard
from tests.support.tiny import DEBUG

URL = "s3://bucket/runs"
TRAIN = ("experiment=vit_digits", *DEBUG)
COMMANDS = {
    "train": ("train", *TRAIN, f"outputs={URL}"),
    "train a chain": ("train", *TRAIN, "outputs=simplecache::gs://bucket"),
    "train memory": ("train", *TRAIN, "outputs=memory://runs"),
    "train file": ("train", *TRAIN, "outputs=file:///tmp/runs"),
    "train multirun": ("train", "-m", *TRAIN, f"outputs='{URL}'", "seed=0"),
    "check": ("check", *TRAIN, f"outputs={URL}"),
    "resume": ("train", f"resume={URL}"),
    "resume from outputs": ("train", "resume=last", f"outputs={URL}"),
    "config folder": ("train", *TRAIN, "--config-dir", URL),
    "search path": ("train", *TRAIN, f"hydra.searchpath=['{URL}']"),
    "eval": ("eval", f"run={URL}"),
    "eval outputs": ("eval", "run=last", f"outputs={URL}"),
    "forecast": ("forecast", f"run={URL}"),
    "generate": ("generate", f"run={URL}", "prompt=x"),
    "predict": ("predict", f"run={URL}", "text"),
    "embed": ("embed", f"run={URL}", "text", "out=x.npz"),
    "embed out": ("embed", "run=last", f"out={URL}/x.npz"),
    "import": ("import", URL, "out=x"),
    "import out": ("import", ".", f"out={URL}", "timm=vit_tiny_patch16_224"),
    "export": ("export", f"run={URL}", "to=x", "format=hf"),
    "soup": ("soup", URL, "last", "out=x"),
    "soup out": ("soup", "last", f"out={URL}"),
    "runs": ("runs", f"outputs={URL}"),
    "inspect": ("inspect", "mixing", f"run={URL}"),
    "compare": ("compare", URL),
    "compare outputs": ("compare", "last", f"outputs={URL}"),
    "board": ("board", URL),
    "sweep": ("sweep", f"{URL}/x.yaml"),
    "sweep outputs": ("sweep", "quickstart", f"outputs={URL}"),
    "sweep plan": ("sweep", "quickstart", "--dry-run", f"outputs={URL}"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name == "train multirun" else ()) for name in COMMANDS]
)
def test_an_address_is_refused(name: str, tmp_path: Path) -> None:
    done = blockyard(tmp_path, *COMMANDS[name])
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("is an address") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["runs", "./a:b", "a:b", "/data/s3:/runs", "~/x", "digits=2", "C:", "", "2026-11-22T10:00/x", "x::y"]
)
def test_paths_stay_paths(path: str) -> None:
    assert url_problem(path) is None
    assert local_path(path) == Path(path).expanduser()


@pytest.mark.parametrize("path", [URL, Path(URL), "az://c/x", "github://a:b@c/d", "zip://*.csv::s3://b", "file:///a/b"])
def test_addresses_are_told(path: str | Path) -> None:
    assert "is an address" in (url_problem(path) or "")


def test_the_path_in_a_file_address_is_named() -> None:
    assert (url_problem("file:///a/b") or "").endswith("write /a/b")
