"""Looks at a file or folder: what it holds, by its name and its content."""

from __future__ import annotations

import tarfile
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from blockyard.ask.sample import is_large, sample_table
from blockyard.ask.subject import FileContents, Setting, data_setting, molecules, path_setting
from blockyard.ask.table import SMALL, SMALL_TEST, columns_of
from blockyard.data.files.conll import SUFFIXES as TAGGED
from blockyard.data.files.images import SUFFIXES as IMAGES
from blockyard.data.files.split_names import SPLIT
from blockyard.data.files.tables import keys_of, kind_of
from blockyard.errors import UserError, first_line, fold

TABLES = ".csv, .tsv, .jsonl (also .gz), .parquet or .arrow"
READABLE = (
    f"a table ({TABLES}), an array (.npz), series with classes (.ts, .npz), running text (.txt), sentences with tags "
    "(.conll), molecules (.graphs.jsonl, or a .csv with a column smiles), a folder of images with a folder for each "
    "class, or of recordings with their texts"
)
_GRAPHS = (".graphs.jsonl", ".graphs.jsonl.gz")
_TEXT_BYTES = 2**16  # of a file that are looked at to see whether it is text


def look(path: Path, typed: Mapping[str, str], folder: Path) -> FileContents:
    """Return what a file or folder holds. Raises UserError where it cannot be read, or has no target.

    typed: keys and values of the user's overrides, which are not chosen here
    folder: for the sample of a large table
    """
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if "data" in typed:
        return FileContents(f"read as data={typed['data']}", (path_setting(path),))
    if path.is_dir():
        return _folder(path, typed)
    name = path.name.lower()
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty")
    if name.endswith(_GRAPHS):
        return molecules(path, "molecules as graphs", "its lines are graphs", keys_of(path))
    if kind_of(path):
        return _table(path, typed, folder)
    if path.suffix == ".npz":
        return _arrays(path)
    if path.suffix == ".ts":
        return FileContents(
            "series with a class each", (data_setting("series_table", "a .ts archive"), path_setting(path))
        )
    if path.suffix in TAGGED:
        settings = (data_setting("tagged_text", "a word and its tag in each line"), path_setting(path))
        return FileContents("sentences with a tag for each word", settings)
    if zipfile.is_zipfile(path):
        return _zip(path)
    if tarfile.is_tarfile(path):
        return FileContents(
            "images in tar shards", (data_setting("webdataset", "a tar archive of images"), path_setting(path))
        )
    if not _is_text(path):
        raise UserError(f"{path} is none of the kinds that are read: {READABLE}")
    return FileContents("running text", (data_setting("text_file", "running text, without rows"), path_setting(path)))


def _is_text(path: Path) -> bool:
    with open(path, "rb") as file:
        content = file.read(_TEXT_BYTES)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start > len(content) - 4  # a character that goes on behind the part that was read
    return b"\0" not in content


def _folder(path: Path, typed: Mapping[str, str]) -> FileContents:
    """Return what a folder holds, by its first files."""
    metadata = path / "metadata.jsonl"
    if metadata.is_file():
        settings = (data_setting("captions", "metadata.jsonl names images and their texts"), path_setting(path))
        return FileContents("images with captions", settings)
    suffixes = Counter(file.suffix.lower() for file in path.rglob("*") if file.is_file())
    if any(suffix in IMAGES for suffix in suffixes):
        return _image_folder(path, sum(suffixes[suffix] for suffix in IMAGES))
    if suffixes[".wav"] and suffixes[".txt"]:
        settings = (data_setting("speech", "sounds with a .txt each"), path_setting(path))
        return FileContents("recordings with their texts", settings)
    tables = sorted(file for file in path.iterdir() if kind_of(file))
    if tables:
        subject = columns_of(tables[0], typed)
        if any(setting.key == "data" and setting.value == "speech" for setting in subject.settings):
            return subject  # the table names the recordings beside it
        settings_of_folder = []
        for setting in subject.settings:
            if setting.key == "data.path":
                setting = path_setting(path)
            settings_of_folder.append(setting)
        return replace(subject, settings=tuple(settings_of_folder))
    if suffixes[".tar"]:
        settings = (data_setting("webdataset", "tar archives of images"), path_setting(path))
        return FileContents("images in tar shards", settings)
    if any(suffix in TAGGED for suffix in suffixes):
        settings = (data_setting("tagged_text", "a word and its tag in each line"), path_setting(path))
        return FileContents("sentences with a tag for each word", settings)
    if suffixes[".txt"]:
        return FileContents("text files", (data_setting("text_file", "text files"), path_setting(path)))
    raise UserError(f"{path} holds nothing that is read; a folder or file is one of: {READABLE}")


def _image_folder(path: Path, num_images: int) -> FileContents:
    settings = [data_setting("image_folder", "a folder for each class"), path_setting(path, "data.root")]
    if num_images < SMALL and not (path / "test").is_dir():
        reason = f"of {num_images:,} images the usual tenth is too small a test"
        settings.append(Setting("data.test_fraction", SMALL_TEST, reason))
    return FileContents(f"{num_images:,} images in a folder for each class", tuple(settings))


def _zip(path: Path) -> FileContents:
    with zipfile.ZipFile(path) as archive:
        suffixes = {Path(name).suffix.lower() for name in archive.namelist()}
    if {".wav", ".txt"} <= suffixes:
        settings = (data_setting("speech", "sounds with a .txt each"), path_setting(path))
        return FileContents("recordings with their texts", settings)
    raise UserError(f"{path} is an archive without sounds and their .txt; unpack it and name the folder")


def _arrays(path: Path) -> FileContents:
    import numpy as np

    try:
        with np.load(path) as arrays:
            names = list(arrays.files)
            targets = arrays["y"] if "y" in names else None
            shape = arrays["x"].shape if "x" in names else ()
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    if {"X_train", "y_train"} <= set(names):
        settings = (
            data_setting("series_table", "X_train and y_train, as in the archives of series"),
            path_setting(path),
        )
        return FileContents("series with a class each", settings)
    if targets is None or not shape:
        raise UserError(
            f"{path} has the arrays {fold(names)}; name the inputs x and the targets y, or X_train and y_train for "
            "series"
        )
    read = [data_setting("arrays", "x and y"), path_setting(path)]
    if SPLIT not in names and shape[0] < SMALL:
        reason = f"of {shape[0]:,} rows the usual tenth is too small a test"
        read.append(Setting("data.test_fraction", SMALL_TEST, reason))
    return FileContents(f"{shape[0]:,} arrays of shape {tuple(shape[1:])}", tuple(read))


def _table(path: Path, typed: Mapping[str, str], folder: Path) -> FileContents:
    """Return what a table holds, or a sample of a large one."""
    if not is_large(path):
        return columns_of(path, typed)
    sample = sample_table(path, folder)
    return replace(columns_of(sample.path, typed), sample=sample)
