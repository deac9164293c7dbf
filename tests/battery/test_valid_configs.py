"""Random valid configs: what `check` accepts trains, evaluates to what it recorded, and resumes with the same bits."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.battery.cases import battery, cases
from tests.battery.valid_configs import COMMON, SAVED, draw, drawn_choices, experiments
from tests.support.fork import forked

# In one worker, which looks once for the experiments whose data is here.
pytestmark = [battery("valid_configs"), pytest.mark.xdist_group("valid_configs")]

NUMBER = 320


def _folder(outputs: Path, overrides: list[str]) -> Any:
    from tests.support.engine_runs import folder

    typed = {override.partition("=")[0] for override in overrides}
    return folder(
        outputs, *overrides, base=tuple(override for override in COMMON if override.partition("=")[0] not in typed)
    )


def _train(outputs: Path, overrides: list[str], *, until: int | None = None) -> int:
    """Train in this process; `until` ends it by SIGKILL in the step after that one."""
    from blockyard.engine.callbacks.loop import LoopCallback
    from blockyard.engine.run import train

    if until is not None:
        original = LoopCallback.on_train_batch_start

        def strike(self: LoopCallback, *arguments: Any) -> None:
            original(self, *arguments)
            if self.state.step > until:
                os.kill(os.getpid(), signal.SIGKILL)

        LoopCallback.on_train_batch_start = strike  # type: ignore[method-assign]
    run_folder = _folder(outputs, overrides)
    return train(run_folder, resume=run_folder.resumes)


def _whole_run(folder: Path, overrides: list[str]) -> int:
    """Train a config and evaluate it."""
    from blockyard.evaluate.api import evaluate
    from blockyard.runs.folder import RunFolder

    code = _train(folder / "whole", overrides)
    assert code == 0
    (run_json,) = (folder / "whole").rglob("run.json")
    recorded, again = RunFolder.open(run_json.parent).summary()["metrics"], evaluate(run_json.parent)
    assert again
    assert {name: recorded[name] for name in again} == again
    return 0


def _resumed_run(folder: Path) -> int:
    """Go on after the kill, and compare with the run that was never killed."""
    from blockyard.runs.folder import RunFolder
    from tests.support.engine_runs import assert_same_bits

    overrides = json.loads((folder / "overrides").read_text())
    assert _train(folder / "killed", overrides) == 0
    runs = [RunFolder.open(next((folder / name).rglob("run.json")).parent) for name in ("whole", "killed")]
    assert_same_bits(*runs)
    return 0


def _in_a_fork(folder: Path, work: Callable[[], int]) -> int:
    """The exit code of `work`; what it raises goes to a file."""

    def reported() -> int:
        stream = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        try:
            return work()
        except Exception:
            (folder / "raised").write_text(traceback.format_exc())
            return 1

    return forked(reported, limit=1200)


@pytest.mark.full
@pytest.mark.parametrize("case", cases(range(NUMBER), short=1))
def test_a_valid_config_trains_evaluates_and_resumes(case: int, tmp_path: Path) -> None:
    def report() -> str:
        return "\n".join(
            path.read_text() for name in ("overrides", "raised", "output") if (path := tmp_path / name).exists()
        )

    overrides = draw(case)
    (tmp_path / "overrides").write_text(json.dumps(overrides))
    assert _in_a_fork(tmp_path, lambda: _whole_run(tmp_path, overrides)) == 0, report()
    assert _in_a_fork(tmp_path, lambda: _train(tmp_path / "killed", overrides, until=SAVED)) == -signal.SIGKILL, (
        report()
    )
    assert _in_a_fork(tmp_path, lambda: _resumed_run(tmp_path)) == 0, report()


def test_every_choice_has_its_turn() -> None:
    assert len(drawn_choices()) < NUMBER
    assert len(experiments()) > 8
