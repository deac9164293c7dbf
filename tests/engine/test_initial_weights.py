"""A run that starts from weights: what it takes, what it trains and when, and that a kill changes nothing of it."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch

from blockyard.engine.module import Learner
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from blockyard.weights.convert.exporting import export_weights
from blockyard.weights.lora import merged_state_dict
from blockyard.weights.sources import find_source, read_weights
from tests.support.engine_runs import assert_same_bits, config, folder, killed_at, run, state
from tests.support.every import every
from tests.support.tiny import SHORTEST, TEXT, steps
from tests.support.tolerances import float32

pytestmark = pytest.mark.xdist_group("engine_initial_weights")  # its runs start from one

SHORT = (*steps(12, 4), "callbacks.checkpoint.every=3")
FROZEN = ("init.freeze=[embedder,position,blocks,final_norm]", "data.shift=0")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("source"), *steps(20, 10))


def taken(run_folder: RunFolder) -> dict[str, torch.Tensor]:
    return dict(read_weights(find_source(str(run_folder.path), which="last")).tensors)


def changed(run_folder: RunFolder, source: RunFolder) -> set[str]:
    """The tensors of a run that are not those of the best weights of its source."""
    before = read_weights(find_source(str(source.path))).tensors
    return {name for name, tensor in taken(run_folder).items() if not torch.equal(tensor, before[name])}


@pytest.mark.full
def test_frozen_parts_keep_the_bits_of_the_source_and_the_rest_is_trained(tmp_path: Path, source: RunFolder) -> None:
    run_folder = run(tmp_path, *SHORT, f"init.from={source.path}", *FROZEN)
    assert changed(run_folder, source) == {"head.proj.weight", "head.proj.bias"}
    facts = run_folder.facts()["init"]
    assert facts["from"] == str(source.path)
    assert facts["sha256"] == read_weights(find_source(str(source.path))).sha256
    assert set(facts["taken"]) == taken(source).keys()
    assert facts["parameters"]["trainable"] == 16 * 10 + 10 < facts["parameters"]["total"]
    assert run_folder.summary()["parameters"] == facts["parameters"]


@pytest.mark.full
def test_a_head_of_another_task_is_drawn_from_the_seed(tmp_path: Path, source: RunFolder) -> None:
    remade = ("init.parts=[embedder,position,blocks,final_norm]", *FROZEN[1:])
    one, two = (run(tmp_path, *SHORT, f"init.from={source.path}", *remade, f"seed={seed}") for seed in (0, 1))
    assert "head.proj.weight" in one.facts()["init"]["outside"]
    assert not torch.equal(taken(one)["head.proj.weight"], taken(two)["head.proj.weight"])


THAWED = (*FROZEN, "init.unfreeze_at=5", "optimizer.layer_decay=0.7", "optimizer.rates={head: 2, blocks: 0.5}")
GRADUAL = (*FROZEN, "init.unfreeze_at=0.4", "init.unfreeze_every=2", "model.depth=2", "init.strict=false")
LORA = (
    *("init.lora.rank=2", "init.lora.alpha=8", "init.lora.layers=[token_mixer,channel_mixer]"),
    *("optimizer=muon", "optimizer.adamw_lr=1e-4", "optimizer.rates={head: 2}"),
)


@pytest.mark.sampled(100)
@pytest.mark.parametrize(
    ("overrides", "kills"), [(THAWED, (7,)), (GRADUAL, (2, 9)), (LORA, (7,))], ids=["thawed", "gradual", "lora"]
)
def test_a_run_that_was_killed_ends_with_the_same_bits(
    tmp_path: Path, source: RunFolder, overrides: tuple[str, ...], kills: tuple[int, ...]
) -> None:
    own = tmp_path / "source" / source.path.parent.name / "s0"
    shutil.copytree(source.path, own)
    arguments = (*SHORT, f"init.from={own}", *overrides)
    whole = run(tmp_path / "whole", *arguments)
    for step in kills:
        assert killed_at(step, tmp_path / "killed", *arguments) == -signal.SIGKILL
    plain, choices = config(tmp_path / "killed", *arguments)
    (path,) = (tmp_path / "killed").glob("*/s0")
    shutil.rmtree(own)  # a run that has begun needs its source no more
    from blockyard.runs.start import create_run

    with create_run(plain, command=["test"], choices=choices) as run_folder:
        assert train(run_folder, resume=True) == 0
    assert_same_bits(RunFolder.open(path), whole)
    assert not Path(own).exists()


def test_layers_are_trained_from_their_steps_on(
    tmp_path: Path, source: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, set[str]] = {}
    original = Learner.on_before_optimizer_step

    def note(self: Learner, optimizer: torch.optim.Optimizer) -> None:
        with_gradients = {name.split(".")[0] for name, p in self.model.named_parameters() if p.grad is not None}
        blocks = {name[:8] for name, p in self.model.named_parameters() if p.grad is not None and name[:6] == "blocks"}
        seen[self.step.number] = (with_gradients - {"blocks"}) | blocks
        original(self, optimizer)

    monkeypatch.setattr(Learner, "on_before_optimizer_step", note)
    run(tmp_path, *SHORT, f"init.from={source.path}", *GRADUAL)
    layers = [{"head"}, {"final_norm"}, {"blocks.1"}, {"blocks.0"}, {"embedder", "position"}]
    for step in range(12):
        trained = 1 + max(0, min((step - 2) // 2, 4))  # from step 4 on, another layer every 2 steps
        assert seen[step] == set().union(*layers[:trained]), step


def test_a_schedule_that_reaches_beyond_the_run_is_refused(tmp_path: Path, source: RunFolder) -> None:
    late = folder(tmp_path, *SHORT, f"init.from={source.path}", *FROZEN, "init.unfreeze_at=12")
    with late as run_folder, pytest.raises(UserError, match="from step 12 on, and the run has 12"):
        train(run_folder)
    assert run_folder.status.state == "queued"


@pytest.mark.full
def test_lora_trains_additions_and_the_head_and_merges(tmp_path: Path, source: RunFolder) -> None:
    run_folder = run(tmp_path, *SHORT, f"init.from={source.path}", *LORA[:3])
    saved = state(run_folder, "best.ckpt")
    before = read_weights(find_source(str(source.path))).tensors
    originals = [name for name in saved if name.endswith(".parametrizations.weight.original")]
    assert originals
    for name in originals:
        plain = name.removeprefix("model.").replace(".parametrizations.weight.original", ".weight")
        assert torch.equal(saved[name], before[plain])
        assert not torch.equal(taken(run_folder)[plain], before[plain])  # what a run starts from is merged
    loaded = load(run_folder.path)
    for name, tensor in merged_state_dict(loaded.model).items():
        torch.testing.assert_close(tensor, read_weights(find_source(str(run_folder.path))).tensors[name])
    trained = {name for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert every(".parametrizations.weight.0." in name or name.startswith("head.") for name in trained)
    assert run_folder.facts()["init"]["parameters"]["trainable"] == sum(
        p.numel() for p in loaded.model.parameters() if p.requires_grad
    )


def test_an_export_has_the_additions_in_its_weights_and_is_a_source(tmp_path: Path, source: RunFolder) -> None:
    run_folder = run(tmp_path, *SHORT, f"init.from={source.path}", *LORA[:3])
    expected = read_weights(find_source(str(run_folder.path))).tensors
    export_weights(load(run_folder.path), tmp_path / "exported", kind="safetensors")
    loaded = load(tmp_path / "exported")
    assert "init" not in loaded.config
    assert loaded.model.state_dict().keys() == expected.keys()
    for name, tensor in loaded.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], **float32(terms=4))
    further = run(tmp_path, *steps(2, 2), f"init.from={tmp_path / 'exported'}")
    assert set(further.facts()["init"]["taken"]) == expected.keys()  # the head too: it predicts the same


def test_weights_that_changed_after_the_config_was_made_are_refused(tmp_path: Path, source: RunFolder) -> None:
    own = tmp_path / "source" / source.path.parent.name / "s0"
    shutil.copytree(source.path, own)
    with folder(tmp_path / "runs", *SHORT, f"init.from={own}") as run_folder:
        shutil.copy(own / "checkpoints" / "previous.ckpt", own / "checkpoints" / "best.ckpt")
        with pytest.raises(UserError, match="are not those that the config names"):
            train(run_folder)


def test_token_ids_mean_what_they_meant_to_the_source(tmp_path: Path) -> None:
    """Also where the run's own text is another one, of which its tokenizer would learn others."""
    (tmp_path / "one.txt").write_text("the cat sat on the mat. " * 80)
    (tmp_path / "two.txt").write_text("zebras quickly jump over lazy foxes! " * 60)
    bpe = ("data=text_file", "tokenizer=bpe", "tokenizer.vocab_size=270", *steps(2, 2))
    source = run(tmp_path, *bpe, f"data.path={tmp_path / 'one.txt'}", base=TEXT)
    other = (*bpe, f"data.path={tmp_path / 'two.txt'}", "data.context=12")
    run_folder = run(tmp_path, *other, f"init.from={source.path}", base=TEXT)
    one, two = ((each.path / "tokenizer.json").read_bytes() for each in (source, run_folder))
    assert one == two
    assert not [name for name in run_folder.facts()["init"]["outside"] if name.startswith("head")]


def test_a_run_from_nothing_records_nothing(tmp_path: Path) -> None:
    assert "init" not in run(tmp_path, base=SHORTEST).facts()
