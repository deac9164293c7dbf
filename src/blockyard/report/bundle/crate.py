"""The description of a bundle for tools that read RO-Crates: ro-crate-metadata.json, JSON-LD.

    ro-crate-metadata.json ── about ──> ./ ── hasPart ───> every file: size, SHA-256, media type
                                        └──── mentions ──> an action for each run: times, status
                                                           ├─ result ──────> the files of the run
                                                           └─ instrument ──> blockyard, with its version

Reference: RO-Crate 1.1, https://w3id.org/ro/crate/1.1 (Root Data Entity, Data Entities, Provenance of entities)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from blockyard.errors import quoted
from blockyard.report.bundle.archive import CRATE, MANIFEST, ROOT
from blockyard.runs.folder import RunFolder

SPECIFICATION = "https://w3id.org/ro/crate/1.1"
# The context of 1.1 is built on schema.org 10, which has no sha256 yet.
_CONTEXT = [f"{SPECIFICATION}/context", {"sha256": "http://schema.org/sha256"}]
MEDIA_TYPES = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".npz": "application/zip",  # of .npy files
    ".safetensors": "application/octet-stream",
    ".yaml": "application/yaml",
}
_LICENCE = "No licence is stated in this bundle, so nobody but its author may say what is allowed."


def crate_metadata(title: str, time: Any, runs: Iterable[RunFolder], members: Mapping[str, tuple[str, int]]) -> bytes:
    """Return the content of ro-crate-metadata.json.

    title: "sweep NAME" or "run NAME"; time: of the comparison, ISO 8601, left out where it is anything else
    members: of the bundle, manifest and crate aside: name -> (SHA-256 in hex, bytes)
    """
    actions: list[dict[str, Any]] = []
    software: dict[str, dict[str, Any]] = {}
    for run in runs:
        application = _application(run)
        software[application["@id"]] = application
        results = [name for name in sorted(members) if name.startswith(f"{ROOT}/{run.name}/")]
        actions.append(_action(run, application["@id"], results))
    files = [_file(name, *members[name]) for name in sorted(members)]
    manifest = {"@id": MANIFEST, "@type": "File", "name": MANIFEST, "encodingFormat": _media_type(MANIFEST)}
    files.append(manifest)
    descriptor = {
        "@id": CRATE,
        "@type": "CreativeWork",
        "conformsTo": {"@id": SPECIFICATION},
        "about": {"@id": "./"},
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"blockyard {title}",
        "description": "Plan, configs, metrics, predictions and comparison of training runs of blockyard.",
        "license": _LICENCE,
        "hasPart": _references(files),
    }
    if (published := _iso_time(time)) is not None:
        root["datePublished"] = published
    if actions:
        root["mentions"] = _references(actions)
    graph = [descriptor, root, *files, *software.values(), *actions]
    content = {"@context": _CONTEXT, "@graph": graph}
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _file(name: str, digest: str, size: int) -> dict[str, Any]:
    # Names of members have no character that a URI would escape; a size is text in RO-Crate.
    return {
        "@id": name,
        "@type": "File",
        "name": PurePosixPath(name).name,
        "contentSize": str(size),
        "encodingFormat": _media_type(name),
        "sha256": digest,
    }


def _media_type(name: str) -> str:
    return MEDIA_TYPES[PurePosixPath(name).suffix]


def _application(run: RunFolder) -> dict[str, Any]:
    """Return the blockyard that a run records; one without a version where it records none."""
    application = {"@id": "#blockyard", "@type": "SoftwareApplication", "name": "blockyard"}
    version = (run.facts().get("versions") or {}).get("blockyard")
    if version is not None:
        application["@id"] = f"#blockyard-{quote(str(version), safe='+')}"
        application["version"] = str(version)
    return application


def _action(run: RunFolder, application: str, results: Sequence[str]) -> dict[str, Any]:
    status = run.status
    outcome = "CompletedActionStatus" if status.finished else "FailedActionStatus"
    action: dict[str, Any] = {
        "@id": f"#{run.name}",
        "@type": "CreateAction",
        "name": f"blockyard run {run.name}",
        "instrument": {"@id": application},
        "result": _references({"@id": name} for name in results),
        "actionStatus": {"@id": f"http://schema.org/{outcome}"},
    }
    for key, value in (("startTime", status.started), ("endTime", status.ended)):
        if (time := _iso_time(value)) is not None:
            action[key] = time
    return action


def _references(entities: Iterable[Mapping[str, Any]]) -> Any:
    """Return references to entities: a list, or the only one by itself, which is JSON-LD's compacted form."""
    references = [{"@id": entity["@id"]} for entity in entities]
    if len(references) == 1:
        return references[0]
    return references


def _iso_time(value: Any) -> str | None:
    """Return a time as it was recorded, or None where it is not ISO 8601."""
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return str(value)


def crate_differences(crate: Any, members: Mapping[str, tuple[str, int]]) -> Iterator[str]:
    """Yield a sentence for each file that a crate describes otherwise than the manifest's `members`.

    Raises ValueError for a crate without entities.
    """
    if not isinstance(crate, Mapping) or not isinstance(crate.get("@graph"), list):
        raise ValueError(f"{CRATE} has no @graph")
    expected: dict[str, list[Any]] = {MANIFEST: [(None, None)]}
    for name, (digest, size) in members.items():
        if name != CRATE:
            expected[name] = [(digest, str(size))]
    described: dict[str, list[Any]] = {}
    for entity in crate["@graph"]:
        if not isinstance(entity, Mapping):
            raise ValueError(f"{CRATE} has an entity that is not a mapping")
        types = entity.get("@type")
        if types == "File" or (isinstance(types, list) and "File" in types):
            facts = (entity.get("sha256"), entity.get("contentSize"))
            described.setdefault(str(entity.get("@id")), []).append(facts)
    for name in sorted(expected.keys() | described.keys()):
        if described.get(name) != expected.get(name):
            yield f"{CRATE} describes {quoted(name)} otherwise than {MANIFEST}"
