"""Atomic file writes: a temporary file in the same folder is synced, then renamed over the target.

A writer that is killed leaves at most a file or folder named `.tmp-NAME-PID-...`, which is never read. The next process
that writes beside it removes it, unless its writer lives or was of another machine. The next start of a run, which
holds the lock, removes it too; in a run that is done it is removed once nobody has written to it for a minute.

    replace.py     any file, and JSON with a checksum on request; removal of leftovers
    owner.py       whether another user decides the content of a file
    csv_text.py    CSV for spreadsheets
    strict_yaml.py YAML that may come from a stranger: the refusals of every reader of YAML
    yaml_file.py   YAML of plain data, written here
"""

from __future__ import annotations

from blockyard.atomic_files.csv_text import Formatted, csv_text
from blockyard.atomic_files.owner import database_reason, link_reason, shared_reason
from blockyard.atomic_files.replace import (
    CHECKSUM,
    DELETED,
    TEMPORARY,
    is_regular,
    leftovers,
    move_aside,
    new_folder,
    open_member,
    passing_name,
    read_bytes,
    read_json,
    read_member,
    remove_leftovers,
    remove_temporary,
    replacing,
    stamp,
    sync_folder,
    write_json,
    write_text,
)
from blockyard.atomic_files.yaml_file import read_yaml, read_yaml_as_json, write_yaml

__all__ = [
    "CHECKSUM",
    "DELETED",
    "TEMPORARY",
    "Formatted",
    "csv_text",
    "database_reason",
    "is_regular",
    "leftovers",
    "link_reason",
    "move_aside",
    "new_folder",
    "open_member",
    "passing_name",
    "read_bytes",
    "read_json",
    "read_member",
    "read_yaml",
    "read_yaml_as_json",
    "remove_leftovers",
    "remove_temporary",
    "replacing",
    "shared_reason",
    "stamp",
    "sync_folder",
    "write_json",
    "write_text",
    "write_yaml",
]
