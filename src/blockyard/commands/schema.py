"""`blockyard schema`: JSON schemas of config groups and sweep files, for editors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, write_text
from blockyard.commands._signature import command
from blockyard.commands._types import Allow, ConfigDirs, Folder, check_config_dirs
from blockyard.config.untrusted.local_path import check_inside, local_path
from blockyard.errors import UserError

DEFAULT = ".schema"


@command()
def schema(*, to: Folder | None = None, allow: Allow = (), config_dirs: ConfigDirs = ()) -> None:
    """Write JSON schemas of all config groups and of sweep files, with which editors complete and check them.

    A schema has the classes of a group and the options of each, with their types, ranges, defaults and help. The folder
    then holds GROUP.json and sweep.json, which replace the schemas of an earlier call and no other file. The lines that
    are printed belong into .vscode/settings.json, for the YAML extension of VS Code. `blockyard check` finds what
    depends on several files.

    Options:
        to: where they are written, by default .schema
        allow: packages of your own, from which classes are imported

    Examples:
        blockyard schema
        blockyard schema to=editor/schemas
    """
    folder = local_path(to or DEFAULT, "to")
    folders = check_config_dirs(config_dirs)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"to={folder}: {folder} is a file; name a folder")
    from blockyard.config.json_schema import group_schemas
    from blockyard.sweep.spec.keys import sweep_schema

    schemas = {**group_schemas(folders, list(allow)), "sweep": sweep_schema()}
    for name, content in schemas.items():
        path = folder / f"{name}.json"
        if to is None:
            check_inside(path, Path.cwd())
        if os.path.lexists(path) and not _is_schema(path, content):
            raise UserError(f"{path} is not a schema of blockyard and is not overwritten; choose another to=FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in schemas.items():
        write_text(folder / f"{name}.json", json.dumps(content) + "\n")
    sys.stdout.write(f"wrote {len(schemas)} schemas to {folder}; in .vscode/settings.json:\n")
    sys.stdout.write(json.dumps({"yaml.schemas": associations(folder, list(schemas))}, indent=2) + "\n")


def _is_schema(path: Path, schema: Mapping[str, Any]) -> bool:
    """Return whether an earlier call wrote the file: a schema of the same dialect and title."""
    if path.is_symlink():
        return False
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and all(content.get(key) == schema[key] for key in ("$schema", "title"))


def associations(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the files of each schema, as the YAML extension of VS Code reads them."""
    near = "" if folder.is_absolute() else "./"
    files = {}
    for name in names:
        files[f"{near}{folder / name}.json"] = "sweeps/*.yaml" if name == "sweep" else f"**/{name}/*.yaml"
    return files
