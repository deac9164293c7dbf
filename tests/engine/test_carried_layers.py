"""Runs whose layers read values and keys of earlier ones, or other streams: checkpointed, and on two processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
import torch
from torch import nn

from blockyard.engine.module import checkpoint_blocks
from blockyard.errors import UserError
from blockyard.runs.load import load
from blockyard.weights.convert.exporting import export_weights
from tests.battery import ranks
from tests.components.model.carried_models import built
from tests.support.engine_runs import assert_same_bits, rows, run
from tests.support.fork import forked
from tests.support.helpers import LENGTH, choices, tiny, token_ids
from tests.support.tiny import ONE_BATCH, TEXT

CARRIED = (
    *("model.depth=4", "token_mixer.kv_every=2", "token_mixer.value_residual=learned"),
    *("token_mixer.value_embedding=all", "token_mixer.dropout=0.0"),
)
SHORT = ("trainer.max_steps=6", "trainer.eval_every=3", "trainer.log_every=3")
BASE = (*TEXT, "tokenizer=char", *CARRIED, *SHORT)


@pytest.mark.full
def test_a_checkpointed_run_has_the_same_bits(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", base=BASE)
    again = run(tmp_path / "again", "trainer.checkpoint_blocks=true", base=BASE)
    assert plain.identity == again.identity
    assert_same_bits(plain, again)


def test_checkpointing_keeps_no_keys_of_every_layer() -> None:
    """A block that reads nothing is given nothing, so that its second pass keeps no tensor of an earlier block."""
    model = built(setting="keys").train()
    checkpoint_blocks(model)
    carried: list[tuple[int, set[str]]] = []
    for index, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda _, arguments, n=index: carried.append((n, set(arguments[1].carry))))
    model(token_ids(2, LENGTH))
    assert [names for index, names in carried if index in (0, 2)] == [set()] * 3
    assert [names for index, names in carried if index in (1, 3)] == [{"keys_and_values"}] * 3


@pytest.mark.full
def test_two_processes_follow_the_loss_of_one(tmp_path: Path) -> None:
    one = run(tmp_path / "one", base=BASE)
    base = tuple(override for override in BASE if not override.startswith("trainer="))
    work = ranks.two(tmp_path / "two", "ddp", "trainer.accelerator=cpu", "trainer.devices=2", base=base)
    assert forked(work) == 0
    two = ranks.only_run(tmp_path / "two")
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    assert two.identity == one.identity


@pytest.mark.full
def test_other_libraries_have_no_place_for_it(tmp_path: Path) -> None:
    """An export names the options; the same model without them is a Llama."""
    llama = ("preset=llama", "data=code", "objective=next_token", "logger=none", "callbacks=quiet", "trainer=cpu")
    sizes = ("model.dim=16", "model.depth=2", "model.heads=2", "data.context=16", "data.batch_size=2")
    base = (*llama, *sizes, "trainer.max_steps=1", "trainer.eval_every=null", *ONE_BATCH)
    for name, options in {"plain": (), "carried": ("token_mixer.value_residual=mixed",)}.items():
        loaded = load(run(tmp_path / name, *options, base=base).path)
        if not options:
            export_weights(loaded, tmp_path / "exported", kind="hf")
            continue
        with pytest.raises(UserError, match=r"token_mixer\.value_residual='mixed', expected 'none'"):
            export_weights(loaded, tmp_path / "refused", kind="hf")


# What is carried past blocks whose weights are sharded: values of earlier layers, or streams of each kind.
PAST_BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "carry": partial(built, position="rope"),
    **{name: partial(tiny, residual=name, sizes={"depth": 3, "order": (0, 1, 2, 1)}) for name in choices("residual")},
}


def _shard(rank: int, folder: Path) -> int:
    """One of two processes: gradients of models whose blocks are sharded, checkpointed and not."""
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    results = []
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for make, checkpointed in product(PAST_BLOCKS.values(), (False, True)):
        model = make().train()
        if checkpointed:
            checkpoint_blocks(model)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(token_ids(4, LENGTH)[2 * rank : 2 * rank + 2]).square().sum().backward()
        grads = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
        results.append([grad * 2 for grad in grads])  # the sum over processes
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()
    return 0


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    model(token_ids(4, LENGTH)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.full
def test_sharded_blocks_have_the_same_gradients(tmp_path: Path) -> None:
    """What leaves a block by the side takes its gradient back through a block whose weights are sharded."""
    with ThreadPool(2) as pool:
        assert pool.map(forked, [partial(_shard, rank, tmp_path) for rank in range(2)]) == [0, 0]
    sharded = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for number, make in enumerate(PAST_BLOCKS.values()):
        expected = gradients_of(make().train())
        for grads in (results[2 * number + checkpointed] for results in sharded for checkpointed in (0, 1)):
            for gradient, expected_gradient in zip(grads, expected, strict=True):
                torch.testing.assert_close(gradient, expected_gradient)
