"""Refusals of trainer.strategy=context: it cuts every sequence among processes (`ops.ring`)."""

from __future__ import annotations

from torch import nn

from blockyard.contracts import ChannelMixer, DataSpec, Objective
from blockyard.head.token import Token
from blockyard.model._transformer import Transformer
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.windowed_attention import WindowedAttention

CONTEXT = "trainer.strategy=context"
USE_DDP = "use trainer.strategy=ddp"


def plan_problem(world: int, attention: str, compiled: bool, precision: object) -> str | None:
    """Return why other options of the trainer exclude it, or None."""
    if world < 2:
        return f"{CONTEXT} cuts sequences among processes and there is one; use trainer.devices=2, or trainer=auto"
    if attention not in ("auto", "online"):
        return f"{CONTEXT} computes attention by a ring and trainer.attention={attention} cannot; use auto"
    if compiled:
        return f"{CONTEXT} does not work with trainer.compile=true: its backward pass is not compiled; use false"
    if precision == "16-mixed":
        return f"{CONTEXT} does not work with trainer.precision=16-mixed; use bf16-mixed or 32"
    return None


def sequence_problems(data: DataSpec, objective: Objective) -> list[str]:
    """Return why sequences of this data cannot be cut, a sentence each."""
    obstacles = []
    if data.packed:
        obstacles.append("packs several documents into a sequence")
    if data.variable:
        obstacles.append("pads sequences of different lengths")
    if data.source is not None or data.joined:
        obstacles.append("has a source beside each sequence")
    if data.modality != "text":
        obstacles.append(f"has {data.things}, and only texts are cut")
    cuts = f"{CONTEXT} cuts sequences of one length and one document"
    problems = [f"{cuts}, and this data {obstacle}; {USE_DDP}" for obstacle in obstacles]
    if objective.takes != "token":
        problems.append(
            f"{CONTEXT} needs a target for each token, and this objective has one for the sequence; {USE_DDP}"
        )
    return problems


def model_problems(model: nn.Module, world: int) -> list[str]:
    """Return why a built model cannot be trained on parts of its sequences, a sentence each."""
    if type(model) is not Transformer or model.sees != "past":
        return [f"{CONTEXT} is for model=decoder and model=encoder over one sequence; {USE_DDP}"]
    problems = []
    others = [type(mixer) for mixer in model.mixers if type(mixer) not in (Attention, WindowedAttention)]
    if any(isinstance(module, ChannelMixer) and module.reads_sequence for module in model.modules()):
        problems.append(
            f"{CONTEXT} cuts sequences, and experts with a capacity or of route=expert read whole ones; {USE_DDP}"
        )
    if others or len(model.mixers) < len(model.blocks):
        problem = "a block has none"
        if others:
            problem = f"{others[0].__module__.rpartition('.')[2]} does not"
        problems.append(
            f"{CONTEXT} needs token_mixer=attention or windowed_attention in every block, whose keys and values can "
            f"travel, and {problem}; {USE_DDP}"
        )
    elif any(getattr(mixer, "dropout", 0.0) for mixer in model.mixers):
        problems.append(f"{CONTEXT} has no dropout on attention weights; use token_mixer.dropout=0")
    elif any(getattr(mixer, "conv", None) is not None for mixer in model.mixers):
        problems.append(f"{CONTEXT} cuts sequences, and a short convolution reads over the cut; use token_mixer.conv=0")
    elif any(_counts_otherwise(mixer) for mixer in model.mixers):
        problems.append(
            f"{CONTEXT} counts the keys of a token by its index, and token_mixer.score_scale=log_n counts those of a "
            "window or of a bidirectional model otherwise; use a causal model without windows, or another score_scale"
        )
    if model.position.varies:
        problems.append(
            f"{CONTEXT} cuts sequences, and each process would draw other positions for its part; use "
            "position.shift=0, position.jitter=1 and position.rescale=1"
        )
    if model.prefix is not None:
        problems.append(f"{CONTEXT} does not cut class and register tokens; use model.prefix without them")
    if type(model.head) is not Token:
        problems.append(f"{CONTEXT} needs head=token: every process has only its own tokens; {USE_DDP}")
    if any(getattr(module, "across_tokens", False) for module in model.modules()):
        problems.append(f"{CONTEXT} does not work with a norm over all tokens of a batch; use norm=layer or rms")
    length = model.ctx.tokens.max_len
    if length < 2 * world:
        problems.append(
            f"{CONTEXT} cuts a sequence into two chunks for each of {world} processes, and it has {length} tokens; "
            "use fewer devices or longer sequences"
        )
    return problems


def _counts_otherwise(mixer: nn.Module) -> bool:
    """Return whether its scores depend on the number of keys of a token, and the token's index does not tell it."""
    if not isinstance(mixer, Attention) or not mixer.scores.by_count:
        return False
    return mixer.window is not None or not mixer.causal
