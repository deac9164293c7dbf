"""What differs in a model's layers, flows between them and follows from roles is the same over two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.battery import ranks
from tests.support.engine_runs import rows, run
from tests.support.fork import forked
from tests.support.tiny import TEXT

MUP = ("parametrization=mup", "parametrization.base_dim=4", "parametrization.base_depth=1")
BASE = (
    *(*TEXT, "tokenizer=char", "optimizer.lr=0.03", "optimizer.rates.head=0.1", "optimizer.weight_decay=0.1"),
    *("schedule=constant", "trainer.max_steps=6", "trainer.eval_every=3", "trainer.log_every=1"),
)


# Kinds of layers, shared depth, streams between blocks, values of the first layer, and experts.
LAYERS = (
    *("model.depth=3", "model.order=[0,1,2,1]", "residual=hyper", "token_mixer.value_residual=mixed"),
    *("layers.pattern=[near,base]", "position=rope", "channel_mixer=experts", "channel_mixer.count=2"),
    "layers.kinds.near=[token_mixer=windowed_attention,token_mixer.window=3,token_mixer.value_residual=mixed,position=alibi]",
)
# Weights that are brought to length one after each step, whole or in shards.
SPHERE = (
    *("block=sphere", "norm=none", "model.unit_weights=true", "channel_mixer=glu", "channel_mixer.gains=sqrt_dim"),
    *("token_mixer.qk_norm=sphere", "head.gain=true"),
)
# Optimizers with norms of whole matrices, and one whose fused kernel knows no shards. Sums over processes round
# otherwise, which bfloat16 makes larger than the tolerance.
HYPERBALL = ("optimizer=hyperball", "optimizer.arithmetic=float32")
SGD = ("optimizer=sgd", "optimizer.lr=0.1")
ABILITIES = {"roles": MUP, "layers": LAYERS, "sphere": SPHERE, "hyperball": HYPERBALL, "sgd": SGD}


@pytest.mark.parametrize("kind", [pytest.param("ddp", marks=pytest.mark.full), "fsdp", "context"])
@pytest.mark.parametrize("ability", ABILITIES)
@pytest.mark.sampled(100)
def test_two_processes_follow_the_loss_of_one(tmp_path: Path, kind: str, ability: str) -> None:
    overrides = ABILITIES[ability]
    one = run(tmp_path / "one", *overrides, base=BASE)
    base = tuple(override for override in BASE if not override.startswith("trainer="))
    work = ranks.two(tmp_path / "two", kind, "trainer.accelerator=cpu", "trainer.devices=2", *overrides, base=base)
    assert forked(work) == 0
    losses = rows(ranks.only_run(tmp_path / "two"))
    assert len(losses) > 3
    for left, right in zip(losses, rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    standard = rows(run(tmp_path / "standard", base=BASE))
    assert standard[-1]["train/loss"] != pytest.approx(rows(one)[-1]["train/loss"], rel=1e-2)
