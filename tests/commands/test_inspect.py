"""`blockyard inspect` on small runs: figures, numbers, loggers, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from blockyard.atomic_files import read_json, write_json
from blockyard.cli import main
from blockyard.inspect import _canvas
from blockyard.runs.folder import RunFolder
from blockyard.runs.start import create_run
from tests.support import engine_runs
from tests.support.every import every
from tests.support.tiny import TINY

pytestmark = pytest.mark.xdist_group("inspect_verb")  # its runs are trained once


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    overrides = (
        "model.depth=2",
        "tokenizer.size=2",
        "token_mixer.dropout=0",
        "logger=tensorboard",
        "trainer.max_steps=3",
    )
    return engine_runs.run(tmp_path_factory.mktemp("image"), *overrides)


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    overrides = ("tokenizer=char", "position=rope", "token_mixer.num_kv_heads=1", "logger=wandb", "logger.mode=offline")
    return engine_runs.text_run(tmp_path_factory.mktemp("text"), *overrides)


def inspect_run(run: RunFolder, kind: str, *options: str) -> dict[str, Any]:
    """Returns the JSON of an inspection, after opening each of its figures."""
    assert main(["inspect", f"run={run.path}", kind, f"outputs={run.path.parents[1]}", *options]) == 0
    out = next((Path(option[4:]) for option in options if option.startswith("out=")), run.path / "inspect")
    numbers = read_json(out / f"{kind}.json")
    assert numbers["pictures"]
    for name in numbers["pictures"]:
        with Image.open(out / name) as figure:
            figure.load()
            assert min(figure.size) > 100
            assert max(figure.size) < 4000
    return numbers


@pytest.mark.full
def test_figures_of_a_run_from_elsewhere_are_sent_only_where_that_is_asked_for(
    image_run: RunFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its config may name a folder or an account of somebody else."""
    arguments = ["inspect", f"run={image_run.path}", "attention", f"out={tmp_path}"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "TensorBoard" not in printed.out
    assert "the run is not in outputs; log=true sends them" in printed.err
    assert main([*arguments, "log=true"]) == 0
    assert "TensorBoard: 3 pictures" in capsys.readouterr().out


def test_images(image_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = inspect_run(image_run, "attention", "samples=2", "query=5", "heads=1")
    assert numbers["pictures"] == ["attention_maps.png", "attention_picture.png", "attention_entropy.png"]
    assert numbers["samples"] == [0, 1]
    assert [(layer["path"], layer["heads"]) for layer in numbers["layers"]] == [
        ("blocks.0.token_mixer", [1]),
        ("blocks.1.token_mixer", [1]),
    ]
    for layer in numbers["layers"]:
        assert layer["grid"] == [4, 4]
        assert [sum(row) for row in layer["weights"][0]] == pytest.approx([1.0] * 16, abs=1e-3)
        assert 0 < layer["entropy_share"][0] <= 1
    numbers = inspect_run(image_run, "mixing", "layers=1", "samples=2")
    assert numbers["pictures"] == ["mixing.png", "mixing_grid.png"]
    assert [layer["pattern"] for layer in numbers["layers"]] == ["all"]
    numbers = inspect_run(image_run, "circuits", "layers=0")
    assert numbers["pictures"] == ["circuits.png"]
    assert "symbols" not in numbers
    output = capsys.readouterr().out
    assert "TensorBoard: 3 pictures" in output
    assert "left out: the factor by which" in output


@pytest.mark.full
def test_figures_reach_tensorboard(image_run: RunFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    inspect_run(image_run, "mixing", "samples=1")
    events = EventAccumulator(str(image_run.path / "tensorboard"))
    events.Reload()
    assert {"inspect/mixing", "inspect/mixing_grid"} <= set(events.Tags()["images"])


@pytest.mark.full
def test_text(text_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = inspect_run(text_run, "attention", "samples=1", "log=false")
    assert numbers["pictures"] == ["attention_maps.png", "attention_tokens.png", "attention_entropy.png"]
    assert every(row[i + 1 :] == [0.0] * (15 - i) for i, row in enumerate(numbers["layers"][0]["weights"][0]))
    numbers = inspect_run(text_run, "attention", "prompt=def $f$(", "log=false")
    assert numbers["layers"][0]["keys"][:5] == ["d", "e", "f", "␣", "$"]
    numbers = inspect_run(text_run, "mixing", "samples=1", "probes=2", "of=block", "log=false")
    assert {layer["pattern"] for layer in numbers["layers"]} == {"causal: itself and all previous tokens"}
    assert {layer["probes"] for layer in numbers["layers"]} == {2}
    numbers = inspect_run(text_run, "circuits", "vocabulary=abc", "heads=0", "layers=0")
    assert numbers["names"] == ["a", "b", "c"]
    assert [len(numbers["qk_tables"]), len(numbers["qk_tables"][0])] == [1, 3]
    assert numbers["pictures"] == ["circuits.png", "circuits_qk.png", "circuits_ov.png"]
    assert "W&B:" in capsys.readouterr().out
    assert list((text_run.path / "wandb").glob("offline-run-*/files/media/images/inspect/circuits_qk*.png"))


def test_figures_of_an_earlier_inspection_are_removed(text_run: RunFolder, tmp_path: Path) -> None:
    folder = tmp_path / "inspected"
    folder.mkdir()
    for name in ("circuits_qk_2.png", "circuits_mine.png", "attention_maps.png"):
        (folder / name).write_bytes(b"old")
    names = ["circuits_qk_2.png", "attention_maps.png", "../inspected/circuits_mine.png"]
    write_json(folder / "circuits.json", {"pictures": names})
    numbers = inspect_run(text_run, "circuits", "vocabulary=ab", "layers=0", f"out={folder}", "log=false")
    remaining = {path.name for path in folder.glob("*.png")}
    assert remaining == {*numbers["pictures"], "circuits_mine.png", "attention_maps.png"}


BAD = {
    ("image", "attention layers=7"): "layers=7: no such layer (layers: 0, 1)",
    ("image", "attention heads=2"): "heads=2: no such head; a layer has 2, counted from 0",
    ("image", "attention sample=99999"): "sample=99999 is out of range: the validation split has",
    ("image", "attention query=16"): "query=16 is out of range: the sequence has 16 tokens",
    ("image", "attention query=class"): "the model has no class token",
    ("image", "attention prompt=a"): "reads images, not text; use sample=INDEX",
    ("image", "circuits vocabulary=a"): "does not embed tokens",
    ("text", "attention prompt=" + "a" * 17): "it has 17 tokens",
    ("text", "mixing layers=2"): "layers=2: no such layer (layers: 0, 1)",
    ("text", "circuits out=/dev/null"): "expected a folder",
}


@pytest.mark.parametrize(("kind", "args"), BAD)
def test_invalid_options_are_refused_and_write_nothing(
    kind: str, args: str, image_run: RunFolder, text_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = image_run if kind == "image" else text_run
    out = [] if "out=" in args else [f"out={tmp_path / 'inspected'}"]
    assert main(["inspect", f"run={run.path}", *args.split(), *out]) == 2
    message = capsys.readouterr().err
    assert BAD[kind, args] in message
    assert "Traceback" not in message
    assert not (tmp_path / "inspected").exists()


def test_other_mixers_have_no_circuits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [override for override in TINY if not override.startswith("token_mixer")]
    from blockyard.config.compose import compose
    from blockyard.engine.run import train

    composed = compose([*overrides, "token_mixer=fourier", "trainer.max_steps=2", f"outputs={tmp_path}"])
    with create_run(composed.config, choices=composed.choices) as run:
        assert train(run) == 0
    for kind, reason in (("circuits", "is Fourier"), ("attention", "has no attention layer")):
        assert main(["inspect", f"run={run.path}", kind]) == 2
        assert reason in capsys.readouterr().err
    assert not (run.path / "inspect").exists()
    assert main(["inspect", f"run={run.path}", "mixing", "samples=2"]) == 0
    assert "0.0%" in capsys.readouterr().out


def test_labels_use_letters_of_the_font() -> None:
    assert _canvas.printable("␣↵⇥") == "␣↵⇥"
    assert _canvas.printable("字") == "\\u5b57"
    assert _canvas.printable("a" * 40) == "a" * 11 + "…"
    assert [list(part) for part in _canvas.split_pages(range(5), 2)] == [[0], [1, 2], [3, 4]]
