"""Checks of initial weights: options that contradict each other, and what does not fit a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from blockyard.config.build import Components
from blockyard.contracts import Issue
from blockyard.errors import UserError
from blockyard.schedule._warmup import check_length
from blockyard.weights.lora import Lora, linear_layers, tied_layer
from blockyard.weights.parts import unknown_part
from blockyard.weights.sources import Source

if TYPE_CHECKING:
    from blockyard.weights.init import Init

NO_LORA = Lora()


def check_options(init: Init) -> None:
    """Raise ValueError for options that have no effect together, or exclude each other."""
    if (init.parent is None) != (init.parent_sha256 is None):
        raise ValueError(
            "init.parent and init.parent_sha256 go together; `blockyard train resume=RUN trainer.max_steps=N` sets them"
        )
    if init.name is None:
        options = {
            "which": init.which != "best",
            "parts": init.parts is not None,
            "strict": not init.strict,
            "sha256": init.sha256,
        }
        idle = [f"init.{name}" for name, is_given in (options | {"lora.rank": init.lora.rank}).items() if is_given]
        if idle:
            raise ValueError(f"{', '.join(idle)}: nothing is taken without init.from; name a run or a file there")
    if init.lora.rank and (init.freeze or init.unfreeze_at is not None):
        raise ValueError("init.lora.rank freezes all but its additions and the head; leave init.freeze out")
    if not init.lora.rank and init.lora != NO_LORA:
        raise ValueError("init.lora.alpha and init.lora.layers have no effect with init.lora.rank=0; set a rank")
    if init.unfreeze_at is not None and not init.freeze:
        raise ValueError(f"init.unfreeze_at={init.unfreeze_at}: nothing is frozen; name parts in init.freeze")
    if init.unfreeze_every is not None and init.unfreeze_at is None:
        raise ValueError("init.unfreeze_every counts from init.unfreeze_at, which is not set")
    if init.unfreeze_at is not None:
        check_length("init.unfreeze_at", init.unfreeze_at)


def issues(init: Init, components: Components, model: nn.Module, *, starts: bool) -> Iterator[Issue]:
    """Yield everything about the source, the parts and the layers that does not fit a model; see `Init.issues`."""
    for key, parts in (("parts", init.parts or ()), ("freeze", init.freeze)):
        if problem := unknown_part(model, parts):
            yield Issue(f"init.{key}", problem)
            return
    if init.lora.rank and not linear_layers(model, init.lora.layers):
        yield Issue("init.lora.layers", f"no linear layer of the model is in {', '.join(init.lora.layers)}")
    elif init.lora.rank and (shared := tied_layer(model, init.lora.layers)):
        yield Issue(
            "init.lora.layers",
            f"{shared} shares its weight with another module (head.tied=true), and an addition would untie them; leave "
            "it out, or use head.tied=false",
        )
    elif not init.lora.rank and not init.trained(model):
        yield Issue("init.freeze", "leaves nothing to train; leave out a part, such as head")
    trainer = components.node("trainer")
    if init.lora.rank and trainer.sharded:
        yield Issue("init.lora.rank", "additions are not sharded; use trainer.strategy=ddp or one device")
    if init.unfreeze_at is not None and trainer.world > 1:
        yield Issue("init.unfreeze_at", "several processes agree at the start on what is trained; use one device")
    if starts and init.name is not None:
        try:
            source = init.source(components)
            yield from (Issue("init.from", text) for text in init.source_problems(components, model, source))
        except UserError as error:
            yield Issue("init.from", bare_reason(error))


def bare_reason(error: UserError) -> str:
    """The message of an error about a source, without the key that an issue names anyway."""
    return str(error).removeprefix("init.from: ").removeprefix("init.from=")


def check_hash(source: Source, expected: str | None, actual: str) -> None:
    """Raise UserError where the weights of a source are not those that the config names."""
    if expected not in (None, actual):
        raise UserError(
            f"init.from={source}: its weights are not those that the config names (sha256 {actual[:12]}..., expected "
            f"{str(expected)[:12]}...); restore them, or start anew without init.sha256"
        )
