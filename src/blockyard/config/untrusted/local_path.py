"""Paths that users name: folders and files of this machine, never addresses of an object store.

A run relies on what a file system promises and an object store does not: renames that replace, links, locks, files that
grow. An address such as s3://bucket/runs would become a local folder named `s3:`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from blockyard.errors import UserError, printable

# fsspec also chains them: simplecache::s3://bucket. pathlib makes one slash of two.
_URL = re.compile(r"(?:[A-Za-z][\w+.-]+::)*(?P<protocol>[A-Za-z][\w+.-]+):/")


def url_problem(path: str | os.PathLike[str]) -> str | None:
    """Return why an address is not a path, with a way out; None for a path."""
    text = os.fspath(path).strip()
    url = _URL.match(text)
    if url is None:
        return None
    if url["protocol"] == "file":
        return f"{text} is an address, not a path; write /{text[url.end() :].lstrip('/')}"
    return (
        f"{text} is an address, and blockyard reads and writes folders of this machine only; "
        f"use a local or mounted folder; `blockyard runs push` and `pull` copy runs to {url['protocol']}: and back"
    )


def check_inside(path: Path, folder: Path) -> None:
    """Raise UserError where a link on the way from `folder` to a file in it leads out of `folder`.

    For files that a command writes without that the user named them: the folder may come from a stranger.
    """
    below = path.absolute().relative_to(folder.absolute())
    step = folder.absolute()
    for part in below.parts:
        step = step / part
        if step.is_symlink() and not step.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                printable(
                    f"{step} is a link to {os.readlink(step)}, outside of {folder.absolute()}, and nothing is written "
                    "there; put a folder or file in its place"
                )
            )


def outputs_folder(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder of runs. Raises UserError for one that no config can hold as text."""
    folder = local_path(path, "outputs").absolute()
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UserError(f"outputs: the folder's name {str(folder)!r} is not UTF-8; rename it, or use another") from None
    return folder


def local_path(path: str | os.PathLike[str], option: str | None = None) -> Path:
    """Return the path that a user named, `~` expanded. Raises UserError for an address of an object store.

    option: that named it, for the message
    """
    problem = url_problem(path)
    if problem:
        raise UserError(f"{option}: {problem}" if option else problem)
    return Path(os.path.expanduser(path))  # pathlib's raises for the home of a user that does not exist
