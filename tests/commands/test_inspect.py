"""`blockyard inspect` on small runs: pictures, numbers, loggers, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from blockyard.atomic_files import read_json, write_json
from blockyard.cli import main
from blockyard.inspect.figures import _canvas
from blockyard.runs.folder import RunFolder
from blockyard.runs.start import create_run
from tests import engine_runs, text_runs

pytestmark = pytest.mark.xdist_group("inspect_verb")  # its runs are made once


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = ("model.depth=2", "tokenizer.size=2", "token_mixer.dropout=0", "logger=tensorboard", "trainer.max_steps=3")
    return engine_runs.run(tmp_path_factory.mktemp("image"), *words)


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = ("tokenizer=char", "position=rope", "token_mixer.num_kv_heads=1", "logger=wandb", "logger.mode=offline")
    return text_runs.run(tmp_path_factory.mktemp("text"), *words)


def looked(run: RunFolder, kind: str, *words: str) -> dict[str, Any]:
    """What a look has left: its JSON, after every picture of it was opened."""
    assert main(["inspect", f"run={run.path}", kind, *words]) == 0
    out = next((Path(word[4:]) for word in words if word.startswith("out=")), run.path / "inspect")
    found = read_json(out / f"{kind}.json")
    assert found["pictures"]
    for name in found["pictures"]:
        with Image.open(out / name) as picture:
            picture.load()
            assert min(picture.size) > 100
            assert max(picture.size) < 4000
    return found


def test_images(image_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    found = looked(image_run, "attention", "samples=2", "query=5", "heads=1")
    assert found["pictures"] == ["attention_maps.png", "attention_picture.png", "attention_entropy.png"]
    assert found["samples"] == [0, 1]
    assert [(layer["path"], layer["heads"]) for layer in found["layers"]] == [
        ("blocks.0.token_mixer", [1]),
        ("blocks.1.token_mixer", [1]),
    ]
    for layer in found["layers"]:
        assert layer["grid"] == [4, 4]
        assert [sum(row) for row in layer["weights"][0]] == pytest.approx([1.0] * 16, abs=1e-3)
        assert 0 < layer["entropy_share"][0] <= 1
    found = looked(image_run, "mixing", "layers=1", "samples=2")
    assert found["pictures"] == ["mixing.png", "mixing_grid.png"]
    assert [layer["pattern"] for layer in found["layers"]] == ["all"]
    found = looked(image_run, "circuits", "layers=0")
    assert found["pictures"] == ["circuits.png"]
    assert "symbols" not in found
    said = capsys.readouterr().out
    assert "TensorBoard: 3 pictures" in said
    assert "left out: the size that" in said


def test_pictures_reach_tensorboard(image_run: RunFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    looked(image_run, "mixing", "samples=1")
    events = EventAccumulator(str(image_run.path / "tensorboard"))
    events.Reload()
    assert {"inspect/mixing", "inspect/mixing_grid"} <= set(events.Tags()["images"])


def test_text(text_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    found = looked(text_run, "attention", "samples=1", "log=false")
    assert found["pictures"] == ["attention_maps.png", "attention_tokens.png", "attention_entropy.png"]
    assert all(row[i + 1 :] == [0.0] * (15 - i) for i, row in enumerate(found["layers"][0]["weights"][0]))
    found = looked(text_run, "attention", "prompt=def $f$(", "log=false")
    assert found["layers"][0]["keys"][:5] == ["d", "e", "f", "␣", "$"]
    found = looked(text_run, "mixing", "samples=1", "probes=2", "of=block", "log=false")
    assert {layer["pattern"] for layer in found["layers"]} == {"triangle: itself and all before"}
    assert {layer["probes"] for layer in found["layers"]} == {2}
    found = looked(text_run, "circuits", "vocabulary=abc", "heads=0", "layers=0")
    assert found["names"] == ["a", "b", "c"]
    assert [len(found["qk_tables"]), len(found["qk_tables"][0])] == [1, 3]
    assert found["pictures"] == ["circuits.png", "circuits_qk.png", "circuits_ov.png"]
    assert "W&B:" in capsys.readouterr().out
    assert list((text_run.path / "wandb").glob("offline-run-*/files/media/images/inspect/circuits_qk*.png"))


def test_an_earlier_look_leaves_no_picture_behind(text_run: RunFolder, tmp_path: Path) -> None:
    look = tmp_path / "look"
    look.mkdir()
    for name in ("circuits_qk_2.png", "circuits_mine.png", "attention_maps.png"):
        (look / name).write_bytes(b"old")
    names = ["circuits_qk_2.png", "attention_maps.png", "../look/circuits_mine.png"]
    write_json(look / "circuits.json", {"pictures": names})
    found = looked(text_run, "circuits", "vocabulary=ab", "layers=0", f"out={look}", "log=false")
    left = {path.name for path in look.glob("*.png")}
    assert left == {*found["pictures"], "circuits_mine.png", "attention_maps.png"}


BAD = {
    ("image", "attention layers=7"): "layers=7: there are 0, 1",
    ("image", "attention heads=2"): "heads=2: a layer has 2, from 0",
    ("image", "attention sample=99999"): "sample=99999: the validation part has",
    ("image", "attention query=16"): "query=16: the row has 16 tokens",
    ("image", "attention query=class"): "the model has no class token",
    ("image", "attention prompt=a"): "is a model of images; use sample=NUMBER",
    ("image", "circuits vocabulary=a"): "does not read symbols",
    ("text", "attention prompt=" + "a" * 17): "it has 17 tokens",
    ("text", "mixing layers=2"): "layers=2: there are 0, 1",
    ("text", "circuits out=/dev/null"): "expected a folder",
}


@pytest.mark.parametrize(("kind", "words"), BAD)
def test_bad_words_are_refused_and_nothing_is_written(
    kind: str, words: str, image_run: RunFolder, text_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = image_run if kind == "image" else text_run
    out = [] if "out=" in words else [f"out={tmp_path / 'look'}"]
    assert main(["inspect", f"run={run.path}", *words.split(), *out]) == 2
    said = capsys.readouterr().err
    assert BAD[kind, words] in said
    assert "Traceback" not in said
    assert not (tmp_path / "look").exists()


def test_other_mixers_have_no_circuits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in engine_runs.TINY if not word.startswith("token_mixer")]
    from blockyard.config.compose import compose
    from blockyard.engine.run import train

    composed = compose([*words, "token_mixer=fourier", "trainer.max_steps=2", f"outputs={tmp_path}"])
    with create_run(composed.config, choices=composed.choices) as made:
        assert train(made) == 0
    for kind, why in (("circuits", "mixes by Fourier"), ("attention", "has no attention layer")):
        assert main(["inspect", f"run={made.path}", kind]) == 2
        assert why in capsys.readouterr().err
    assert not (made.path / "inspect").exists()
    assert main(["inspect", f"run={made.path}", "mixing", "samples=2"]) == 0
    assert "0.0%" in capsys.readouterr().out


def test_labels_are_drawn_in_letters_that_the_font_has() -> None:
    assert _canvas.drawable("␣↵⇥") == "␣↵⇥"
    assert _canvas.drawable("字") == "\\u5b57"
    assert _canvas.drawable("a" * 40) == "a" * 11 + "…"
    assert [list(part) for part in _canvas.pages(5, 2)] == [[0], [1, 2], [3, 4]]
