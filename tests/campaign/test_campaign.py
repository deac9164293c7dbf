"""Campaigns over runs that are written without training: val/loss is 1 minus the learning rate, and noise by seed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockyard.campaign import arms, audit, referee
from blockyard.campaign.account import Account
from blockyard.campaign.allowed import refuse_difference
from blockyard.campaign.audit import audit as problems_of
from blockyard.campaign.judgement import level
from blockyard.campaign.ledger import Looked
from blockyard.campaign.referee import Campaign, CampaignFailed
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.runs.identity import run_name
from blockyard.sweep.cell import states
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import config, write
from tests.support.tiny import SHORTEST, UNTRAINED

BASE = (*UNTRAINED, "optimizer.lr=0.1")
GOOD = "optimizer.lr=0.3"  # better by 0.2; the noise of a run has a standard deviation of 0.02
BAD = "optimizer.lr=0.05"


class World:
    """A stand-in of `run_plan`.

    trained: the runs, in order
    states: by learning rate, the state in which its runs end in place of done
    during: called once, before the next runs are written
    """

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.states: dict[float, str] = {}
        self.during: Callable[[], object] | None = None

    def run_plan(self, plan: SweepPlan, *_: Any, **__: Any) -> int:
        call, self.during = self.during, None
        if call is not None:
            call()
        for cell in plan.cells:
            config = plan.config(cell)
            rate = config["optimizer"]["lr"]
            assert cell.run == f"{run_name(config)}/s{cell.seed}"
            self.trained.append(cell.run)
            noise = (zlib.crc32(cell.run.encode()) / 2**32 - 0.5) * 0.07
            loss = 1 - rate + noise
            summary = {
                "metrics": {"val/loss": loss, "test/loss": 2 + loss},
                "seconds": 36.0,
                "step_seconds": rate,
            }
            write(Path(plan.outputs), config, {}, cell.seed, self.states.get(rate, 0.5), summary)
        return int(bool(self.states))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(arms, "run_plan", world.run_plan)
    return world


def quiet(_: str) -> None:
    """Say nothing."""


def campaign(outputs: Path, **settings: Any) -> Campaign:
    settings = {"metric": "val/loss", "tries": 10, "error": 0.1, "first": 3, "most": 6, "measure": 3, **settings}
    Campaign.create("small", *BASE, outputs=outputs, **settings)
    return Campaign("small", outputs=outputs, say=quiet)


def rewritten(campaign: Campaign, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Write the ledger again with changed records and sound hashes."""
    records = [json.loads(line) for line in campaign.ledger.path.read_text().splitlines()]
    change(records)
    previous = ""
    lines = []
    for record in records:
        line = json.dumps({**record, "previous": previous})
        previous = hashlib.sha256(line.encode()).hexdigest()
        lines.append(line)
    campaign.ledger.path.write_text("\n".join(lines) + "\n")


def test_kept_proposals_join_the_baseline_and_raise_the_level(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    good = small.propose("good", GOOD)
    assert (good.verdict, good.number, good.baseline) == ("kept", 1, 0)
    assert good.alpha == pytest.approx(0.01)
    standing = small.standing()
    assert standing.additions == [GOOD]
    assert standing.alpha == pytest.approx(0.02)
    assert standing.alpha == level(0.1, 10, 1)
    assert set(standing.measured) == {0, 1}
    bad = small.propose("bad", BAD)
    assert (bad.verdict, bad.number, bad.baseline) == ("rejected", 2, 1)
    assert bad.alpha == pytest.approx(0.02)
    # The baseline that it met is the base with the kept override, on seeds that nothing has used.
    assert set(bad.seeds).isdisjoint(good.seeds)
    assert bad.before.values == {seed: pytest.approx(0.7, abs=0.04) for seed in bad.seeds}
    assert problems_of(small) == []


def test_a_baseline_is_measured_on_seeds_of_its_own(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    small.propose("good", GOOD)
    standing = small.standing()
    measured = standing.measured[1]
    assert set(measured.now.folders).isdisjoint([*standing.judged[0].seeds, *standing.measured[0].now.folders])
    account = Account.of("small", standing)
    assert account.worth is not None
    gains = [measured.base.values[seed] - measured.now.values[seed] for seed in measured.base.values]
    assert account.worth.gain == pytest.approx(sum(gains) / 3)
    assert account.worth.gain != pytest.approx(account.promised)
    assert account.expected_false == pytest.approx(0.1)
    shown = (
        f"together worth {account.worth.gain:+.4g} val/loss [{{}}], not {account.promised:+.4g}, the sum of the gains"
    )
    before, after = shown.split("[{}]")
    text = " ".join(account.sentences())
    assert before in text
    assert after.partition(",")[2] in text


def test_runs_of_a_baseline_are_shared_unless_seeds_are_fresh(world: World, tmp_path: Path) -> None:
    for fresh, runs in ((False, 3 + 3 + 3 + 3), (True, 3 + 2 * (3 + 3))):  # the base is measured on three seeds
        world.trained.clear()
        small = campaign(tmp_path / str(fresh), fresh=fresh)
        small.propose("worse", BAD)
        small.propose("worst", "optimizer.lr=0.01")
        assert len(world.trained) == len(set(world.trained)) == runs
        assert problems_of(small) == []


REFUSED = [
    ([], "changes nothing"),
    (["data=copy"], "must not change data"),
    (["trainer.max_epochs=9"], "must not change trainer"),
    (["objective.smoothing=0.1"], "must not change objective"),
    (["experiment=vit_mnist"], "must not change experiment"),
    (["seed=3"], "seed cannot be set here"),
    (["init.from=last"], "weights of other runs"),
    (["norm=nosuch"], "unknown norm"),
    (["optimizer.lr=-1"], "optimizer.lr"),
    (["optimizer.lr=0.1"], "are the same run"),
    (["norm"], "has no value"),
]


def test_proposals_that_cannot_be_tried_are_refused_before_a_run(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    small.propose("worse", BAD)
    world.trained.clear()
    events = small.ledger.read()
    for overrides, message in REFUSED:
        with pytest.raises(UserError, match=message):
            small.propose("other", *overrides)
    assert world.trained == []
    assert small.ledger.read() == events


def test_a_config_that_differs_in_what_is_measured_is_refused() -> None:
    """Whatever the overrides are called, such as an option that another one sets."""
    baseline, _ = config(*BASE)
    changed = {
        **baseline,
        "trainer": {**baseline["trainer"], "max_steps": 5},
        "init": {"from": "x"},
    }
    with pytest.raises(UserError, match=r"other changes trainer, init\.from, by which it is measured"):
        refuse_difference("other", baseline, changed)
    learns, _ = config(*BASE, "norm=rms", "optimizer.lr=0.7")
    refuse_difference("other", baseline, learns)


def test_a_proposal_is_judged_once(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path, tries=2)
    small.propose("worse", BAD)
    with pytest.raises(UserError, match="was judged already"):
        small.propose("worse", BAD)
    small.propose("good", GOOD)
    with pytest.raises(UserError, match="all 2 tries are judged"):
        small.propose("more", "optimizer.lr=0.4")
    with pytest.raises(UserError, match="a name has letters"):
        small.propose("../escape", GOOD)


@pytest.mark.parametrize(("state", "reason"), [("diverged", "diverged: NotFiniteError"), ("failed", "out of memory")])
def test_a_proposal_that_cannot_train_is_rejected(world: World, tmp_path: Path, state: str, reason: str) -> None:
    small = campaign(tmp_path)
    world.states = {0.3: state}
    judged = small.propose("good", GOOD)
    assert judged.verdict == "rejected"
    assert reason in judged.reason
    assert judged.log_e == 0
    assert problems_of(small) == []


def test_a_run_that_was_stopped_is_no_fault_of_its_proposal(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    world.states = {0.3: "interrupted"}
    with pytest.raises(CampaignFailed, match=r"good is not judged: its run of seed 0 .* goes on"):
        small.propose("good", GOOD)
    assert small.standing().judged == []
    world.states = {}
    assert small.propose("good", GOOD).verdict == "kept"


def test_a_baseline_that_fails_takes_no_level(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path, fresh=True)
    small.propose("worse", BAD)
    world.states = {0.1: "failed"}
    with pytest.raises(CampaignFailed, match="baseline cannot be compared"):
        small.propose("good", GOOD)
    assert len(small.standing().judged) == 1
    world.states = {}
    assert small.propose("good", GOOD, retry=True).number == 2


def test_a_proposal_that_is_slower_than_allowed_is_rejected(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path, slower=1.5)
    judged = small.propose("good", GOOD)
    assert judged.verdict == "rejected"
    assert "its step_seconds is 3 times the base's" in judged.reason


def test_the_hours_of_a_campaign_end_it(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path, hours=0.08)
    small.propose("worse", BAD)  # nine runs of 36 seconds
    assert small.standing().hours == pytest.approx(0.09)
    with pytest.raises(UserError, match=r"has spent its 0\.08 hours"):
        small.propose("good", GOOD)


def test_a_proposal_meets_the_baseline_that_another_one_changed(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    small.propose("worst", "optimizer.lr=0.01")
    other = Campaign("small", outputs=tmp_path, say=quiet)
    world.during = lambda: other.propose("good", GOOD)
    slower = small.propose("slower", "optimizer.lr=0.2")  # better than the base, worse than `good`
    good = small.standing().kept[0]
    assert (good.proposal, good.number, good.baseline) == ("good", 2, 0)
    assert (slower.number, slower.baseline, slower.verdict) == (3, 1, "rejected")
    assert slower.alpha == pytest.approx(0.02)
    assert slower.before.values == {seed: pytest.approx(0.7, abs=0.04) for seed in slower.seeds}
    assert problems_of(small) == []


def test_a_keep_in_the_moment_of_the_verdict_is_noticed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = campaign(tmp_path)
    other = Campaign("small", outputs=tmp_path, say=quiet)
    judge = Campaign._judge
    calls: list[str] = []

    def judge_late(self: Campaign, *arguments: Any) -> Any:
        calls.append("")
        if len(calls) == 1:
            other.propose("good", GOOD)
        return judge(self, *arguments)

    monkeypatch.setattr(Campaign, "_judge", judge_late)
    slower = small.propose("slower", "optimizer.lr=0.2")  # better than the base, worse than `good`
    assert (slower.number, slower.baseline, slower.verdict) == (2, 1, "rejected")
    assert problems_of(small) == []


def test_the_number_of_a_judgement_is_taken_when_it_is_made(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    small.propose("worst", "optimizer.lr=0.01")
    other = Campaign("small", outputs=tmp_path, say=quiet)
    world.during = lambda: other.propose("worse", BAD)
    good = small.propose("good", GOOD)
    assert [judged.proposal for judged in small.standing().judged] == ["worst", "worse", "good"]
    assert (good.number, good.baseline) == (3, 0)
    assert problems_of(small) == []


def test_a_try_that_was_stopped_goes_on(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    small.propose("worst", "optimizer.lr=0.01")

    def stop() -> None:
        raise arms.StoppedError(130)

    world.during = stop
    with pytest.raises(arms.StoppedError):
        small.propose("good", GOOD)
    events = small.ledger.read()
    assert small.standing().begun["good"].seeds
    with pytest.raises(UserError, match=r"good began as optimizer.lr=0.3"):
        small.propose("good", "optimizer.lr=0.2")
    assert small.propose("good", GOOD).verdict == "kept"
    begun = [event for event in small.ledger.read() if event.event == "begun"]
    assert len(begun) == 2
    assert small.ledger.read()[: len(events)] == events


@pytest.fixture
def peeks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of test metrics that were read."""
    names: list[str] = []
    original = states.final_metrics

    class Sealed(dict[str, float]):
        def __getitem__(self, name: str) -> float:
            return self.get(name)  # type: ignore[return-value]

        def get(self, name: str, default: Any = None) -> Any:
            if name.startswith("test/"):
                names.append(name)
            return super().get(name, default)

    for module in (arms, audit, referee):
        monkeypatch.setattr(module, "final_metrics", lambda *args: Sealed(original(*args)))
    return names


def test_the_test_split_is_read_by_closing_alone(world: World, tmp_path: Path, peeks: list[str]) -> None:
    with pytest.raises(UserError, match="test split is sealed"):
        Campaign.create("peek", *BASE, metric="test/loss", outputs=tmp_path)
    with pytest.raises(UserError, match="a cost"):
        Campaign.create("peek", *BASE, metric="step_seconds", outputs=tmp_path)
    with pytest.raises(UserError, match=r"error=2.*\n.*tries=0.*\n.*first look comes after"):
        campaign(tmp_path, error=2, tries=0, first=9)
    small = campaign(tmp_path)
    small.propose("good", GOOD)
    small.propose("bad", BAD)
    assert problems_of(small) == []
    assert peeks == []
    closed = small.close()
    assert peeks == ["test/loss"] * 6
    assert closed.base == {seed: pytest.approx(2.9, abs=0.04) for seed in closed.base}
    assert closed.end == {seed: pytest.approx(2.7, abs=0.04) for seed in closed.end}
    assert small.close() == closed
    assert small.standing().looks == 2
    assert len(peeks) == 6
    events = small.ledger.read()
    assert isinstance(events[-3], Looked)  # before the values
    assert problems_of(small) == []
    with pytest.raises(UserError, match="is closed"):
        small.propose("late", "optimizer.lr=0.4")


def test_a_look_is_counted_before_it_is_taken(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = campaign(tmp_path)
    small.propose("good", GOOD)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(referee.Campaign, "_values", killed)
    with pytest.raises(KeyboardInterrupt):
        small.close()
    assert small.standing().looks == 1
    assert small.standing().closed is None


def change_last(key: str, value: Any) -> Callable[[list[dict[str, Any]]], object]:
    """Return a change of the last judgement."""

    def change(records: list[dict[str, Any]]) -> None:
        judged = [record for record in records if record["event"] == "judged"][-1]
        judged[key] = value(judged[key])

    return change


def swap_baseline(records: list[dict[str, Any]]) -> None:
    """Let the last judgement name the runs of the first baseline."""
    first, last = [record for record in records if record["event"] == "judged"]
    last["before"]["folders"] = first["before"]["folders"]


@pytest.fixture(scope="module")
def two_tries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a campaign with a proposal that was kept, and one that was not."""
    outputs = tmp_path_factory.mktemp("two_tries")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "run_plan", World().run_plan)
        small = campaign(outputs)
        small.propose("good", GOOD)
        small.propose("bad", BAD)
    return outputs


def drop_judgement(records: list[dict[str, Any]]) -> None:
    """Take the kept proposal out."""
    records.remove(next(record for record in records if record.get("verdict") == "kept"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_last("alpha", lambda alpha: alpha / 2), "1 keeps before it give 0.02"),  # the keep is not counted
        (change_last("alpha", lambda _: 0.1), "its level is 0.1"),  # the level is not lowered
        (change_last("number", lambda _: 1), "its number is 1"),
        (change_last("verdict", lambda _: "kept"), "do not reach the evidence"),
        (change_last("log_e", lambda log_e: log_e + 1), "its values give"),
        (change_last("baseline", lambda _: 0), "there were 1"),
        (change_last("seeds", lambda seeds: seeds[::-1]), "not the first ones"),
        (change_last("overrides", lambda _: ["norm=rms"]), "no beginning has its name and overrides"),
        (swap_baseline, "did not meet the runs of the baseline"),
        (drop_judgement, "met the baseline after 1 keeps, and there were 0"),
    ],
)
def test_a_changed_ledger_is_found(
    two_tries: Path, tmp_path: Path, change: Callable[[list[dict[str, Any]]], object], problem: str
) -> None:
    shutil.copytree(two_tries, tmp_path / "copy")
    small = Campaign("small", outputs=tmp_path / "copy")
    assert problems_of(small) == []
    rewritten(small, change)
    assert problem in "\n".join(problems_of(small))


def test_a_changed_run_is_found(world: World, tmp_path: Path) -> None:
    small = campaign(tmp_path)
    judged = small.propose("bad", BAD)
    path = tmp_path / judged.after.folders[judged.seeds[0]] / "summary.json"
    summary = json.loads(path.read_text())
    summary["metrics"]["val/loss"] -= 0.5
    path.write_text(json.dumps(summary))
    assert "the ledger" in "\n".join(problems_of(small))


def test_the_commands_print_and_return_what_the_functions_do(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"outputs={tmp_path}"
    rules = ["metric=val/loss", "tries=10", "error=0.1", "first=3", "most=6", "measure=3"]
    assert main(["campaign", "new", "small", *BASE, *rules, where]) == 0
    assert main(["campaign", "new", "small", *BASE, *rules, where]) == 2
    capsys.readouterr()
    assert main(["campaign", "try", "small", "good", GOOD, "--json", where]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "kept"
    assert main(["campaign", "try", "small", "bad", BAD, where]) == 3
    assert "bad: rejected; an effect within reach" in capsys.readouterr().out
    assert main(["campaign", "try", "small", "worse", "data=copy", where]) == 2
    assert main(["campaign", "verify", "small", where]) == 0
    assert main(["campaign", "show", "small", where]) == 0
    shown = capsys.readouterr().out
    assert "2 of 10 tries are judged, 1 kept; at most 0.1 of them expected to be false" in shown
    assert main(["campaign", "show", "small", "--json", where]) == 0
    assert json.loads(capsys.readouterr().out)["additions"] == [GOOD]
    assert main(["campaign", "close", "small", where]) == 0
    closed = capsys.readouterr().out
    assert "the test split was looked at 1 time\n" in closed
    assert "on the test split: +0.1966 test/loss [+0.1736, +0.2196] on 3 seeds" in closed
    rewritten(Campaign("small", outputs=tmp_path), change_last("alpha", lambda _: 0.5))
    assert main(["campaign", "verify", "small", where]) == 1


@pytest.mark.full
def test_a_campaign_trains_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    """The runs that a killed process has finished are found, and no level is spent."""
    where = f"outputs={tmp_path}"
    rules = ["metric=val/loss", "tries=4", "error=0.4", "first=2", "most=3", "measure=2"]
    assert main(["campaign", "new", "real", *SHORTEST, *rules, where]) == 0
    line = [sys.executable, "-m", "blockyard", "campaign", "try", "real", "rms", "norm=rms", where]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for text in process.stdout:
        if "done val/loss" in text:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert Campaign("real", outputs=tmp_path).standing().judged == []
    assert main(["campaign", "try", "real", "rms", "norm=rms", where]) in (0, 3)
    assert main(["campaign", "verify", "real", where]) == 0
    assert main(["campaign", "close", "real", where]) == 0
