"""What can be a source of weights, the hash of its content, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from blockyard.errors import UserError
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from blockyard.runs.weights_file import INDEX
from blockyard.weights.sources import find_source, outline, read_weights
from blockyard.weights.transfer import content_hash
from tests.support.engine_runs import folder, run
from tests.support.tiny import SHORTEST

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("source"), base=SHORTEST)


def test_weights_have_one_hash_in_a_run_in_a_file_and_in_shards(finished: RunFolder, tmp_path: Path) -> None:
    weights = read_weights(find_source(str(finished.path)))
    saved = read(finished.checkpoints / "best.ckpt")["state_dict"]
    assert weights.tensors.keys() == {name.removeprefix("model.") for name in saved}
    save_file(dict(weights.tensors), tmp_path / "all.safetensors")
    names = sorted(weights.tensors)
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: weights.tensors[name] for name in part}, shards / f"{number}.safetensors")
    for path in (tmp_path / "all.safetensors", shards):
        source = find_source(str(path))
        assert read_weights(source).sha256 == weights.sha256 == outline(source).sha256
    (shards / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names[:3], "0.safetensors")}))
    assert outline(find_source(str(shards))).shapes.keys() == set(names[:3])


def test_name_type_shape_and_value_change_the_hash() -> None:
    whole = content_hash(TENSORS)
    assert content_hash(dict(reversed(TENSORS.items()))) == whole
    others = [
        TENSORS | {"b": TENSORS["b"] + 1e-6},
        TENSORS | {"b": TENSORS["b"].reshape(3, 2)},
        TENSORS | {"a": TENSORS["a"].float()},
        {("c" if name == "b" else name): tensor for name, tensor in TENSORS.items()},
    ]
    assert len({whole, *map(content_hash, others), content_hash(TENSORS, [b"{}"])}) == 6


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(TENSORS, path)
    first = outline(find_source(str(path)))
    save_file(TENSORS | {"more": torch.zeros(1)}, path)
    assert outline(find_source(str(path))).sha256 != first.sha256


def test_the_checkpoint_of_a_run_is_the_best_or_the_last(finished: RunFolder) -> None:
    assert find_source(str(finished.path)).files[0].name == "best.ckpt"
    assert find_source(str(finished.path), which="last").files[0].name == "last.ckpt"
    assert find_source(finished.name, outputs=str(finished.path.parents[1])).path == finished.path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("w.pt", "a pickle can run code"),
        ("pytorch_model.bin", "save_file"),
        ("none.safetensors", "the file does not exist"),
        (
            "last.ckpt",
            "does not exist; init.from=RUN starts from .* of a run, and `blockyard train resume=RUN`",
        ),
        ("junk.safetensors", "not a safetensors file, or damaged"),
        ("nothing", "the folder is empty"),
        ("twice", "is in two of its files"),
        ("shards", "names gone.safetensors, which is missing"),
        ("outside", "not a file of its folder"),
        ("s3://bucket/weights.safetensors", "is an address"),
        ("no_such_run", "no runs"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, name: str, reason: str) -> None:
    torch.save(TENSORS, tmp_path / "w.pt")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "junk.safetensors").write_bytes(b"junk" * 10)
    for each in ("nothing", "twice", "shards", "outside"):
        (tmp_path / each).mkdir()
    for each in ("1", "2"):
        save_file(TENSORS, tmp_path / "twice" / f"{each}.safetensors")
    (tmp_path / "shards" / INDEX).write_text('{"weight_map": {"a": "gone.safetensors"}}')
    (tmp_path / "outside" / INDEX).write_text('{"weight_map": {"a": "../w.safetensors"}}')
    local = name if ":" in name or name == "no_such_run" else str(tmp_path / name)
    with pytest.raises(UserError, match=reason):
        read_weights(find_source(local, outputs=str(tmp_path / "outputs")))


def test_a_run_is_found_under_other_outputs_first_and_then_under_the_default(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = finished.path.parents[1]
    monkeypatch.chdir(outputs.parent)
    monkeypatch.setenv("BLOCKYARD_PROJECT", "none")
    if outputs.name != "outputs":
        (outputs.parent / "outputs").symlink_to(outputs)
    elsewhere = str(tmp_path / "elsewhere")
    assert find_source("tiny", outputs=elsewhere).run.identity == finished.identity  # type: ignore[union-attr]
    with pytest.raises(UserError, match=rf"no_such_run.*nor is there one under {elsewhere}"):
        find_source("no_such_run", outputs=elsewhere)


def test_a_run_that_is_not_finished_is_refused_with_the_way_to_finish_it(tmp_path: Path) -> None:
    with folder(tmp_path, base=SHORTEST) as queued:
        pass
    with pytest.raises(UserError, match=r"not finished \(queued\).*resume="):
        find_source(str(queued.path))


def test_a_checkpoint_is_no_file_of_weights_and_its_run_is(finished: RunFolder) -> None:
    with pytest.raises(UserError, match=r"init\.which=last"):
        find_source(str(finished.checkpoints / "last.ckpt"))
