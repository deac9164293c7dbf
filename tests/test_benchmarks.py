"""The benchmarks run."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.every import every
from tests.support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.full
def test_the_gpu_check_passes_its_dry_mode_without_hydra_and_wandb(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('hydra', 'omegaconf', 'wandb', 'timm')))"
    code = f"{blocked}; import gpu_check; sys.exit(gpu_check.main(['--dry', '--out', 'table.md']))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "table.md").read_text()
    assert table.count("| ok |") == 11
    for row in (
        "ViT-B/16 at 224",
        "Llama, 350 M",
        "GPT-2 small's shape with FSDP",
        "decoding",
        "a step as a CUDA graph",
    ):
        assert f"| {row} |" in table
    assert every(f"{mask} error" in table for mask in ("alibi", "t5_bias", "window", "packed"))


def test_the_gpu_check_sees_a_mask_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import torch

    import gpu_check
    import gpu_rows
    from blockyard.ops import attend

    masks = gpu_rows.masks(torch.device("cpu"), dry=True)
    assert masks.keys() == set(gpu_rows.MASKS)
    assert gpu_check.are_exact(gpu_check.flat(masks))
    monkeypatch.setattr(attend.mask, "reasons", lambda *_: [])
    wrong = gpu_rows.masks(torch.device("cpu"), dry=True)
    assert every(values["error"] > 1e-2 for values in wrong.values())


@pytest.mark.full
def test_the_gpu_check_says_when_there_is_no_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = subprocess.run([sys.executable, BENCHMARKS / "gpu_check.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no GPU here" in done.stderr


@pytest.mark.full
def test_the_overhead_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import overhead

    overrides = ("model.dim=16", "model.depth=1", "model.heads=2", "data.batch_size=32")
    mine, theirs = overhead.one_run(tmp_path, overrides, 60)
    assert 0 < theirs < mine * 2
    assert mine < theirs * 4


def test_packed_cells_are_measured_where_they_end_as_lone_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import torch

    import packed

    threads = torch.get_num_threads()
    try:
        assert packed.largest_gap(16, 2, cells=3, steps=3) < 1e-5
        assert packed.main(["--dry", "--cells", "2"]) == 0
        assert "| 12,384 | 64 |" in capsys.readouterr().out
        true = packed.data
        monkeypatch.setattr(packed, "data", lambda seed, step, batch: true(min(seed, 1), step, batch))
        step, together = packed.packed(16, 2, range(3))
        step(0)
        monkeypatch.setattr(packed, "data", true)
        alone = packed.lone(16, 2, 2)
        alone[0](0)
        assert (together["head"][2] - alone[1]["head"]).abs().max() > 1e-4
    finally:
        torch.set_num_threads(threads)


@pytest.mark.full
def test_warm_workers_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import warm_workers

    assert warm_workers.main(["--dry"]) == 0
    output = capsys.readouterr().out
    assert "| warm workers |" in output
    assert float(output.split("ratio")[1]) > 0


@pytest.mark.full
def test_the_start_up_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import startup

    startup.main(["--rounds", "1"])
    table = capsys.readouterr().out
    assert every(f"| {name} |" in table for name in startup.BOUNDS)


def test_threads_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import torch

    import threads

    before = torch.get_num_threads()
    try:
        flops, seconds = threads.measure(threads.SIZES["ViT 32x1, batch 16"], 2, (1, 2))
    finally:
        torch.set_num_threads(before)
    assert 1e6 < flops < 1e8
    assert every(0 < each < 60 for each in seconds)


@pytest.mark.full
def test_decoding_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import decode

    monkeypatch.setattr(decode, "SHAPE", {"dim": 16, "depth": 1, "heads": 2, "context": 48, "vocabulary": 257})
    assert decode.main(["--rounds", "1", "--new", "4", "--batches", "1", "2"]) == 0
    assert capsys.readouterr().out.count("| 4 |") == 2


@pytest.mark.full
def test_peers_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers

    monkeypatch.setattr(peers, "GPT", peers.GPT | {"dim": 32, "depth": 1, "heads": 2, "context": 16, "batch": 2})
    monkeypatch.setattr(peers, "VIT", peers.VIT | {"dim": 24, "depth": 1, "batch": 2})
    assert peers.main(["--rounds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * 4 + 5 * 2
    assert every(line.count("|") == 9 for line in lines)


@pytest.mark.full
def test_the_loss_of_vocabularies_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import vocabulary

    monkeypatch.setattr(vocabulary, "VOCABULARIES", (8, 200_000))
    monkeypatch.setattr(vocabulary, "memory", lambda size, chunked: 1.0)
    assert vocabulary.main(["--rounds", "1", "--tokens", "90", "--dim", "4"]) == 0
    small, large = capsys.readouterr().out.splitlines()[2:]
    assert small.endswith("| all logits |")
    assert large.endswith("| by chunks |")


def test_sides_of_the_benchmark_of_states_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a side that gives something else is caught before anything is timed."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import state_mixers

    for make in state_mixers.ROWS.values():
        ours, library = state_mixers.compare(make, 40, 1)
        assert ours[0] > 0
        assert library[0] > 0
    side, other = state_mixers.mamba2(40)
    with pytest.raises(AssertionError):
        state_mixers.compare(lambda _: (side, lambda: 1.1 * other()), 40, 1)


@pytest.mark.full
def test_stacked_cells_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import stacked

    assert stacked.main(["--dry", "--cells", "2", "--rounds", "1", "--steps", "30"]) == 0
    out = capsys.readouterr().out
    assert "| 10 k | 16 |" in out
    assert float(out.split("differ by ")[1].split()[0]) < 1e-3


@pytest.mark.parametrize(
    ("direction", "scores", "beats"),
    [
        ("max", (0.91, 0.912, 0.914), "yes"),
        ("max", (0.888, 0.89, 0.892), "no"),
        ("max", (0.80, 0.92, 0.95), "undecided"),
        ("min", (0.868, 0.87, 0.872), "no"),  # above the better of both baselines, 0.85
        ("min", (0.828, 0.83, 0.832), "yes"),
        ("max", (0.9, 0.9, 0.9), "undecided"),
    ],
)
def test_a_recipe_is_held_against_its_best_baseline(
    direction: str, scores: tuple[float, ...], beats: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import defaults

    folders = []
    for score in scores:
        baselines = {"low": {"score": 0.85}, "high": {"score": 0.9}, "of another metric": {"loss": 0.0}}
        metrics = {"metrics": {"test/score": score}, "directions": {"test/score": direction}}
        summary = {**metrics, "seconds": 1.0, "baselines": baselines}
        folders.append(SimpleNamespace(summary=partial(dict, summary)))
    monkeypatch.setattr(defaults, "_trained", lambda *_: folders.pop(0))
    answer = defaults.measure(defaults.Row("", "score", ()), [], range(len(scores)), tmp_path)
    assert answer.beats == beats
    assert answer.baseline == {"max": ("high", 0.9), "min": ("low", 0.85)}[direction]
    assert answer.others == {"max": {"low": 0.85}, "min": {"high": 0.9}}[direction]


def _documented_defaults() -> dict[str, str]:
    """Return by row of docs/defaults.md whether its recipe beats the simple baselines."""
    text = (ROOT / "docs" / "defaults.md").read_text(encoding="utf-8")
    beats = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            beats[cells[0].strip("`")] = cells[-2]
    return beats


@pytest.mark.full
def test_recipes_of_embedded_data_beat_the_simple_baselines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each row that docs/defaults.md calls beaten by its recipe is ahead of every baseline on average, by two seeds."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import defaults

    documented = _documented_defaults()
    defaults.write_tables(tmp_path / "tables")
    checked = []
    for name, row in defaults.ROWS.items():
        if not row.embedded or documented.get(name) != "yes":
            continue
        overrides = [defaults.with_folders(override, tmp_path, tmp_path / "tables") for override in row.typed]
        answer = defaults.measure(row, overrides, range(2), tmp_path)
        checked.append(answer.gain > 0)
    assert every(checked)
