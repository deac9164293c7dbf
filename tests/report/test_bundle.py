"""`blockyard bundle` and `blockyard verify-bundle`: the same bytes, recomputed verdicts, and strangers' files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockyard.atomic_files import read_json, read_yaml, write_json
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.report.bundle import archive, crate, rerun, verify
from blockyard.report.bundle.scrubbing import scrubbed
from blockyard.report.comparison import compare
from blockyard.report.page import write as write_page
from blockyard.runs.predictions_file import SamplePredictions, write_predictions
from blockyard.sweep.plan.history import store_plan
from blockyard.sweep.plan.sweep_plan import ConfirmsFacts, SweepPlan
from tests.battery.hostile_folders import CANARY
from tests.report.bundle_files import CRATE, HOSTILE, Forged, config_of, described, members, run_of, sealed, written
from tests.report.report_runs import NORMS, run, sweep

VALUES: dict[str, dict[int, float | str]] = {
    "post": {0: 0.90, 1: 0.91, 2: 0.905},
    "pre": {0: 0.93, 1: 0.95, 2: 0.94, 3: "failed"},
}
SAMPLES = 200


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compared sweep of six finished runs with predictions."""
    folder = tmp_path_factory.mktemp("bundle")
    plan = sweep(folder / "outputs", NORMS, VALUES, question={"expect": "pre > post"}, name="norms")
    for cell in plan.cells:
        path = plan.path(cell)
        if (path / "summary.json").exists():
            summary = read_json(path / "summary.json")
            right = np.arange(SAMPLES) < round(summary["metrics"]["test/accuracy"] * SAMPLES)
            loss = np.full(SAMPLES, summary["metrics"]["test/loss"], np.float32)
            arrays = {
                "sample": np.arange(SAMPLES, dtype=np.int32),
                "target": np.zeros(SAMPLES, np.int32),
                "loss": loss,
                "top": np.stack([~right, right], axis=1).astype(np.int32),
                "probability": np.full((SAMPLES, 2), 0.5, np.float32),
            }
            kept = SamplePredictions("classes", arrays, {"of": SAMPLES, "classes": 2})
            write_predictions(path / "predictions-test.npz", kept)
    document = compare(plan, changes=False).as_dict()
    write_json(plan.folder / "comparison.json", document)
    write_page(document, plan.folder / "report.html")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working folder."""
    copy = Path(shutil.copytree(saved, tmp_path / "work"))
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture(scope="module")
def sound(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The members of its bundle."""
    out = tmp_path_factory.mktemp("sound") / "x.zip"
    assert main(["bundle", str(saved / "outputs/sweeps/norms"), f"out={out}"]) == 0
    return members(out)


def typed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert main(list(arguments)) == code, capsys.readouterr()
    captured = capsys.readouterr()
    return captured.err if code == 2 else captured.out


def test_a_bundle_holds_plan_configs_metrics_predictions_versions_and_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "7 of 7 cells" in typed(capsys, "bundle", "norms", "out=x.zip")
    content = members(folder / "x.zip")
    assert {"outputs/sweeps/norms/plan.json", "outputs/sweeps/norms/report.html"} <= content.keys()
    names = {name.rpartition("/")[2] for name in content if name.startswith(run_of(content))}
    assert names >= {"config.yaml", "run.json", "status.json", "summary.json", "metrics.csv", "predictions-test.npz"}
    assert not any("ckpt" in name or "safetensors" in name for name in content)
    manifest = json.loads(content.pop("manifest.json"))
    assert manifest["format"] == archive.FORMAT
    assert manifest["versions"]
    sums = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in content.items()}
    assert manifest["members"] == sums


def test_a_bundle_says_how_its_question_was_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = SweepPlan.load(folder / "outputs/sweeps/norms")
    confirms: ConfirmsFacts = {"sweep": "first", "verdict": "contradicted", "seeds": [7]}
    changed = replace(plan, question={**plan.question, "margin": 0.001}, facts={**plan.facts, "confirms": confirms})
    plan = store_plan(changed).plan
    answer = compare(plan, changes=False)
    write_json(plan.folder / "comparison.json", answer.as_dict())
    write_page(answer.as_dict(), plan.folder / "report.html")
    assert typed(capsys, "bundle", "norms", "out=x.zip")
    content = members(folder / "x.zip")
    sentences = (
        "Does not confirm: first is contradicted on seed 7, and supported on fresh seeds 0 to 3.",
        "Asked for the 2nd time: `margin` was changed after 6 of its cells had finished.",
    )
    for sentence in sentences:
        assert sentence in json.loads(content["outputs/sweeps/norms/comparison.json"])["answer"]
        assert sentence in content["outputs/sweeps/norms/report.html"].decode()
    assert "answer: computed" not in typed(capsys, "verify-bundle", "x.zip")


@pytest.mark.full
def test_the_same_sweep_gives_the_same_bytes_wherever_it_lies(
    saved: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "bundle", "norms", "out=x.zip")
    first = (folder / "x.zip").read_bytes()
    os.utime(next(folder.glob("outputs/*/s0/metrics.csv")), (1, 1))
    typed(capsys, "bundle", "outputs/sweeps/norms", "out=x.zip")
    assert (folder / "x.zip").read_bytes() == first
    typed(capsys, "bundle", str(saved / "outputs/sweeps/norms"), "out=elsewhere.zip")
    assert (folder / "elsewhere.zip").read_bytes() == first


def test_no_path_name_or_account_of_the_machine_is_in_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(folder.glob("outputs/*/s0/run.json"))
    here = str(folder)
    facts = {
        "folder": here,
        "command": ["blockyard", f"data.path={here}/My Files/mails.csv", "--config-dir", f"{here}/conf"],
        "host": {"name": "workstation-7", "cpu": "x"},
        "wandb": {"id": "ab", "entity": "a-person"},
        "mlflow": {"id": "0badcafe", "project": "of-a-person"},
        "start": {"by": {"pid": 12345, "host": "workstation-7"}},
    }
    write_json(path, read_json(path) | facts, checked=True)
    plan = read_json(folder / "outputs/sweeps/norms/plan.json")
    plan["facts"] = {**plan["facts"], "file": f"{here}/norms.yaml", "folder": here}
    plan["facts"]["notes"] = [f"cannot read {here}/a/b.csv: x", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345"]
    write_json(folder / "outputs/sweeps/norms/plan.json", plan)
    typed(capsys, "bundle", "norms", "out=x.zip")
    for name, data in members(folder / "x.zip").items():
        for private in (here, str(folder.parent), "workstation-7", "a-person", "12345", "hf_abcdefgh", "My Files"):
            assert private.encode() not in data, (name, private)
    assert "verdicts, means and metrics are as recorded" in typed(capsys, "verify-bundle", "x.zip")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/My Data/x.csv", "<path>/x.csv"),
        ("~/x.csv", "<path>/x.csv"),
        ("data.path=/home/me/x.csv", "data.path=<path>/x.csv"),
        ("cannot read /a/b/c.txt: gone", "cannot read <path>/c.txt: gone"),
        ("test/loss and a/b", "test/loss and a/b"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("/", "/"),
        ("tokens / second", "tokens / second"),
        ("data:image/png;base64,+/ab/cd/ef", "data:image/png;base64,+/ab/cd/ef"),
    ],
)
def test_paths_keep_their_last_part(text: str, expected: str) -> None:
    assert scrubbed({"x": [text]}) == {"x": [expected]}


def test_the_reason_why_samples_are_not_shown_names_no_path() -> None:
    shown = scrubbed({"samples": {"note": "no file /home/me/x.csv", "views": ["a/b /c/d"]}})
    assert shown == {"samples": {"note": "no file <path>/x.csv", "views": ["a/b /c/d"]}}


def test_a_config_with_a_path_is_not_called_edited(tmp_path: Path) -> None:
    """Its name has the hash of the path, which the bundle does not hold."""
    run = tmp_path / "x-0123456789" / "s0"
    run.mkdir(parents=True)
    notes: list[str] = []
    for text, problems in (("seed: 0\ndata: {path: <path>/x.csv}\n", 0), ("seed: 0\ndata: {path: null}\n", 1)):
        (run / "config.yaml").write_text(text)
        record: Any = SimpleNamespace(path=run, run="x-0123456789/s0", seed=0)
        assert len(list(verify._configs([record], notes))) == problems
    assert "paths, whose hash is not computed" in notes[0]


def test_verifying_prints_the_verdicts_that_it_computes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed(capsys, "bundle", "norms", "out=x.zip")
    text = typed(capsys, "verify-bundle", "x.zip")
    assert re.search(r"^pre +3 +0.94 +better$", text, re.MULTILINE), text
    assert "expected: pre > post: supported" in text
    assert "test/accuracy is the mean over the predictions of 6 runs" in text
    assert "test/loss is the mean over the predictions of 6 runs" in text


def test_one_run_is_a_bundle_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(folder.glob("outputs/*/s1"))
    text = typed(capsys, "bundle", f"{path.parent.name}/s1", "out=r.zip")
    assert "one run" in text
    typed(capsys, "bundle", str(path), "out=again.zip")
    assert (folder / "r.zip").read_bytes() == (folder / "again.zip").read_bytes()
    assert "are as recorded" in typed(capsys, "verify-bundle", "r.zip")


def _comparison(change: Callable[[dict], None]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:  # type: ignore[type-arg]
    def forge(content: dict[str, bytes]) -> dict[str, bytes]:
        name = next(name for name in content if name.endswith("comparison.json"))
        document = json.loads(content[name])
        change(document)
        return {name: json.dumps(document).encode()}

    return forge


def _metrics(content: dict[str, bytes]) -> dict[str, bytes]:
    """The worst run of an arm, better than it was."""
    name = f"{run_of(content)}summary.json"
    summary = json.loads(content[name])
    summary.pop("checksum", None)
    summary["metrics"]["test/accuracy"] = 0.99
    return {name: json.dumps(summary).encode()}


def _edited(content: dict[str, bytes]) -> dict[str, bytes]:
    name = config_of(content)
    return {name: re.sub(rb"depth: \d+", b"depth: 7", content[name])}


FORGED: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "a verdict": (_comparison(lambda d: d["arms"][1].update(verdict="worse")), "arm pre, verdict: computed 'better'"),
    "a mean": (_comparison(lambda d: d["arms"][1].update(mean=0.95)), "arm pre, mean: computed 0.94, recorded 0.95"),
    "an answer": (_comparison(lambda d: d.update(answer="yes")), "answer: computed"),
    "an expectation": (_comparison(lambda d: d["expect"].update(verdict="contradicted")), "expect, verdict"),
    "an arm left out": (_comparison(lambda d: d["arms"].pop()), "the arms are post, pre, recorded post"),
    "a failed cell left out": (_comparison(lambda d: d["cells"].pop()), "the cells are"),
    "a failure that was none": (_comparison(lambda d: d["cells"][-1].update(state="done")), "recorded 'done'"),
    "metrics of a run": (_metrics, "test/accuracy, 0.99"),
    "a config": (_edited, "the identity of its config.yaml is"),
    "a page": (lambda c: {n: b"<html>better!</html>" for n in c if n.endswith("report.html")}, "report.html does not"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_was_changed_after_the_sweep_is_named(
    name: str, sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = FORGED[name]
    (tmp_path / "x.zip").write_bytes(written(sealed({**sound, **change(sound)})))
    assert expected in typed(capsys, "verify-bundle", str(tmp_path / "x.zip"), code=1)


def test_the_library_of_ro_crates_reads_a_bundle(sound: dict[str, bytes], tmp_path: Path) -> None:
    from rocrate.rocrate import ROCrate

    (tmp_path / "x.zip").write_bytes(written(sound))
    loaded = ROCrate(tmp_path / "x.zip")
    assert loaded.version == "1.1"
    root = loaded.root_dataset
    assert (root["name"], root.type) == ("blockyard sweep norms", "Dataset")
    assert "No licence is stated" in root["license"]
    recorded = json.loads(sound["outputs/sweeps/norms/comparison.json"])
    assert root["datePublished"] == recorded["provenance"]["time"]

    files = {entity.id: entity for entity in loaded.data_entities}
    assert files.keys() == sound.keys() - {CRATE}
    for name, data in sound.items():
        if name not in (CRATE, "manifest.json"):
            assert files[name]["sha256"] == hashlib.sha256(data).hexdigest()
            assert files[name]["contentSize"] == str(len(data))
            assert "/" in files[name]["encodingFormat"]
            assert Path(files[name].source).read_bytes() == data

    actions = loaded.get_by_type("CreateAction")
    assert len(actions) == 7
    assert root["mentions"] == actions
    outcomes = [action["actionStatus"].rpartition("/")[2] for action in actions]
    assert sorted(outcomes) == ["CompletedActionStatus"] * 6 + ["FailedActionStatus"]
    for action in actions:
        folder = f"outputs/{action.id.removeprefix('#')}/"
        assert {entity.id for entity in action["result"]} == {name for name in sound if name.startswith(folder)}
        assert (action["instrument"].type, action["instrument"]["name"]) == ("SoftwareApplication", "blockyard")
        assert action["instrument"]["version"] == json.loads(sound[f"{folder}run.json"])["versions"]["blockyard"]


def test_a_crate_is_flat_and_has_all_that_the_specification_requires(sound: dict[str, bytes]) -> None:
    """RO-Crate 1.1: Root Data Entity, Data Entities, and the appendix on JSON-LD."""
    graph = {entity["@id"]: entity for entity in json.loads(sound[CRATE])["@graph"]}
    assert graph[CRATE] == {
        "@id": CRATE,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
    }
    assert graph["./"].keys() >= {"@type", "name", "description", "datePublished", "license", "hasPart"}
    for entity in graph.values():
        assert {"@id", "@type"} <= entity.keys()
        for value in entity.values():
            assert not isinstance(value, list) or len(value) > 1, "a list of one is compacted"
            for reference in value if isinstance(value, list) else [value]:
                if isinstance(reference, dict):
                    assert reference.keys() == {"@id"}
                    assert reference["@id"] in graph or reference["@id"].startswith("http")


def test_every_member_of_a_bundle_has_a_media_type() -> None:
    names = {archive.MANIFEST, *archive.SWEEP_MEMBERS, *archive.RUN_MEMBERS}
    assert {Path(name).suffix for name in names} == crate.MEDIA_TYPES.keys()


@pytest.mark.parametrize("time", [None, "", "yesterday", 3, ["2026-01-01"]])
def test_a_crate_has_no_date_that_is_not_recorded(time: Any) -> None:
    graph = json.loads(crate.crate_metadata("run x", time, [], {}))["@graph"]
    assert "datePublished" not in graph[1]


def _crate(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def forge(content: dict[str, bytes]) -> dict[str, bytes]:
        document = json.loads(content[CRATE])
        change(document["@graph"])
        return {CRATE: json.dumps(document).encode()}

    return forge


FORGED_CRATES: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "a sum": (lambda graph: graph[2].update(sha256="0" * 64), "outputs/"),
    "a size": (lambda graph: graph[2].update(contentSize="1"), "outputs/"),
    "a file left out": (lambda graph: graph.pop(2), "outputs/"),
    "a file twice": (lambda graph: graph.append({**graph[2], "sha256": "0" * 64}), "outputs/"),
    "a file of the web": (lambda graph: graph.append({"@id": "http://x.org/y", "@type": ["File"]}), "http://x.org/y"),
    "the manifest": (lambda graph: [e.update(sha256="0") for e in graph if e["@id"] == "manifest.json"], "manifest"),
}


@pytest.mark.parametrize("name", FORGED_CRATES)
def test_a_crate_that_describes_other_files_is_named(
    name: str, sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, place = FORGED_CRATES[name]
    (tmp_path / "x.zip").write_bytes(written(sealed({**sound, **_crate(change)(sound)})))
    text = typed(capsys, "verify-bundle", str(tmp_path / "x.zip"), code=1)
    assert f"ro-crate-metadata.json describes '{place}" in text
    assert text.count("otherwise than manifest.json") == 1


def test_a_crate_of_other_bytes_than_its_sum_is_refused(
    sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = {**sound, CRATE: sound[CRATE].replace(b"norms", b"forms")}
    (tmp_path / "x.zip").write_bytes(written(forged))
    message = typed(capsys, "verify-bundle", str(tmp_path / "x.zip"), code=2)
    assert "the SHA-256 of ro-crate-metadata.json" in message


def test_a_bundle_of_an_older_version_has_no_crate(
    sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = {name: data for name, data in sound.items() if name != CRATE}
    (tmp_path / "x.zip").write_bytes(written(sealed(older)))
    assert "are as recorded" in typed(capsys, "verify-bundle", str(tmp_path / "x.zip"))


def test_a_page_with_other_scripts_is_noted(
    sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {n: c.replace(b"</body>", b"<script>1</script></body>") for n, c in sound.items() if n.endswith(".html")}
    (tmp_path / "x.zip").write_bytes(written(sealed(described({**sound, **pages}))))
    assert "scripts run where it is opened" in typed(capsys, "verify-bundle", str(tmp_path / "x.zip"))


def test_a_page_of_tags_that_never_end_is_read_once(
    sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = b'<script type="application/json"' * 3_000
    pages = {name: tags for name in sound if name.endswith(".html")}
    (tmp_path / "x.zip").write_bytes(written(sealed({**sound, **pages})))
    text = typed(capsys, "verify-bundle", str(tmp_path / "x.zip"), code=1)
    assert "report.html does not show the recorded comparison" in text


# Why some of them are refused: what is found later in the same file may refuse it too.
REASONS = {
    "parent": "it is not a file of a run or a sweep",
    "a pickle": "it is not a file of a run or a sweep",
    "a crate elsewhere": "it is not a file of a run or a sweep",
    "a crate in capitals": "it is not a file of a run or a sweep",
    "crate of a list": "ro-crate-metadata.json has no @graph",
    "crate of texts": "an entity that is not a mapping",
    "link": "a link",
    "pipe": "a link, or no regular file",
    "bomb": "times its bytes",
    "twice": "there twice",
    "twice but for case": "there twice",
    "over another": "lies over another member",
    "another compression": "another method than deflate",
    "encrypted": "encrypted",
    "size too large": "would unpack to 900,000",
    "bytes before": "bytes of none",
    "bytes behind": "bytes behind",
    "a wrong sum": "SHA-256",
    "one member more": "its manifest.json lacks",
    "yaml tag": "tags are not allowed",
    "target of os": "of no trusted library",
    "target in a list": "of no trusted library",
    "allowed by itself": "if you trust it, add allow=[evilpackage]",
    "members at its end": "its end names 65,535 members",
    "allows a text": "has allow: 'os', which is not a list",
    "allows a mapping": "which is not a list",
    "run.json of a list": "run.json is damaged (not a mapping)",
    "run.json of NaN": "run.json is damaged",
    "predictions with a pickle": "Object arrays cannot be loaded",
    "a run elsewhere": "which is not a folder of a bundle",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_could_do_harm_is_refused_in_one_message(
    name: str,
    sound: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forge: Forged = HOSTILE[name]
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("x.zip").write_bytes(forge(sound))
    message = typed(capsys, "verify-bundle", "x.zip", "--rerun", "1", code=2)
    assert message.startswith("blockyard: x.zip ")
    assert REASONS.get(name, "") in message
    assert message.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["work", "x.zip"]
    assert not Path("/tmp", CANARY).exists()


def test_limits_of_members_and_bytes(
    sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.zip").write_bytes(written(sealed(sound)))
    for limit, value in {"MAX_MEMBERS": 5, "MAX_TOTAL": 1000, "MAX_MEMBER": 1000, "MAX_FILE": 1000}.items():
        with monkeypatch.context() as patch:
            patch.setattr(archive, limit, value)
            assert "is not read" in typed(capsys, "verify-bundle", str(tmp_path / "x.zip"), code=2)


def test_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    for path in (tmp_path, tmp_path / "pipe.zip", tmp_path / "none.zip", Path("/dev/zero")):
        typed(capsys, "verify-bundle", str(path), code=2)


def test_bytes_changed_anywhere_are_never_taken_for_the_recorded_ones(
    sound: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, draw = written(sealed(sound)), random.Random(3)
    for _ in range(25):
        damaged = bytearray(data)
        place = draw.randrange(len(damaged))
        damaged[place] ^= 1 << draw.randrange(8)
        (tmp_path / "x.zip").write_bytes(damaged)
        code = main(["verify-bundle", str(tmp_path / "x.zip")])
        captured = capsys.readouterr()
        # Times and attributes of members say nothing, so a bit of them may differ.
        assert code == 2 or _members(damaged) == _members(data), place
        assert "Traceback" not in captured.err


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bundle"], "bundle takes one sweep or run"),
        (["bundle", "norms"], "bundle needs out=FILE.zip"),
        (["bundle", "norms", "out=x.tar"], "expected a file .zip"),
        (["bundle", "norms", "out=x.zip", "weights=maybe"], "weights=maybe"),
        (["bundle", "norms", "out=x.zip", "weihgts=true"], "did you mean weights"),
        (["bundle", "nothing", "out=x.zip"], "nothing: no such path"),
        (["bundle", "outputs", "out=x.zip"], "a bundle holds one of them"),
        (["bundle", "norms", "out=x.zip", "weights=true"], "has no best.ckpt"),
        (["verify-bundle"], "takes one file"),
        (["verify-bundle", "x.zip", "y.zip"], "takes one file"),
        (["verify-bundle", "none.zip"], "no such file"),
        (["verify-bundle", "none.zip", "--rerun", "0"], "--rerun"),
        (["verify-bundle", "none.zip", "data.root=x"], "has an effect with --rerun only"),
        (["verify-bundle", "none.zip", "--rerum", "1"], "did you mean --rerun"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in typed(capsys, *arguments, code=2)
    assert not (folder / "x.zip").exists()


def test_an_answer_that_is_missing_or_out_of_date_is_not_bundled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "outputs/sweeps/norms/comparison.json"
    write_json(path, read_json(path) | {"stale": "Outdated: x"})
    assert "out of date" in typed(capsys, "bundle", "norms", "out=x.zip", code=2)
    path.unlink()
    assert "has no comparison.json" in typed(capsys, "bundle", "norms", "out=x.zip", code=2)


def test_data_that_is_elsewhere_is_asked_for_before_a_rerun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = run(tmp_path / "outputs")
    text = (path / "config.yaml").read_text()
    assert read_yaml(path / "config.yaml")["data"]["_target_"].startswith("blockyard.data.")
    (path / "config.yaml").write_text(re.sub(r"(\ndata:\n)", rf"\1  root: {tmp_path}/my data/x\n", text))
    assert "data.root" in typed(capsys, "bundle", str(path), "out=x.zip")
    message = typed(capsys, "verify-bundle", "x.zip", "--rerun", "1", code=2)
    assert "data.root=PATH" in message


MEMBERS = ("config.yaml", "run.json", "status.json", "summary.json", "metrics.csv", "predictions-test.npz")


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_that_lies_elsewhere_is_not_bundled(
    folder: Path, capsys: pytest.CaptureFixture[str], link: Callable[[Path, Path], None]
) -> None:
    run_folder = next(folder.glob("outputs/*/s0"))
    paths = [run_folder / name for name in (*MEMBERS, "written-test.jsonl", "extrapolation-test.json")]
    paths += [folder / "outputs/sweeps/norms" / name for name in ("plan.json", "comparison.json")]
    for path in paths:
        elsewhere = folder / "private" / path.name
        elsewhere.parent.mkdir(exist_ok=True)
        if path.exists():
            path.rename(elsewhere)
        else:
            elsewhere.write_text("{}\n")
        link(elsewhere, path)
        message = typed(capsys, "bundle", "norms", "out=x.zip", code=2)
        assert f"{path.name} is not copied: it " in message
        assert not (folder / "x.zip").exists()
        path.unlink()
        if path.name not in ("written-test.jsonl", "extrapolation-test.json"):
            elsewhere.rename(path)
    typed(capsys, "bundle", "norms", "out=x.zip")


@pytest.mark.parametrize(
    "text",
    [
        *("..", "../x", "x/../../y", "~", "~root", "~/x", "/", "/etc", " ..", " ~ ", "hf:..", "timm:/etc", "hf:~"),
        *("file:///etc", "FILE:/etc", "local:///etc", "simplecache::file:///etc", "\0/x"),
    ],
)
@pytest.mark.parametrize("key", ["data", "init", "objective"])
def test_a_path_that_leaves_the_folder_of_a_rerun_is_refused(
    text: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerun, "trusted_config", _not_opened)
    recorded: Any = SimpleNamespace(config={key: {"a": ["b", {"c": text}]}}, name="x/s0", moved={})
    with pytest.raises(UserError, match=rf"x/s0: {key}\.a\.c=.* leads out of the folder"):
        rerun.rerun(recorded, tmp_path)


def _not_opened(*_: Any, **__: Any) -> None:
    raise AssertionError("a config with such a path was opened")


def test_what_a_config_names_is_opened_in_the_folder_of_a_rerun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise UserError(os.getcwd())

    monkeypatch.setattr(rerun, "trusted_config", opened)
    data = {"path": "shards/a..b/{0..9}.tar", "decimal": ".", "metric": "val/loss", "root": "/data"}
    recorded: Any = SimpleNamespace(
        config={"data": data}, name="x/s0", moved={}, facts=dict, with_data=lambda paths: located
    )
    located: Any = SimpleNamespace(config=recorded.config, name="x/s0", moved={"root": "/data"})
    before = Path.cwd()
    with pytest.raises(UserError, match=f"^{tmp_path}$"):
        rerun.rerun(recorded, tmp_path, moved={"root": "/data"})
    assert Path.cwd() == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps with its checkpoint, of this version."""
    folder = tmp_path_factory.mktemp("trained")
    command = "train experiment=vit_digits debug=fast logger=none callbacks=quiet trainer=cpu trainer.max_steps=3"
    sizes = "model.depth=1 model.dim=8 model.heads=2 trainer.threads=1 trainer.limit_val=1"
    assert main([*command.split(), *sizes.split(), f"outputs={folder}/outputs"]) == 0
    return next(folder.glob("outputs/*/s0"))


@pytest.mark.full
def test_a_repeated_run_has_the_same_bits_and_its_weights_load(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.zip"
    typed(capsys, "bundle", str(trained), f"out={out}", "weights=true")
    text = typed(capsys, "verify-bundle", str(out), "--rerun", "1")
    assert "repeated: every bit the same (4 metrics, 3 steps, 359 predictions)" in text
    assert Path.cwd() != tmp_path
    with zipfile.ZipFile(out) as bundle:
        bundle.extractall(tmp_path / "unpacked")
    import torch

    from blockyard.runs.load import load

    weights = [load(path).model.state_dict() for path in (trained, next(tmp_path.glob("unpacked/outputs/*/s0")))]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=0)


def test_a_metric_with_another_bit_and_what_differs_around_it_are_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "bundle", str(trained), f"out={tmp_path / 'x.zip'}")
    content = members(tmp_path / "x.zip")
    base = run_of(content)
    summary = json.loads(content[f"{base}summary.json"])
    summary.pop("checksum")
    loss = summary["metrics"]["val/loss"] = float(np.nextafter(summary["metrics"]["val/loss"], 9))
    facts = json.loads(content[f"{base}run.json"])
    facts.pop("checksum")
    facts["versions"]["torch"], facts["host"]["cpu"] = "1.0.0", "Z80"
    forged = {f"{base}summary.json": json.dumps(summary).encode(), f"{base}run.json": json.dumps(facts).encode()}
    (tmp_path / "x.zip").write_bytes(written(sealed({**content, **forged})))
    text = typed(capsys, "verify-bundle", str(tmp_path / "x.zip"), "--rerun", "1", code=1)
    assert f"val/loss: {loss!r}, repeated" in text
    assert "torch 1.0.0, here" in text
    assert "CPU Z80, here" in text
