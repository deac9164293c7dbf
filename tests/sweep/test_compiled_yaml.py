"""YAML read with libyaml means what PyYAML's own parser reads, for the project's files and for damaged ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockyard.atomic_files import strict_yaml, yaml_file
from blockyard.config.untrusted import user_yaml
from blockyard.sweep.spec.sweep_yaml import SweepLoader

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "sweeps").glob("*.yaml")])
LOADERS = [strict_yaml.StrictLoader, SweepLoader, user_yaml._loader()]
# What the texts are damaged with; \t, \ufeff and some others are read by PyYAML alone.
PARTS = [
    *"\t#\"'[]{},|>!%@~=\\\r\u2028\x85é\ufeff",
    ":",
    "- ",
    "\n",
    "  ",
    "&a ",
    "*a",
    "? ",
    "null",
    "1e3",
    "0x1",
    "0o7",
]
PARTS += ["---\n", "...\n", "<<: ", ": ", " #", "1_000", "12:30", "true"]

pytestmark = pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")


def outcome(text: str, loader: type[strict_yaml.StrictLoader], monkeypatch: Any) -> tuple[Any, Any]:
    """What the two parsers make of a text: a value as text, or the message of a refusal."""

    def read() -> str:
        try:
            return repr(strict_yaml.load(text, loader))
        except strict_yaml.StrictYamlError as error:
            return f"refused: {error}"

    compiled = read()
    with monkeypatch.context() as patch:
        patch.setattr(strict_yaml, "_compiled", lambda loader: None)
        return compiled, read()


@pytest.mark.parametrize("loader", LOADERS)
def test_the_files_of_the_project(loader, monkeypatch):
    texts = [file.read_text(encoding="utf-8") for file in FILES]
    read = [outcome(text, loader, monkeypatch) for text in texts]
    assert len(read) > 200
    for compiled, slow in read:
        assert compiled == slow


@pytest.mark.parametrize("loader", LOADERS)
def test_damaged_texts(loader, monkeypatch):
    numbers = random.Random(0)
    texts = [file.read_text(encoding="utf-8") for file in FILES]
    refused = 0
    for _ in range(700):
        text = numbers.choice(texts)
        start = numbers.randrange(len(text))
        text = text[start : start + numbers.randrange(5, 200)]
        for _ in range(numbers.randrange(5)):
            at = numbers.randrange(len(text) + 1)
            text = text[:at] + numbers.choice(PARTS) + text[at + numbers.randrange(3) :]
        compiled, slow = outcome(text, loader, monkeypatch)
        assert compiled == slow, text
        refused += compiled.startswith("refused")
    assert 70 < refused < 630


def json_of(path: Path, text: str, monkeypatch: Any, *, whole: bool) -> str:
    """The JSON of a text, or the message of its refusal; `whole`: as `read_yaml` reads it, not entry by entry."""
    path.write_text(text, encoding="utf-8", newline="")
    with monkeypatch.context() as patch:
        if whole:
            patch.setattr(yaml_file, "_entries_as_json", lambda text: None)
        try:
            return yaml_file.read_yaml_as_json(path)
        except ValueError as error:
            return f"refused: {error}"


@pytest.mark.full
def test_json_entry_by_entry_is_that_of_the_whole(tmp_path, monkeypatch):
    numbers = random.Random(1)
    config = yaml.dump({"data": {"size": 3, "parts": ["a", "b: c"]}, "name": None, "seed": 0, "text": "one\n\ntwo\n"})
    texts = [config, *(file.read_text(encoding="utf-8") for file in FILES)]
    refused = by_entries = 0
    for number in range(800):
        text = texts[0] if number % 4 else numbers.choice(texts)
        for _ in range(numbers.randrange(4)):
            at = numbers.randrange(len(text) + 1)
            text = (
                text[:at]
                + numbers.choice([*PARTS, "\na: 1\n", "\n- 1", " |\n", " >+\n\n"])
                + text[at + numbers.randrange(3) :]
            )
        fast = json_of(tmp_path / "x.yaml", text, monkeypatch, whole=False)
        assert fast == json_of(tmp_path / "x.yaml", text, monkeypatch, whole=True), text
        refused += fast.startswith("refused")
        by_entries += yaml_file._entries_as_json(text) is not None
    assert refused > 100
    assert by_entries > 100


def test_most_texts_are_read_by_libyaml():
    """Otherwise the tests above compare PyYAML with itself."""
    text = (ROOT / "conf/trainer/ddp.yaml").read_text(encoding="utf-8")
    compiled = strict_yaml._compiled(strict_yaml.StrictLoader)
    assert compiled is not None
    assert yaml.load(text, Loader=compiled) == yaml.safe_load(text)
    assert not any(part in text for part in strict_yaml._LENIENT)
