"""blockyard schema [to=FOLDER] [--config-dir DIR] [allow=[PACKAGE]]

Write JSON schemas of all config groups and of sweep files, with which editors complete and check them as you type: the
classes of a group, the options of each, their types, ranges, defaults and help. In FOLDER, by default .schema, are
GROUP.json and sweep.json, which replace the schemas of an earlier call and no other file. The lines that it prints
belong into .vscode/settings.json, for the YAML extension of VS Code. What depends on several files says
`blockyard check`.

  to=FOLDER         where they are written
  --config-dir DIR  a folder with choices of your own, whose classes are in the schemas too
  allow=[PACKAGE]   packages of your own, from which those classes are imported

Examples:
  blockyard schema
  blockyard schema to=editor/schemas
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, write_text
from blockyard.commands._args import read
from blockyard.config.option_text import non_empty
from blockyard.config.untrusted.local_path import check_inside, local_path
from blockyard.errors import UserError

KEYS = ("to", "allow")
DEFAULT = ".schema"


def run(arguments: Sequence[str]) -> int:
    """Write the schemas, and print how an editor finds them."""
    args = read("schema", arguments)
    to = args.pop("to", None, non_empty)
    folder = local_path(to or DEFAULT, "to")
    allow, folders = args.pop_allow(), args.folders()
    args.check_empty("schema", KEYS)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"to={folder}: {folder} is a file; name a folder")
    from blockyard.config.json_schema import group_schemas
    from blockyard.sweep.spec.keys import sweep_schema

    schemas = {**group_schemas(folders, allow), "sweep": sweep_schema()}
    for name, schema in schemas.items():
        path = folder / f"{name}.json"
        if to is None:
            check_inside(path, Path.cwd())
        if os.path.lexists(path) and not _is_schema(path, schema):
            raise UserError(f"{path} is not a schema of blockyard and is not overwritten; choose another to=FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas.items():
        write_text(folder / f"{name}.json", json.dumps(schema, indent=1) + "\n")
    sys.stdout.write(f"wrote {len(schemas)} schemas to {folder}; in .vscode/settings.json:\n")
    sys.stdout.write(json.dumps({"yaml.schemas": associations(folder, list(schemas))}, indent=2) + "\n")
    return 0


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
    """Which files each schema is for, as the YAML extension of VS Code reads it."""
    near = "" if folder.is_absolute() else "./"
    return {
        f"{near}{folder / name}.json": "sweeps/*.yaml" if name == "sweep" else f"**/{name}/*.yaml" for name in names
    }
