"""Which attention kernel each layer really takes, and why a faster one was refused.

`record` runs one forward pass and asks torch, with the very tensors of the call, which backend of
`scaled_dot_product_attention` it takes (`torch._fused_sdp_choice`, the function torch itself asks).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from blockyard.contracts import Block, Context, Position, TokenMixer
from blockyard.ops.flex import refusal
from blockyard.ops.mask import OTHER_KEYS, STRICT, WINDOWED

NAMES = {
    SDPBackend.MATH.value: "math",
    SDPBackend.FLASH_ATTENTION.value: "flash",
    SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
    SDPBackend.CUDNN_ATTENTION.value: "cudnn",
    SDPBackend.OVERRIDEABLE.value: "device",
}

NO_DROPOUT = "the CPU's flash kernel has no dropout on the weights"
NO_GRADIENT = "the CPU's flash kernel gives a learned bias no gradient"
EAGER = "its weights are not a plain softmax, so they are made one by one"


class Record(TypedDict):
    """One layer: its path in the model, the kernel it takes, and why none faster ("" if none is)."""

    layer: str
    kernel: str
    reason: str


class _State:
    """What is being recorded; None outside `record`."""

    records: list[Record] | None = None
    layer: str = ""


def recording() -> bool:
    """Whether somebody listens."""
    return _State.records is not None


def note(kernel: str, why: list[str]) -> None:
    """Called by `attend` for each call it serves."""
    if _State.records is not None:
        _State.records.append({"layer": _State.layer, "kernel": kernel, "reason": "; ".join(why)})


def takes_groups(q: Tensor, mask: Tensor | None) -> bool:
    """Whether a fused kernel reads grouped keys in place; otherwise they are repeated first."""
    if q.device.type == "cuda":
        # Only flash does; the memory-efficient kernel, which masks and float32 need, does not.
        return mask is None and q.dtype in (torch.float16, torch.bfloat16)
    return q.device.type in ("cpu", "meta")


def taken(q: Tensor, k: Tensor, v: Tensor, why: list[str], settings: dict[str, Any]) -> tuple[str, list[str]]:
    """The name of the kernel torch takes for this call, and the reasons against a faster one."""
    if q.device.type == "meta":
        return "none", [*why, "nothing is computed on the meta device"]
    mask, rate, causal = settings["attn_mask"], settings["dropout_p"], settings["is_causal"]
    rest = {"scale": settings["scale"], "enable_gqa": settings["enable_gqa"]}
    name = NAMES[torch._fused_sdp_choice(q, k, v, mask, rate, causal, **rest)]
    if name in ("flash", "cudnn"):
        return name, why
    found = list(why)
    if q.device.type == "cpu" and rate:
        found.append(NO_DROPOUT)
    if q.device.type == "cpu" and mask is not None and mask.requires_grad:
        found.append(NO_GRADIENT)
    if q.device.type == "cuda":
        params = torch.backends.cuda.SDPAParams(q, k, v, mask, rate, causal, settings["enable_gqa"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.backends.cuda.can_use_flash_attention(params, debug=True)
        found += [str(item.message).split(" (Triggered")[0] for item in caught]
    return name, found


def expected(
    ctx: Context,
    position: type[Position] | Position,
    device: str,
    dtype: torch.dtype,
    dropout: float = 0.0,
    mixer: TokenMixer | None = None,
) -> tuple[str, str]:
    """The kernel a full forward pass is expected to take, and why none faster; known before any weight.

    `mixer` brings what is its own: a window, a strict order, other keys, other widths; None is plain attention.
    """
    if not getattr(mixer, "fused", True):
        return "eager", EAGER
    why, width = [], max(getattr(mixer, "head_dim", ctx.head_dim), getattr(mixer, "value_dim", ctx.head_dim))
    if "bias" in position.acts_on:
        why.append("a position bias is added to the scores")
    if ctx.tokens.variable:
        why.append("rows are padded")
    if ctx.data.packed:
        why.append("rows hold several segments")
    if ctx.causal and getattr(mixer, "slots", 0):
        why.append(OTHER_KEYS)
    if getattr(mixer, "window", None) is not None:
        why.append(WINDOWED)
    if getattr(mixer, "strict", False) and (why or not ctx.causal):
        why.append(STRICT)
    if why:
        refused = refusal(device, dtype, width, dropout)
        if refused is None:
            return "flex", "; ".join(why)
        why.append(refused)
    if device == "cuda":
        half = dtype in (torch.float16, torch.bfloat16)
        if half and not why and width <= 256:
            return "flash", ""
        if not half:
            why.append(f"flash takes float16 and bfloat16, not {str(dtype).removeprefix('torch.')}")
        return "efficient", "; ".join(why)
    if dropout:
        why.append(NO_DROPOUT)
    if "bias" in position.acts_on and isinstance(position, nn.Module) and list(position.parameters()):
        why.append(NO_GRADIENT)
    slow = NO_DROPOUT in why or NO_GRADIENT in why
    return "math" if slow else "flash", "; ".join(why)


@contextmanager
def named_layers(model: nn.Module) -> Iterator[None]:
    """While mixers of `model` run, `layer` says the path of the one that does."""
    handles = []
    for path, module in model.named_modules():
        if isinstance(module, (Block, TokenMixer)):
            # A fused block runs its mixer's parts without calling the mixer, so that the block speaks for it.
            name = f"{path}.token_mixer" if isinstance(module, Block) else path

            def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
                _State.layer = name

            handles.append(module.register_forward_pre_hook(enter))
    try:
        yield
    finally:
        _State.layer = ""
        for handle in handles:
            handle.remove()


def layer() -> str:
    """The path of the token mixer that runs; empty outside `named_layers`."""
    return _State.layer


@contextmanager
def _listen(model: nn.Module) -> Iterator[list[Record]]:
    """Collect what `attend` notes while mixers of `model` run, each under its path."""
    _State.records = []
    try:
        with named_layers(model):
            yield _State.records
    finally:
        _State.records = None


def record(model: nn.Module, *inputs: Any, **named: Any) -> list[Record]:
    """Run one forward pass and say, for every token mixer in order, which kernel it took and why.

    Mode (training or evaluation), autocast and whether gradients are kept are left as they are, since
    each can decide the kernel. A compiled model runs eagerly here.
    """
    with _listen(model) as records, torch.compiler.set_stance("force_eager"):
        model(*inputs, **named)
        heard = {entry["layer"] for entry in records}
        for path, module in model.named_modules():
            if isinstance(module, TokenMixer) and path not in heard:
                reason = f"{type(module).__name__} does not attend"
                records.append({"layer": path, "kernel": "none", "reason": reason})
        order = {path: place for place, (path, _) in enumerate(model.named_modules())}
        return sorted(records, key=lambda entry: order.get(entry["layer"], -1))
