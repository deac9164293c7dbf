"""`blockyard schema`: every shipped file is valid, and what `check` refuses in a single file is not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from blockyard.cli import main
from blockyard.commands.schema import associations
from blockyard.config.choices import catalog
from blockyard.config.defaults import default_node
from blockyard.config.json_schema import GLOBAL, finished, group_schemas
from blockyard.sweep.spec import sweep_yaml
from blockyard.sweep.spec.keys import SweepFile, sweep_schema
from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("schema")  # which makes the schemas once


@cache
def validators() -> dict[str, Draft202012Validator]:
    schemas = {**group_schemas(), "sweep": sweep_schema()}
    sound: list[dict[str, Any]] = []  # schemas without their titles: those of GLOBAL, the largest, are one schema
    for schema in schemas.values():
        if (content := {**schema, "title": ""}) not in sound:
            Draft202012Validator.check_schema(schema)
            sound.append(content)
    return {name: Draft202012Validator(schema) for name, schema in schemas.items()}


def errors(group: str, content: Any) -> list[str]:
    return [error.message for error in validators()[group].iter_errors(content)]


@pytest.mark.parametrize("group", catalog.groups())
@pytest.mark.sampled(12)
def test_every_choice_is_valid(group: str) -> None:
    for name, choice in catalog.choices(group).items():
        assert errors(group, catalog.content(choice.path) or {}) == [], name
        if group not in (*GLOBAL, *catalog.OUTSIDE_RUN, "layers"):  # kinds of layers become nodes
            assert errors(group, default_node(group, name)) == [], f"{name} with every option"


def test_every_sweep_is_valid() -> None:
    paths = sorted((ROOT / "sweeps").glob("*.yaml"))
    assert len(paths) > 40
    assert [path.name for path in paths if errors("sweep", sweep_yaml.read(path))] == []


def test_every_key_of_a_sweep_has_a_schema() -> None:
    properties = sweep_schema()["properties"]
    assert properties.keys() == SweepFile.model_fields.keys()
    assert [name for name, schema in properties.items() if not schema["description"]] == []
    assert [key for key, each in properties.items() if {} in each.get("anyOf", ())] == []


NORM = "blockyard.norm.rms.RMS"
ADAMW = "blockyard.optimizer.adamw.AdamW"
SWEEP = {"claim": "x", "arms": {"a": ["norm=rms"]}}


@pytest.mark.parametrize(
    ("group", "content"),
    [
        ("norm", {"_target_": NORM, "epss": 1e-6}),
        ("norm", {"_target_": NORM, "eps": "small"}),
        ("norm", {"eps": 1e-6}),
        ("optimizer", {"_target_": ADAMW, "lr": -1.0}),
        ("optimizer", {"_target_": ADAMW, "betas": [0.9]}),
        ("model", {"_target_": "blockyard.model.encoder.Encoder", "depth": 2_000}),
        ("token_mixer", {"_target_": "blockyard.token_mixer.attention.Attention", "num_kv_heads": 0}),
        ("init", {"_target_": "blockyard.weights.init.Init", "lora": {"rankk": 4}}),
        ("experiment", {"init": {"lora": {"rank": -4}}}),
        ("callbacks", {"ema": {"_target_": "blockyard.engine.callbacks.ema.EMA", "decays": 1}}),
        ("experiment", {"optimizer": {"lrr": 1e-3}}),
        ("experiment", {"optimiser": {"lr": 1e-3}}),
        ("experiment", {"seed": -1}),
        ("preset", {"head": {"tied": "maybe"}}),
        ("sweep", {**SWEEP, "seed": 3}),
        ("sweep", {**SWEEP, "seeds": 0}),
        ("sweep", {**SWEEP, "grid": {"norm": ["rms"]}}),
        ("sweep", {**SWEEP, "search": {"trials": 3, "space": {"a": [1]}, "sampler": "grid"}}),
        ("sweep", {**SWEEP, "arms": {"a": ["norm"]}}),
        ("sweep", {**SWEEP, "ladder": {"flops": [1e6]}}),
        ("sweep", {"arms": {"a": ["norm=rms"]}}),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_a_planted_mistake_is_found(group: str, content: dict[str, Any]) -> None:
    assert errors(group, content)


@pytest.mark.parametrize(
    ("group", "content"),
    [
        ("norm", {"_target_": "mypackage.norm.Mine", "anything": 1}),
        ("optimizer", {"_target_": ADAMW, "lr": "${rate}"}),
        ("experiment", {"optimizer": {"lr": 1}, "defaults": [{"override /norm": "rms"}]}),
        ("experiment", {"optimizer": {"betas": [0.9, "${b}"], "rates": {"embedder": "${r}"}}}),
        ("experiment", {"model": {"prefix": {"registers": "${seed}"}}}),
        ("experiment", {"logger": {"mode": "offline"}, "match": {"params": 1e5}}),
        ("token_mixer", {"defaults": ["attention"], "dropout": 0.1}),
        ("sweep", {**SWEEP, "seeds": {"first": 3, "most": 9, "until": "decided"}, "baseline": "a"}),
    ],
)
def test_what_may_be_written_is_valid(group: str, content: dict[str, Any]) -> None:
    assert errors(group, content) == []


@dataclass
class Part:
    size: int


def test_types_inside_types_are_found_at_the_root() -> None:
    """Options of a user's own class may have dataclasses in lists."""
    schema = finished("mine", {"properties": {"parts": TypeAdapter(list[Part]).json_schema()}})
    assert list(Draft202012Validator(schema).iter_errors({"parts": [{"size": 1}]})) == []
    assert list(Draft202012Validator(schema).iter_errors({"parts": [{"sizes": 1}]}))


def test_options_have_their_help_and_default() -> None:
    schema = validators()["optimizer"].schema
    (then,) = [each["then"] for each in schema["allOf"] if each["if"]["properties"]["_target_"]["const"] == ADAMW]
    assert then["properties"]["lr"]["default"] == 1e-3
    assert then["properties"]["lr"]["description"] == "learning rate at the schedule's factor 1"


@pytest.mark.full
def test_the_command_writes_them_with_choices_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "norm", "halved"]) == 0  # writes the project file, which names the folder
    capsys.readouterr()
    assert main(["schema", "to=made/schemas"]) == 0
    printed = capsys.readouterr().out
    settings = json.loads(printed.partition("\n")[2])["yaml.schemas"]
    assert settings["./made/schemas/norm.json"] == "**/norm/*.yaml"
    assert {Path(name).stem for name in settings} == {*catalog.groups(), "sweep"}
    schema = json.loads((tmp_path / "made" / "schemas" / "norm.json").read_text(encoding="utf-8"))
    mine = {"_target_": "mypackage.halved.Halved", "_partial_": True}
    assert list(Draft202012Validator(schema).iter_errors(mine)) == []
    assert list(Draft202012Validator(schema).iter_errors({**mine, "no_such_option": 1}))
    for bad, message in (("to=blockyard.yaml", "blockyard.yaml is a file"), ("too=x", "did you mean to")):
        assert main(["schema", bad]) == 2
        assert message in capsys.readouterr().err


def test_schemas_elsewhere_are_named_by_their_whole_path(tmp_path: Path) -> None:
    assert list(associations(tmp_path, ["norm"])) == [f"{tmp_path}/norm.json"]
    assert list(associations(Path("schemas"), ["norm"])) == ["./schemas/norm.json"]


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, in which `schema` writes two files."""
    monkeypatch.chdir(tmp_path)
    schema = finished("A choice of norm", {"type": "object"})
    monkeypatch.setattr("blockyard.config.json_schema.group_schemas", lambda *_: {"norm": schema})
    return tmp_path


@pytest.mark.parametrize("content", ["mine", "[]", '{"title": "A sweep file"}', '{"model": {"vocab": {}}}'])
def test_files_that_are_no_schemas_of_ours_are_not_overwritten(
    content: str, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (few / "exported").mkdir()
    path = few / "exported" / "sweep.json"
    path.write_text(content)
    assert main(["schema", "to=exported"]) == 2
    assert "exported/sweep.json is not a schema of blockyard and is not overwritten" in capsys.readouterr().err
    assert path.read_text() == content
    assert [each.name for each in path.parent.iterdir()] == ["sweep.json"]  # nothing was written before
    path.unlink()
    path.symlink_to(few / "elsewhere.json")
    assert main(["schema", "to=exported"]) == 2
    assert path.is_symlink()


def test_schemas_of_an_earlier_call_are_replaced(few: Path) -> None:
    assert main(["schema"]) == 0
    path = few / ".schema" / "norm.json"
    first = path.read_text()
    path.write_text(json.dumps(json.loads(first) | {"of": "another version"}))
    assert main(["schema"]) == 0
    assert path.read_text() == first


def test_a_default_folder_that_leads_elsewhere_is_refused(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = few.parent / f"{few.name}-victim"
    victim.mkdir()
    (few / ".schema").symlink_to(victim)
    assert main(["schema"]) == 2
    assert ".schema is a link to" in capsys.readouterr().err
    assert not list(victim.iterdir())
    assert main(["schema", f"to={victim}"]) == 0  # which is named
    (few / ".schema").unlink()
    (few / "inside").mkdir()
    (few / ".schema").symlink_to("inside")
    assert main(["schema"]) == 0
    assert (few / "inside" / "norm.json").exists()
