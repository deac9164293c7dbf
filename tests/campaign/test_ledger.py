"""The ledger: a torn last line, a changed or missing line, and appends by several processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from blockyard.campaign.ledger import Begun, Created, Ledger, Settings
from blockyard.campaign.standing import CampaignStanding
from blockyard.errors import UserError

SETTINGS = Settings(["data=digits"], "val/loss", "min", 0.05, 100, 4, 20, 8, fresh=False)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "small")
    ledger.create(SETTINGS)
    return ledger


def append(folder: Path, count: int) -> None:
    ledger = Ledger(folder)
    for number in range(count):
        with ledger.locked():
            ledger.append(Begun(f"p{number}", ["norm=rms"], 0, [0, 1]))


def test_events_are_read_as_they_were_written(ledger: Ledger) -> None:
    with ledger.locked() as events:
        assert len(events) == 1
        begun = ledger.append(Begun("rms", ["norm=rms"], 0, [0, 1]))
    assert begun.time
    created, last = ledger.read()
    assert isinstance(created, Created)
    assert created.settings == SETTINGS
    assert last == begun


def test_writers_append_one_after_the_other(ledger: Ledger) -> None:
    """Each opens the lock anew, as a process of its own does."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(append, ledger.folder), [5] * 4))
    assert len(ledger.read()) == 21


@pytest.mark.parametrize("size", [1, 40, 119])
def test_a_torn_last_line_is_left_out_and_taken_away(
    ledger: Ledger, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    append(ledger.folder, 2)
    whole = ledger.path.read_bytes()
    append(ledger.folder, 1)
    last = ledger.path.read_bytes()[len(whole) :]
    ledger.path.write_bytes(whole + last[:size])
    assert len(ledger.read()) == 3
    assert f"left out {size} bytes" in capsys.readouterr().err
    append(ledger.folder, 1)
    assert ledger.path.read_bytes().startswith(whole)
    assert len(ledger.read()) == 4


def test_a_line_that_is_missing_or_changed_is_noticed(ledger: Ledger) -> None:
    append(ledger.folder, 3)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    with pytest.raises(UserError, match="before line 3"):
        ledger.read()
    ledger.path.write_bytes(b"".join([lines[0], lines[1].replace(b"norm=rms", b"norm=xyz"), *lines[2:]]))
    with pytest.raises(UserError, match="before line 3"):
        ledger.read()
    ledger.path.write_bytes(b"".join([lines[0], b'{"event":"begun"}\n']))
    with pytest.raises(UserError, match="line 2 is not an event"):
        ledger.read()
    ledger.path.write_bytes(b"".join(lines[1:]))
    with pytest.raises(UserError, match="damaged"):
        ledger.read()


def test_a_campaign_is_created_once_also_after_a_kill(tmp_path: Path, ledger: Ledger) -> None:
    with pytest.raises(UserError, match="is a campaign already"):
        ledger.create(SETTINGS)
    torn = Ledger(tmp_path / "torn")
    torn.folder.mkdir()
    torn.path.write_text('{"settings":')
    torn.create(SETTINGS)
    assert len(torn.read()) == 1


def test_seeds_are_common_to_a_baseline_or_each_proposals_own(ledger: Ledger) -> None:
    standing = CampaignStanding.of(ledger.read())
    assert standing.seeds_of("a") == standing.seeds_of("b") == list(range(20))
    append(ledger.folder, 2)
    own = CampaignStanding.of(ledger.read())
    assert own.seeds_of("p9") == list(range(20))
    fresh = CampaignStanding(Settings(**{**vars(SETTINGS), "fresh": True}))
    assert fresh.seeds_of("a") == list(range(20))
    fresh.add(Begun("a", ["norm=rms"], 0, fresh.seeds_of("a")))
    assert fresh.seeds_of("a") == list(range(20))
    assert fresh.seeds_of("b") == list(range(20, 40))
    assert not set(fresh.measuring_seeds(0)) & set(fresh.measuring_seeds(1))
