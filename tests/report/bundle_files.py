"""Bundles that a stranger could write: a sound one, with members changed, added or forged."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.battery.hostile_files import Call
from tests.battery.hostile_folders import CANARY

MANIFEST = "manifest.json"
CRATE = "ro-crate-metadata.json"


def members(path: Path) -> dict[str, bytes]:
    """The content of a bundle by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def described(content: dict[str, bytes]) -> dict[str, bytes]:
    """The members with a crate that has their sums."""
    crate = json.loads(content[CRATE])
    for entity in crate["@graph"]:
        data = content.get(entity["@id"])
        if "sha256" in entity and data is not None:
            entity |= {"sha256": hashlib.sha256(data).hexdigest(), "contentSize": str(len(data))}
    return {**content, CRATE: json.dumps(crate).encode()}


def sealed(content: dict[str, bytes]) -> dict[str, bytes]:
    """The members with a manifest that has their sums."""
    manifest = json.loads(content[MANIFEST])
    others = {name: data for name, data in content.items() if name != MANIFEST}
    manifest["members"] = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in others.items()
    }
    return {MANIFEST: json.dumps(manifest).encode(), **others}


def written(content: dict[str, bytes]) -> bytes:
    """A ZIP file as `blockyard bundle` writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in content.items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def config_of(content: dict[str, bytes]) -> str:
    """The name of the first config."""
    return next(name for name in content if name.endswith("config.yaml"))


def run_of(content: dict[str, bytes]) -> str:
    """The folder of the first run."""
    return config_of(content).removesuffix("config.yaml")


Forged = Callable[[dict[str, bytes]], bytes]


def _with(name: str, data: bytes = b"x", mode: int = 0o100644, method: int = zipfile.ZIP_DEFLATED) -> Forged:
    """A bundle with one more member, which the manifest lists."""

    def forge(content: dict[str, bytes]) -> bytes:
        sound = sealed({**content, name: data})
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for each, own in sound.items():
                info = zipfile.ZipInfo("placeholder" if each == name else each)
                info.filename = each  # zipfile would change a backslash or a zero byte
                info.create_system, info.external_attr = 3, (mode if each == name else 0o100644) << 16
                archive.writestr(info, own, method if each == name else zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    return forge


def _twice(change: Callable[[str], str]) -> Forged:
    def forge(content: dict[str, bytes]) -> bytes:
        buffer, name = io.BytesIO(), config_of(content)
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w") as archive:
            for each, own in content.items():
                archive.writestr(each, own)
            archive.writestr(change(name), content[name])
        return buffer.getvalue()

    return forge


def _patched(old: Callable[[bytes], int], format_: str, value: int) -> Forged:
    """A sound bundle with one number of its list of members replaced."""

    def forge(content: dict[str, bytes]) -> bytes:
        data = bytearray(written(sealed(content)))
        struct.pack_into(format_, data, old(bytes(data)), value)
        return bytes(data)

    return forge


def _last_entry(data: bytes) -> int:
    """Where the last member of the list begins."""
    return data.rindex(b"PK\x01\x02")


def _over(content: dict[str, bytes]) -> bytes:
    """Two entries of the list that share the bytes of one member."""
    data = bytearray(written(sealed(content)))
    first = data.index(b"PK\x01\x02")
    struct.pack_into("<I", data, _last_entry(bytes(data)) + 42, struct.unpack_from("<I", data, first + 42)[0])
    return bytes(data)


def _changed(change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Forged:
    return lambda content: written(sealed({**content, **change(content)}))


def _config(old: str, new: str) -> Forged:
    def change(content: dict[str, bytes]) -> dict[str, bytes]:
        text = content[config_of(content)].decode()
        assert old in text, old
        return {config_of(content): text.replace(old, new, 1).encode()}

    return _changed(change)


def _pickled(content: dict[str, bytes]) -> dict[str, bytes]:
    buffer = io.BytesIO()
    np.savez(buffer, sample=np.array([Call()], dtype=object), meta=np.array('{"kind": "classes"}'))
    return {f"{run_of(content)}predictions-test.npz": buffer.getvalue()}


def _plan(old: str, new: str) -> Forged:
    def change(content: dict[str, bytes]) -> dict[str, bytes]:
        name = next(name for name in content if name.endswith("plan.json"))
        text = content[name].decode()
        return {name: text.replace(old or config_of(content).split("/")[1], new).encode()}

    return _changed(change)


def _manifest(**values: object) -> Forged:
    def forge(content: dict[str, bytes]) -> bytes:
        sound = sealed(content)
        sound[MANIFEST] = json.dumps(json.loads(sound[MANIFEST]) | values).encode()
        return written(sound)

    return forge


def _raw_manifest(data: bytes) -> Forged:
    return lambda content: written({**content, MANIFEST: data})


RUN = "outputs/evil-0123456789/s0"
YAML_CALL = f"!!python/object/apply:os.system ['touch {CANARY}']"


def _end_of_list(offset: int) -> Forged:
    """A bundle whose end record has another number of members."""
    return _patched(lambda data: data.rindex(b"PK\x05\x06") + offset, "<H", 65_535)


def _record(data: bytes) -> Forged:
    return _changed(lambda content: {f"{run_of(content)}run.json": data})


# What is refused with exit code 2.
HOSTILE: dict[str, Forged] = {
    "parent": _with("../EXECUTED"),
    "deep parent": _with("outputs/../../EXECUTED"),
    "absolute": _with("/tmp/EXECUTED"),
    "backslash": _with("..\\EXECUTED"),
    "drive": _with("C:/EXECUTED"),
    "zero byte": _with(f"{RUN}/config.yaml\x00.py"),
    "no name": _with(""),
    "folder": _with(f"{RUN}/"),
    "hidden": _with("outputs/.evil/s0/config.yaml"),
    "dots": _with("outputs/../s0/config.yaml"),
    "newline": _with(f"{RUN}/config.yaml\n"),
    "a pickle": _with(f"{RUN}/best.ckpt", pickle.dumps(Call())),
    "code": _with("hydra_plugins/x.py", b"open('EXECUTED', 'w')"),
    "a project file": _with("blockyard.yaml", b"allow: [os]"),
    "a crate elsewhere": _with(f"{RUN}/{CRATE}", b"{}"),
    "a crate in capitals": _with(CRATE.upper(), b"{}"),
    "a page of a crate": _with("ro-crate-preview.html", b"<script>1</script>"),
    "crate of a list": _changed(lambda content: {CRATE: b"[]"}),
    "crate of brackets": _changed(lambda content: {CRATE: b"[" * 50_000}),
    "crate of texts": _changed(lambda content: {CRATE: b'{"@graph": ["x"]}'}),
    "link": _with(f"{RUN}/config.yaml", b"/etc/passwd", stat.S_IFLNK | 0o777),
    "pipe": _with(f"{RUN}/config.yaml", b"", stat.S_IFIFO | 0o644),
    "device": _with(f"{RUN}/config.yaml", b"", stat.S_IFCHR | 0o644),
    "another compression": _with(f"{RUN}/metrics.csv", b"x" * 1000, method=zipfile.ZIP_BZIP2),
    "bomb": _with(f"{RUN}/metrics.csv", bytes(5_000_000)),
    "twice": _twice(lambda name: name),
    "twice but for case": _twice(lambda name: name.replace("encoder", "ENCODER")),
    "over another": _over,
    "size too small": _patched(lambda data: _last_entry(data) + 24, "<I", 3),
    "size too large": _patched(lambda data: _last_entry(data) + 24, "<I", 900_000),
    "compressed size": _patched(lambda data: _last_entry(data) + 20, "<I", 10**9),
    "encrypted": _patched(lambda data: _last_entry(data) + 8, "<H", 1),
    "size behind": _patched(lambda data: _last_entry(data) + 8, "<H", 8),
    "another version": _patched(lambda data: _last_entry(data) + 6, "<H", 99),
    "bytes before": lambda content: b"#!/bin/sh\ntouch EXECUTED\n" + written(sealed(content)),
    "bytes behind": lambda content: written(sealed(content)) + b"x" * 100,
    "members at its end": _end_of_list(10),
    "members on its disk": _end_of_list(8),
    "another disk": _end_of_list(4),
    "cut": lambda content: written(sealed(content))[:-30],
    "half": lambda content: written(sealed(content))[: len(written(sealed(content))) // 2],
    "empty": lambda content: b"",
    "text": lambda content: b"hello\n",
    "no members": lambda content: written({}),
    "no manifest": lambda content: written({name: data for name, data in content.items() if name != MANIFEST}),
    "manifest of text": _raw_manifest(b"hello"),
    "deep manifest": _raw_manifest(b"[" * 100_000),
    "manifest of a list": _raw_manifest(b"[]"),
    "manifest of another format": _manifest(format=2),
    "manifest without members": _manifest(members={}),
    "manifest of numbers": _manifest(members=3),
    "manifest of another kind": _manifest(kind="run"),
    "manifest of another name": _manifest(name="../x"),
    "a wrong sum": lambda content: written(
        {**sealed(content), config_of(content): content[config_of(content)].replace(b"seed: 0", b"seed: 1")}
    ),
    "one member less": lambda content: written(
        {name: data for name, data in sealed(content).items() if name != config_of(content)}
    ),
    "one member more": lambda content: written({**sealed(content), f"{RUN}/config.yaml": b"seed: 0\n"}),
    "yaml tag": _config("\nseed: 0", f"\nseed: {YAML_CALL}"),
    "yaml alias": _config("\nseed: 0", "\na: &a [x]\nb: *a\nseed: 0"),
    "yaml twice": _config("\nseed: 0", "\nseed: 0\nseed: 1"),
    "target of os": _config("blockyard.model.encoder.Encoder", "os.system"),
    "target of a package": _config("blockyard.model.encoder.Encoder", "evilpackage.Evil"),
    "target that is no text": _config("blockyard.model.encoder.Encoder", "3"),
    "target in a list": _config("\nseed: 0", "\nextra: [{x: {_target_: subprocess.Popen, args: x}}]\nseed: 0"),
    "allowed by itself": _config("allow: []", "allow: [evilpackage]"),
    "allows a text": _config("allow: []", "allow: os"),
    "allows a mapping": _config("allow: []", "allow: {os: 1}"),
    "run.json of a list": _record(b"[1]"),
    "run.json of null": _record(b"null"),
    "run.json without content": _record(b""),
    "run.json of NaN": _record(b"NaN"),
    "run.json of brackets": _record(b"[" * 50_000),
    "run.json of bytes": _record(bytes(range(256))),
    "predictions with a pickle": _changed(_pickled),
    "predictions of text": _changed(lambda content: {f"{run_of(content)}predictions-test.npz": b"hello"}),
    "a run elsewhere": _plan("", "../../../etc"),
    "an absolute run": _plan("", "/etc"),
    "plan of a list": _changed(lambda content: {next(name for name in content if name.endswith("plan.json")): b"[]"}),
    "comparison of a list": _changed(
        lambda content: {next(name for name in content if name.endswith("comparison.json")): b"[]"}
    ),
    "comparison of texts": _changed(
        lambda content: {
            next(name for name in content if name.endswith("comparison.json")): (
                b'{"arms": "x", "answer": 3, "metric": [], "cells": {"a": 1}}'
            )
        }
    ),
}
