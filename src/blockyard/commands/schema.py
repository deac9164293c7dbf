"""blockyard schema [to=FOLDER] [--config-dir DIR] [allow=[PACKAGE]]

Write JSON schemas of all config groups and of sweep files, with which editors complete and check them as you type: the
classes of a group, the options of each, their types, ranges, defaults and help. In FOLDER, by default .schema, are
GROUP.json and sweep.json; what is there of an earlier call is replaced. The lines that it prints belong into
.vscode/settings.json, for the YAML extension of VS Code. What depends on several files says `blockyard check`.

  to=FOLDER         where they are written
  --config-dir DIR  a folder with choices of your own, whose classes are in the schemas too
  allow=[PACKAGE]   packages of your own, from which those classes are imported

Examples:
  blockyard schema
  blockyard schema to=editor/schemas
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from blockyard.atomic_files import write_text
from blockyard.commands._args import read
from blockyard.config.option_text import non_empty
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

KEYS = ("to", "allow")


def run(arguments: Sequence[str]) -> int:
    """Write the schemas, and print how an editor finds them."""
    args = read("schema", arguments)
    folder = local_path(args.pop("to", ".schema", non_empty), "to")
    allow, folders = args.pop_allow(), args.folders()
    args.check_empty("schema", KEYS)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"to={folder}: {folder} is a file; name a folder")
    from blockyard.config.json_schema import group_schemas
    from blockyard.sweep.spec.json_schema import sweep_schema

    schemas = {**group_schemas(folders, allow), "sweep": sweep_schema()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas.items():
        write_text(folder / f"{name}.json", json.dumps(schema, indent=1) + "\n")
    sys.stdout.write(f"wrote {len(schemas)} schemas to {folder}; in .vscode/settings.json:\n")
    sys.stdout.write(json.dumps({"yaml.schemas": associations(folder, list(schemas))}, indent=2) + "\n")
    return 0


def associations(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Which files each schema is for, as the YAML extension of VS Code reads it."""
    near = "" if folder.is_absolute() else "./"
    return {
        f"{near}{folder / name}.json": "sweeps/*.yaml" if name == "sweep" else f"**/{name}/*.yaml" for name in names
    }
