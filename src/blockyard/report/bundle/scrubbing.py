"""Remove facts of one machine from plain data, which are no results: paths, its name, accounts and process numbers.

A path keeps its last part, `<path>/mails.csv`, so that a reader knows which file to name. Secrets are replaced where a
run is written; here once more, because a folder may be older than a rule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from blockyard.sweep.plan.compact_json import without_secrets

PATH = "<path>"
# Of run.json, of its `host`, and of its `start`; and what a comparison has of the machine.
_LEFT_OUT = {"wandb", "mlflow", "by", "folder", "link", "checksum"}
_HOST_NAME = "name"
# What is shown of data, where a slash is part of a text or a picture.
_CONTENT = {"samples", "written", "predictions", "attention"}
_REASONS = {"note", "left_out"}  # of these: why something is not shown, which may name a file
_WHOLE = re.compile(r"(?P<key>[\w.+-]+=)?(?P<path>(?:~[\w.-]*)?/(?!/)[^\n]*)")
_INSIDE = re.compile(r"(?<![\w.:/<>~-])(?:~[\w.-]*)?/(?![/\s])(?:[^\s/'\"<>|:;,()\[\]{}]+/)+([^\s/'\"<>|:;,()\[\]{}]*)")


def scrubbed(value: Any, recorded: tuple[str, ...] = ()) -> Any:
    """Return a copy of plain data without paths, machine, accounts and secrets. known: folders of this machine."""
    folders = sorted({os.path.normpath(each) for each in recorded if len(each) > 1}, key=len, reverse=True)

    def content(item: Any) -> Any:
        if not isinstance(item, Mapping):
            return item
        return {str(name): copied(each, "") if name in _REASONS else each for name, each in item.items()}

    def copied(item: Any, key: str) -> Any:
        if isinstance(item, Mapping):
            kept = {}
            for name, entry in item.items():
                if name in _LEFT_OUT or (key == "host" and name == _HOST_NAME):
                    continue
                kept[str(name)] = content(entry) if name in _CONTENT else copied(entry, str(name))
            return kept
        if isinstance(item, list | tuple):
            return [copied(each, key) for each in item]
        if isinstance(item, str):
            return _without_paths(item, folders)
        return item

    return without_secrets(copied(value, ""))


def _without_paths(text: str, folders: list[str]) -> str:
    if "/" not in text or text.startswith("data:"):
        return text
    if whole := _WHOLE.fullmatch(text):
        name = whole["path"].rstrip("/").rpartition("/")[2]
        if name:
            return f"{whole['key'] or ''}{PATH}/{name}"
        return text
    for folder in folders:
        text = text.replace(f"{folder}/", f"{PATH}/").replace(folder, PATH)
    return _INSIDE.sub(lambda match: f"{PATH}/{match[1]}", text)


def scrubbed_keys(config: Any, key: str = "") -> list[str]:
    """Return the dotted keys of a config whose value was a path."""
    if isinstance(config, Mapping):
        return [dotted for name, item in config.items() for dotted in scrubbed_keys(item, f"{key}.{name}".lstrip("."))]
    if isinstance(config, list | tuple):
        return [dotted for index, item in enumerate(config) for dotted in scrubbed_keys(item, f"{key}.{index}")]
    if isinstance(config, str) and PATH in config:
        return [key]
    return []
