"""Checkpoints: whole, undamaged, ours, or refused; and never half written."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import random
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from blockyard.runs.checkpoint import (
    BEST,
    LAST,
    PREVIOUS,
    STAMP,
    BadCheckpointError,
    check_weights,
    newest_good,
    read,
    verify,
)
from blockyard.runs.checkpoint_io import AtomicCheckpointIO
from tests.runs.checkpoints import checkpoint_io, save_over_the_file_limit, tiny_content
from tests.support.fork import forked


def _flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    checkpoint_io().save_checkpoint(tiny_content(5), tmp_path / LAST)
    loaded = checkpoint_io().load_checkpoint(tmp_path / LAST)
    torch.testing.assert_close(loaded["state_dict"], tiny_content(5)["state_dict"])
    assert verify(tmp_path / LAST, identity="abc", seed=3) == ("abc", 3, 5)
    assert [path.name for path in tmp_path.iterdir()] == [LAST]


def test_another_format_is_refused(tmp_path: Path) -> None:
    checkpoint_io().save_checkpoint(tiny_content(5), tmp_path / LAST)
    content = torch.load(tmp_path / LAST, weights_only=True)
    content[STAMP]["format"] += 1
    torch.save(content, tmp_path / LAST)
    with pytest.raises(BadCheckpointError, match="its format is 2; this version reads 1"):
        verify(tmp_path / LAST)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    expected = {"w": torch.zeros(2, 3), "n": torch.zeros(1)}
    check_weights(tmp_path, {"w": torch.ones(2, 3), "n": torch.ones(1)}, expected, ["w"])
    with pytest.raises(BadCheckpointError, match="another shape of w"):
        check_weights(tmp_path, {"w": torch.ones(3, 2), "n": torch.ones(1)}, expected, ["w"])


def test_two_are_kept_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint_io().save_checkpoint(tiny_content(step), tmp_path / LAST)
        checkpoint_io().save_checkpoint(tiny_content(step), tmp_path / BEST)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, LAST, PREVIOUS]
    assert [verify(tmp_path / name).step for name in (LAST, PREVIOUS, BEST)] == [3, 2, 3]


def test_a_truncated_last_gives_way_to_the_previous_with_a_word(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint_io().save_checkpoint(tiny_content(step), tmp_path / LAST)
    whole = (tmp_path / LAST).read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / LAST).write_bytes(whole[:size])
        with pytest.raises(BadCheckpointError, match="truncated"):
            verify(tmp_path / LAST)
        loaded = newest_good(tmp_path, identity="abc", seed=3)
        assert (loaded.path, loaded.step) == (tmp_path / PREVIOUS, 1)
        assert "last.ckpt cannot be used" in str(loaded)
        assert "using previous.ckpt (step 1)" in str(loaded)


@pytest.mark.full
def test_no_flipped_bit_is_loaded(tmp_path: Path) -> None:
    path, chance = tmp_path / LAST, random.Random(0)
    checkpoint_io().save_checkpoint(tiny_content(7), path)
    whole, silent = path.read_bytes(), 0
    for _ in range(400):
        at, bit = chance.randrange(len(whole)), chance.randrange(8)
        path.write_bytes(whole)
        _flip(path, at, bit)
        try:
            loaded = read(path, identity="abc", seed=3)
        except BadCheckpointError:
            continue
        # Padding and time stamps are no content.
        torch.testing.assert_close(loaded["state_dict"], tiny_content(7)["state_dict"], rtol=0, atol=0)
        silent += 1
    assert silent < 200


def test_the_planted_bug_of_trusting_torch_alone_is_seen(tmp_path: Path) -> None:
    path = tmp_path / LAST
    checkpoint_io().save_checkpoint(tiny_content(7), path)
    at = path.read_bytes().index(b"\x00\x00\xe0\x40" * 50) + 100  # 7.0 as float32
    _flip(path, at)
    loaded = TorchCheckpointIO().load_checkpoint(path)
    assert not torch.equal(loaded["state_dict"]["model.w"], tiny_content(7)["state_dict"]["model.w"])
    with pytest.raises(BadCheckpointError, match="checksum"):
        checkpoint_io().load_checkpoint(path)


def test_a_foreign_one_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / LAST
    checkpoint_io().save_checkpoint(tiny_content(1), path)
    with pytest.raises(BadCheckpointError, match=r"another run \(identity 'abc', expected 'xyz'\)"):
        verify(path, identity="xyz")
    with pytest.raises(BadCheckpointError, match="belongs to seed 3, expected seed 4"):
        AtomicCheckpointIO(identity="abc", seed=4).load_checkpoint(path)
    torch.save(tiny_content(1), path)
    with pytest.raises(BadCheckpointError, match="not written by blockyard"):
        verify(path)
    torch.save([1, 2], path)
    with pytest.raises(BadCheckpointError, match="not a checkpoint of a training run"):
        verify(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(BadCheckpointError, match="a zip file but not a checkpoint"):
        verify(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(BadCheckpointError, match="not a checkpoint"):
        verify(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BadCheckpointError, match="folder of shards"):
        verify(path)
    assert newest_good(tmp_path).path is None


class _Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_loading_never_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({**tiny_content(1), "x": _Hostile(), "blockyard": {"format": 1}}, tmp_path / LAST)
    for load in (verify, read, checkpoint_io().load_checkpoint):
        with pytest.raises(BadCheckpointError, match="more than tensors"):
            load(tmp_path / LAST)
    assert not (tmp_path / "ran").exists()


def _write_for_ever(path: Path, counter: Any) -> None:
    for step in itertools.count(int(counter.value) + 1):
        checkpoint_io().save_checkpoint(tiny_content(step, 400_000), path)
        counter.value = step


@pytest.mark.full
def test_a_kill_at_any_moment_leaves_a_good_one(tmp_path: Path) -> None:
    context, chance = multiprocessing.get_context("fork"), random.Random(0)
    counter = context.Value("q", 0, lock=False)
    for _ in range(15):
        before = counter.value
        writer = context.Process(target=_write_for_ever, args=(tmp_path / LAST, counter))
        writer.start()
        while counter.value < before + 2:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.03)
        writer.kill()
        writer.join()
        for name in (LAST, PREVIOUS):
            content = read(tmp_path / name, identity="abc", seed=3)
            expected = torch.full((400_000,), float(content["global_step"]))
            torch.testing.assert_close(content["state_dict"]["model.w"], expected, rtol=0, atol=0)
        loaded = newest_good(tmp_path)
        assert not loaded.refused
        assert loaded.step in (counter.value, counter.value + 1)
        counter.value = loaded.step


def test_a_disk_without_room_leaves_the_old_ones(tmp_path: Path) -> None:
    def save() -> int:
        save_over_the_file_limit(str(tmp_path / LAST))
        return 0

    assert forked(save) == 0
    assert [verify(tmp_path / name).step for name in (LAST, PREVIOUS)] == [2, 1]
    assert not list(tmp_path.glob(".tmp-*"))


def test_removing_takes_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a").write_text("")
    (tmp_path / LAST).write_text("")
    for path in (tmp_path / "shards", tmp_path / LAST, tmp_path / "absent"):
        checkpoint_io().remove_checkpoint(path)
    assert not list(tmp_path.iterdir())
