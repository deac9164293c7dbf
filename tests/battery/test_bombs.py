"""Small files that would fill the memory, and sweep files that would never end: refused by name, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.data.arrays import Arrays
from blockyard.data.files import unpacked
from blockyard.data.table import Table
from blockyard.data.webdataset import WebDataset
from blockyard.errors import UserError
from blockyard.sweep.spec.question import BadQuestionError, read
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.patch import Patch
from tests.battery import bombs
from tests.battery.cases import battery, cases
from tests.battery.peak_memory import in_child

pytestmark = [battery("bombs"), pytest.mark.timeout(300), pytest.mark.xdist_group("bombs")]

MOST = 50  # MB that a file of these tests may hold, as on a machine of twice as much
MEMORY = 700  # MiB: what libraries add to it
TABLES, ARRAYS, SHARDS, SPACES = bombs.tables(), bombs.arrays(), bombs.shards(), bombs.spaces()


def _refusal(work: Callable[[], object]) -> str:
    """Return the message of what refuses a file, in a process of its own that takes bounded memory."""

    def refused() -> str:
        unpacked.most_bytes = lambda: MOST * 10**6
        with pytest.raises(UserError) as refusal:
            work()
        return str(refusal.value)

    message, taken = in_child(refused)
    assert taken < MEMORY, f"{taken} MiB for {message[:200]}"
    assert len(message) < 3_000
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", cases([*TABLES], short=2))
def test_table(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{name.split()[0]}.gz"
    TABLES[name](path)
    assert str(path) in _refusal(lambda: Table(path=str(path)).load(Byte()))


@pytest.mark.parametrize("name", cases([*ARRAYS], short=2))
def test_array(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    ARRAYS[name](path)
    assert str(path) in _refusal(lambda: Arrays(path=str(path)).spec)


@pytest.mark.parametrize("name", cases([*SHARDS], short=1))
def test_shard(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train-0.tar"
    SHARDS[name](path)
    assert str(path) in _refusal(lambda: WebDataset(path=str(path), size=8).load(Patch()))


@pytest.mark.parametrize("name", cases([*SPACES], short=6))
def test_bad_search_space_is_one_short_message(name: str, tmp_path: Path) -> None:
    """Each problem of a sweep file is one line that names the key, or the line where it cannot be read."""
    path = tmp_path / "x.yaml"
    path.write_text(f"claim: One is better\narms: {{a: [block=pre_norm], b: [block=post_norm]}}\n{SPACES[name]}\n")
    with pytest.raises((BadQuestionError, UserError)) as refusal:
        read(path)
    text = str(refusal.value)
    assert any(key in text for key in ("search", "tune", "seeds", "line 3"))
    assert len(text) < 5_000
