"""A run that learns from a teacher: what it may learn from, what its bits depend on, and where the teacher is not."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

import blockyard
from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, Inputs
from blockyard.engine.module import Learner
from blockyard.engine.plain_trainer import TrainerModule
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import TOKENIZER, RunFolder
from blockyard.runs.resume import reopen
from blockyard.weights.sources import find_source, read_weights
from blockyard.weights.teacher import load_teacher
from tests.battery import ranks
from tests.support.engine_runs import assert_same_bits, killed_at, rows, run, state, text_run
from tests.support.every import every
from tests.support.fork import forked
from tests.support.helpers import stir
from tests.support.plain_trainers import same, trainer, weights
from tests.support.tiny import SHORTEST, TEXT, TINY, steps
from tests.support.tolerances import FLOAT32_STEPS

pytestmark = pytest.mark.xdist_group("engine_teacher")  # its runs learn from one

SHORT = (*steps(12, 4), "callbacks.checkpoint.every=3")
SMALL = ("model.dim=8", "tokenizer.size=4")  # the teacher has other patches


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("teacher"), *steps(20, 10), "name=teacher")


def taught(source: RunFolder | Path, *overrides: str) -> tuple[str, ...]:
    path = source.path if isinstance(source, RunFolder) else source
    return (*SHORT, *SMALL, f"objective.teacher={path}", *overrides)


def texts(*overrides: str) -> list[str]:
    return [str(issue) for issue in check(compose([*TINY, *overrides]))]


@pytest.mark.full
def test_the_loss_of_a_step_is_that_of_the_targets_and_of_the_teacher(
    tmp_path: Path, teacher: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From both models' predictions of the same batch, by torch's own divergence."""
    losses: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = Learner.training_step
    loaded = blockyard.load(teacher.path).model

    def compare(self: Learner, batch: Batch, number: int) -> torch.Tensor:
        random = torch.get_rng_state()
        with torch.no_grad():
            own, guide = self.model(batch), loaded(batch)
        torch.set_rng_state(random)  # dropout draws again
        pair = [(each / 3).log_softmax(-1) for each in (own, guide)]
        divergence = 9 * F.kl_div(*pair, reduction="batchmean", log_target=True)
        loss = original(self, batch, number)
        losses.append((loss.detach(), 0.2 * F.cross_entropy(own, batch.target) + 0.8 * divergence))
        return loss

    monkeypatch.setattr(Learner, "training_step", compare)
    run(tmp_path, *taught(teacher, "objective.temperature=3", "objective.teacher_weight=0.8"))
    assert len(losses) == 12
    for loss, expected in losses:
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_a_teacher_is_in_no_checkpoint_and_keeps_its_weights(tmp_path: Path, teacher: RunFolder) -> None:
    before = {name: value.clone() for name, value in state(teacher, "best.ckpt").items()}
    learned, alone = run(tmp_path / "taught", *taught(teacher)), run(tmp_path / "alone", *SHORT, *SMALL)
    assert state(learned).keys() == state(alone).keys()
    assert not torch.equal(state(learned)["model.head.proj.weight"], state(alone)["model.head.proj.weight"])
    assert learned.summary()["parameters"] == alone.summary()["parameters"]
    own, plain = learned.summary()["flops_per_sample"], alone.summary()["flops_per_sample"]
    assert own["forward"] == plain["forward"]
    assert own["teacher"] == teacher.summary()["flops_per_sample"]["forward"] > 0
    assert own["training"] == plain["training"] + own["teacher"]
    assert every(torch.equal(value, before[name]) for name, value in state(teacher, "best.ckpt").items())
    facts = learned.facts()["teacher"]
    assert facts["parameters"] == teacher.summary()["parameters"]["total"]
    assert facts["sha256"] == learned.config["objective"]["teacher_sha256"]
    assert facts["notes"] == []


def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path: Path, teacher: RunFolder) -> None:
    whole = run(tmp_path / "whole", *taught(teacher))
    assert killed_at(7, tmp_path / "killed", *taught(teacher)) == -signal.SIGKILL
    (path,) = (tmp_path / "killed").glob("*/s0")
    with reopen(path) as run_folder:
        assert train(run_folder, resume=True) == 0
    assert_same_bits(RunFolder.open(path), whole)


@pytest.mark.full
def test_what_teaches_is_a_part_of_the_identity_and_where_it_lies_is_not(tmp_path: Path, teacher: RunFolder) -> None:
    own = tmp_path / "elsewhere" / teacher.path.parent.name / "s0"
    shutil.copytree(teacher.path, own)
    here, moved = (run(tmp_path / name, *taught(source)) for name, source in (("a", teacher), ("b", own)))
    assert here.identity == moved.identity
    assert_same_bits(here, moved)
    assert run(tmp_path / "c", *SHORT, *SMALL).identity != here.identity
    other = text_of_changed(own)
    assert "its config or weights are not those that the config names" in other[0]
    (tmp_path / "b").joinpath(moved.path.relative_to(tmp_path / "b"), "status.json").unlink()
    shutil.rmtree(own)
    with pytest.raises(UserError, match=r"objective.teacher: .*elsewhere"):
        reopen(moved.path)


def text_of_changed(path: Path) -> list[str]:
    """The problems of a run whose teacher has other weights than when its config was composed."""
    sha = compose([*TINY, f"objective.teacher={path}"]).config["objective"]["teacher_sha256"]
    content = read(path / "checkpoints" / "best.ckpt")
    content["state_dict"]["model.head.proj.bias"] += 1
    torch.save(content, path / "checkpoints" / "best.ckpt")
    return texts(f"objective.teacher={path}", f"objective.teacher_sha256={sha}")


@pytest.mark.full
def test_two_processes_follow_the_loss_of_one(tmp_path: Path, teacher: RunFolder) -> None:
    still = (*taught(teacher), "token_mixer.dropout=0", "data.shift=0")
    one = run(tmp_path / "one", *still)
    base = tuple(override for override in TINY if not override.startswith("trainer="))
    work = ranks.two(tmp_path / "two", "ddp", "trainer.accelerator=cpu", "trainer.devices=2", *still, base=base)
    assert forked(work) == 0
    two = ranks.only_run(tmp_path / "two")
    assert two.identity == one.identity
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    parts = run(tmp_path / "parts", *still, "trainer.accumulate=2")
    for left, right in zip(rows(parts), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


@pytest.mark.full
def test_a_trainer_of_the_users_own_ends_with_the_weights_of_a_run(tmp_path: Path, teacher: RunFolder) -> None:
    overrides = (*TINY, *taught(teacher))
    trained = run(tmp_path, *overrides, "trainer.threads=1", base=())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        module, data = blockyard.lightning(*overrides)
        trainer(module, tmp_path).fit(module, datamodule=data)
    finally:
        torch.set_num_threads(threads)
    assert same(weights(module), {k: v for k, v in state(trained).items() if k.startswith("model.")})


def test_a_module_from_a_checkpoint_finds_its_teacher(tmp_path: Path, teacher: RunFolder) -> None:
    trained = run(tmp_path, *TINY, *taught(teacher), base=())
    module = TrainerModule.load_from_checkpoint(trained.path)
    assert module.teacher is None  # predicting needs none
    trainer(module, tmp_path, max_steps=1).fit(module, datamodule=blockyard.lightning(*TINY)[1])
    assert module.teacher is not None
    assert module.teacher.sha256 == trained.facts()["teacher"]["sha256"]


MASKED = ("model=encoder", "objective=masked_token", "head=token")


@pytest.mark.sampled(100)
@pytest.mark.parametrize("task", ["next_token", "masked_token"])
def test_texts_are_read_with_the_tokenizer_of_the_teacher(task: str, tmp_path: Path) -> None:
    """Its text is another one, of which the run's own tokenizer would learn other token ids."""
    (tmp_path / "one.txt").write_text("the cat sat on the mat. " * 80)
    (tmp_path / "two.txt").write_text("zebras quickly jump over lazy foxes! " * 60)
    own = MASKED if task == "masked_token" else ()
    data = ("data=text_file", "tokenizer=char", *own)
    source = text_run(tmp_path / "teacher", *data, f"data.path={tmp_path / 'one.txt'}", "data.context=16")
    shorter = (*data, f"data.path={tmp_path / 'two.txt'}", "data.context=12", "model.dim=8")
    learned = text_run(tmp_path / "taught", *shorter, f"objective.teacher={source.path}")
    assert (learned.path / TOKENIZER).read_text() == (source.path / TOKENIZER).read_text()
    (note,) = learned.facts()["teacher"]["notes"]
    assert "other data" in note


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("objective.teacher=absent",), "objective.teacher: absent: no runs under"),
        (("objective=segment", "data=digit_canvas", "head=token"), "objective.teacher"),
        (("tokenizer=levels", "model=decoder", "head=token", "objective=next_token"), "trained for objective=classify"),
    ],
    ids=["absent", "without a teacher", "another task"],
)
def test_refused_before_anything_is_computed(overrides: tuple[str, ...], reason: str, teacher: RunFolder) -> None:
    issues = texts(f"objective.teacher={teacher.path}", *overrides)
    assert any(reason in issue for issue in issues), issues


def test_another_tokenizer_and_unfinished_runs_and_bare_weights_are_refused(tmp_path: Path) -> None:
    source = text_run(tmp_path, "tokenizer=char")
    named = f"objective.teacher={source.path}"
    (issue,) = (str(each) for each in check(compose([*TEXT, "tokenizer=byte", named])))
    assert issue.startswith("objective.teacher: its tokenizer is char and this run's byte")
    whole = ("tokenizer=char", "trainer=ddp", "trainer.devices=2", "trainer.strategy=context", named)
    (cut,) = (str(each) for each in check(compose([*TEXT, *whole])))
    assert "objective.teacher: the teacher reads whole sequences" in cut
    (longer,) = (str(each) for each in check(compose([*TEXT, "tokenizer=char", "data.context=32", named])))
    assert "its inputs have the shape [16], and this run's [32]" in longer
    save_file(dict(read_weights(find_source(str(source.path))).tensors), tmp_path / "w.safetensors")
    (bare,) = (
        str(each)
        for each in check(compose([*TEXT, "tokenizer=char", f"objective.teacher={tmp_path / 'w.safetensors'}"]))
    )
    assert "weights alone do not say what model they are of" in bare
    (source.path / "status.json").unlink()
    (open_run,) = (str(each) for each in check(compose([*TEXT, "tokenizer=char", named])))
    assert open_run.startswith("objective.teacher: ")
    assert "not finished" in open_run


@pytest.mark.full
def test_a_model_of_a_library_teaches_with_its_own_predictions(tmp_path: Path) -> None:
    small = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 16, "depth": 1}
    small["num_heads"] = 4
    library_model = stir(timm.create_model("vit_tiny_patch16_224", **small)).eval()
    save_file(library_model.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "model_args": small}
    (tmp_path / "config.json").write_text(json.dumps(config))
    composed = compose([*TINY, f"objective.teacher=timm:{tmp_path}"])
    assert check(composed) == []
    loaded = load_teacher(Components(composed.config))
    assert loaded is not None
    pictures = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(loaded(Inputs(pictures)), library_model(pictures), **FLOAT32_STEPS)
    learned = run(tmp_path / "runs", *SHORTEST, f"objective.teacher=timm:{tmp_path}", base=())
    assert learned.summary()["flops_per_sample"]["teacher"] > 0
