"""A killed run goes on as if nothing had happened: equal to the last bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.engine import evaluator
from blockyard.engine.callbacks import loop
from blockyard.runs.folder import RunFolder
from blockyard.runs.metrics import MetricsWriter
from tests.support.engine_runs import assert_same_bits, folder, killed_at, run, state
from tests.support.tiny import steps

pytestmark = pytest.mark.xdist_group("engine_resume")  # its runs are made once

TOTAL = 16
# Of an epoch and a half, with evaluations and checkpoints in both.
MORE = ("callbacks.checkpoint.every=3", "data.train_size=640", *steps(TOTAL, 4))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("whole"), *MORE)


@pytest.mark.parametrize(
    ("workers", "kills"),
    [
        (2, [11]),
        # The first kill is in the default suite with a row after it, in the test of such rows.
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((0, [5]), (0, [1, 13]), (2, [2, 4, 10, 15]))),
    ],
)
def test_a_run_killed_at_any_step_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: RunFolder, workers: int, kills: list[int]
) -> None:
    overrides = (*MORE, f"trainer.num_workers={workers}")
    for step in kills:
        assert killed_at(step, tmp_path, *overrides) == -signal.SIGKILL
        assert RunFolder.open(next(tmp_path.glob("*/s0"))).status.state == "interrupted"
    run_folder = run(tmp_path, *overrides)
    assert run_folder.status.state == "done"
    assert_same_bits(run_folder, undisturbed)


SOUND = (
    *("data=dial_tones", "data.samples=16", "data.eval_samples=4", "data.batch_size=4", "tokenizer=char"),
    *("source_tokenizer=log_mel", "source_tokenizer.mask_bands=8", "position=rope", "model=encoder", "head=token"),
    *("trainer.group=2", "trainer.max_steps=6", "trainer.eval_every=3", "callbacks.checkpoint.every=2"),
)


# masked_contrast hides spans and draws the others by the code of quantized_contrast.
@pytest.mark.parametrize(
    "objective",
    ["quantized_contrast", *(pytest.param(name, marks=pytest.mark.full) for name in ("ctc", "masked_contrast"))],
)
def test_a_killed_run_on_sounds_ends_with_the_same_bits(tmp_path: Path, objective: str) -> None:
    """With batches by length, masks that are drawn and spans that are hidden."""
    overrides = (*SOUND, f"objective={objective}", *(["head=contrast"] if objective == "quantized_contrast" else []))
    whole = run(tmp_path / "whole", *overrides)
    assert killed_at(5, tmp_path / "killed", *overrides) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *overrides), whole)


def test_rows_that_were_logged_after_the_last_checkpoint_are_logged_again(
    tmp_path: Path, undisturbed: RunFolder
) -> None:
    assert killed_at(5, tmp_path, *MORE) == -signal.SIGKILL
    (table,) = tmp_path.glob("*/s0/metrics.csv")
    assert RunFolder.open(table.parent).status.state == "interrupted"
    writer = MetricsWriter(table)
    writer.append(6, {"train/loss": 9.0})
    writer.close()
    assert_same_bits(run(tmp_path, *MORE), undisturbed)


def test_every_batch_has_random_streams_of_its_own_and_no_evaluation_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of a run, and those of one that was killed after the evaluation at step 4, from there on."""

    def calls(folder: Path) -> list[str]:
        return (folder / "calls").read_text().splitlines()

    def recorded(module: object, name: str, text: Callable[..., str], folder: Path) -> None:
        original = getattr(module, name)

        def record(*args: object, **options: object) -> object:
            with (folder / "calls").open("a") as file:
                file.write(text(*args) + "\n")
            return original(*args, **options)

        monkeypatch.setattr(module, name, record)

    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        with monkeypatch.context() as monkeypatch:
            recorded(loop, "reseed", lambda _device, _seed, part, batch, _rank: f"{part} {batch}", tmp_path / name)
            recorded(evaluator, "evaluate", lambda *_: "evaluation", tmp_path / name)
            if name == "killed":
                assert killed_at(4, tmp_path / name, *MORE) == -signal.SIGKILL
            run(tmp_path / name, *MORE)
    whole, resumed = calls(tmp_path / "whole"), calls(tmp_path / "killed")
    assert [call for call in whole if call.startswith("train")] == [f"train {number}" for number in range(TOTAL)]
    assert resumed == whole[whole.index("train 4") :]


@pytest.mark.full
@pytest.mark.parametrize("step", range(TOTAL))
def test_a_run_killed_at_this_step_ends_with_the_same_bits(tmp_path: Path, undisturbed: RunFolder, step: int) -> None:
    assert killed_at(step, tmp_path, *MORE) == -signal.SIGKILL
    assert_same_bits(run(tmp_path, *MORE), undisturbed)


MASKED = (
    *("data=code", "data.context=16", "data.batch_size=8", "tokenizer=byte", "position=rope", "head=token"),
    *("objective=masked_token", *MORE, "data.train_size=null", *steps(12, 4)),
)


def test_what_an_objective_draws_is_drawn_again(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", *MASKED)
    assert killed_at(7, tmp_path / "killed", *MASKED) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *MASKED), whole)


def test_draws_that_follow_the_process_and_not_the_update_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockyard.engine.loader import Layout

    calls = iter(range(1000))
    monkeypatch.setattr(Layout, "draw_key", lambda self, step: next(calls))
    whole = run(tmp_path / "whole", *MASKED)
    assert killed_at(7, tmp_path / "killed", *MASKED) == -signal.SIGKILL
    with pytest.raises(AssertionError):
        assert_same_bits(run(tmp_path / "killed", *MASKED), whole)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_step_it_strikes_in_and_the_run_goes_on(
    tmp_path: Path, undisturbed: RunFolder, signum: int, code: int
) -> None:
    assert killed_at(6, tmp_path, *MORE, signum=signum) == code
    run_folder = folder(tmp_path, *MORE)
    with run_folder:
        assert run_folder.resumes
        # The signal came in the 7th update, which was finished and saved.
        assert state(run_folder).keys() == state(undisturbed).keys()
        from blockyard.runs.checkpoint import newest_good

        assert newest_good(run_folder.checkpoints).step == 7
    assert_same_bits(run(tmp_path, *MORE), undisturbed)


def test_a_signal_during_evaluation_is_made_up_for(tmp_path: Path, undisturbed: RunFolder) -> None:
    import os

    from blockyard.engine import evaluator
    from blockyard.engine.run import train
    from tests.support.fork import forked

    def work() -> int:
        evaluate = evaluator.evaluate

        def struck(*arguments: object, **settings: object) -> dict[str, float]:
            os.kill(os.getpid(), signal.SIGTERM)
            return evaluate(*arguments, **settings)

        evaluator.evaluate = struck
        return train(folder(tmp_path, *MORE))

    assert forked(work) == 143
    run_folder = folder(tmp_path, *MORE)
    with run_folder:
        assert run_folder.resumes
        assert run_folder.status.step == 4
    assert_same_bits(run(tmp_path, *MORE), undisturbed)


def test_a_run_stopped_between_its_last_step_and_its_summary_only_needs_the_summary(tmp_path: Path) -> None:
    import json
    import os

    from blockyard.engine import summary as module
    from blockyard.engine.run import train
    from tests.support.fork import forked

    def work() -> int:
        summarize = module.summarize
        module.summarize = lambda job: os.kill(os.getpid(), signal.SIGTERM) or summarize(job)
        return train(folder(tmp_path, *MORE))

    assert forked(work) == 143
    run_folder = run(tmp_path, *MORE)
    summary = json.loads((run_folder.path / "summary.json").read_text())
    assert summary["steps"] == run_folder.status.step == TOTAL
    assert summary["final"]["step"] == TOTAL
    for key in ("step_seconds", "seconds_to_first_step", "seconds"):
        assert summary[key] > 0
    assert summary["kernels"]
    assert set(summary["metrics"]) == {"val/loss", "val/accuracy", "test/loss", "test/accuracy"}


def test_a_damaged_last_checkpoint_is_told_and_the_one_before_goes_on(
    tmp_path: Path, undisturbed: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    assert killed_at(11, tmp_path, *MORE) == -signal.SIGKILL
    path = next(tmp_path.glob("*/s0/checkpoints/last.ckpt"))
    path.write_bytes(path.read_bytes()[:-2000])
    assert_same_bits(run(tmp_path, *MORE), undisturbed)
    assert "last.ckpt cannot be used" in caplog.text


def test_a_random_stream_left_alone_is_caught(
    tmp_path: Path, undisturbed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: generators that are not set anew in each step."""
    from blockyard.engine.callbacks import loop

    monkeypatch.setattr(loop, "reseed", lambda *_: None)
    assert killed_at(5, tmp_path, *MORE) == -signal.SIGKILL
    run_folder = run(tmp_path, *MORE)
    with pytest.raises(AssertionError):
        assert_same_bits(run_folder, undisturbed)


def test_callbacks_of_a_resumed_run_see_the_best_so_far(tmp_path: Path) -> None:
    overrides = (*MORE, "callbacks.best._target_=tests.engine.callbacks.best_so_far.BestSoFar", "allow=[tests]")
    overrides = (*overrides, "trainer.log_every=1", "trainer.max_steps=9")
    whole = run(tmp_path / "whole", *overrides)
    assert killed_at(5, tmp_path / "killed", *overrides) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *overrides), whole)


def test_running_statistics_go_on_where_they_stood(tmp_path: Path) -> None:
    """Those of a batch norm; neither looking for kernels nor validating moves them."""
    overrides = (*MORE, "norm=batch", "trainer.max_steps=9")
    whole = run(tmp_path / "whole", *overrides)
    assert killed_at(5, tmp_path / "killed", *overrides) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *overrides), whole)
