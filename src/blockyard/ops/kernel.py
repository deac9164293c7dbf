"""The attention kernel of each layer, the reasons against a faster one, and the choice of a kernel by name.

`trainer.attention` chooses for all calls:

    auto     the fastest that can serve, as `ops.attend` describes
    sdpa     torch's scaled_dot_product_attention, with a mask if one is needed
    flex     FlexAttention, on CUDA
    online   the online softmax by chunks of keys (`ops.online`): its memory grows with N and not with N^2
    eager    the formula, step by step: O(N^2) memory

`record` runs one forward pass and queries torch, with the tensors of each call, which backend of
`scaled_dot_product_attention` it takes (`torch._fused_sdp_choice`, which torch itself calls).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from blockyard.contracts import Block, Context, Position, TokenMixer
from blockyard.errors import UserError
from blockyard.ops.flex import FEW, FEWEST, refusal, refusal_of_scheme
from blockyard.ops.mask import BIASED, CHUNKED, OTHER_KEYS, PACKED, PADDED, STRICT, WINDOWED

Kernel = Literal["auto", "sdpa", "flex", "online", "eager"]

NAMES = {
    SDPBackend.MATH.value: "math",
    SDPBackend.FLASH_ATTENTION.value: "flash",
    SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
    SDPBackend.CUDNN_ATTENTION.value: "cudnn",
    SDPBackend.OVERRIDEABLE.value: "device",
}

NO_DROPOUT = "the CPU's flash kernel has no dropout on the weights"
NO_GRADIENT = "the CPU's flash kernel computes no gradient of a learned bias"
EAGER = "its weights are not a plain softmax, so no fused kernel computes them"

SHORT = 200  # keys, in `faster_in_float32`


class _Selected:
    """The kernel in force."""

    kernel: Kernel = "auto"


def selected() -> Kernel:
    """Return the name of the kernel in force; "auto" outside `attention_kernel`."""
    return _Selected.kernel


@contextmanager
def attention_kernel(name: Kernel) -> Iterator[None]:
    """Let all attention inside this context take the kernel of this name; it is refused if that cannot serve."""
    before = _Selected.kernel
    _Selected.kernel = name
    try:
        yield
    finally:
        _Selected.kernel = before


def refuse(name: str, layer: str, reason: str | None) -> None:
    """Raise UserError if there is a reason against a kernel that was chosen by name."""
    if reason is not None:
        where = f" in {layer}" if layer else ""
        raise UserError(f"trainer.attention={name} cannot serve{where}: {reason}; use trainer.attention=auto")


class Record(TypedDict):
    """One layer: its path in the model, its kernel, and the reason against a faster one ("" if none is faster)."""

    layer: str
    kernel: str
    reason: str


class _KernelState:
    """The records so far, None outside `record`; and the path of the layer that runs."""

    records: list[Record] | None = None
    layer: str = ""


def recording() -> bool:
    """Return whether kernels are being recorded."""
    return _KernelState.records is not None


def note(kernel: str, reasons: list[str]) -> None:
    """Record the kernel of one call of `attend`, or of another attention, and the reasons against a faster one."""
    if _KernelState.records is not None:
        _KernelState.records.append({"layer": _KernelState.layer, "kernel": kernel, "reason": "; ".join(reasons)})


@contextmanager
def as_one() -> Iterator[None]:
    """Record the calls inside this context as one, the first, for a mixer that calls `attend` more than once."""
    records = _KernelState.records
    before = 0 if records is None else len(records)
    yield
    if records is not None:
        del records[before + 1 :]


def faster_in_float32(q: Tensor, k: Tensor, allowed: Tensor | None) -> bool:
    """Return whether training in bfloat16 computes this attention in float32: short sequences without a mask on a CPU.

    torch's backward pass of flash attention on a CPU is slow there in bfloat16. CPU time of the backward pass in
    bfloat16 over the time in float32 with its casts, torch 2.14.1, one thread of an AMD EPYC, heads of 64 channels:

        keys    17    65    128   197   256         384
        ratio   3.1   2.2   1.4   1.2   0.85, 0.94  1.0
    """
    trains = torch.is_grad_enabled() and q.requires_grad
    return trains and q.device.type == "cpu" and q.dtype == torch.bfloat16 and allowed is None and k.shape[2] <= SHORT


def takes_groups(q: Tensor, mask: Tensor | None) -> bool:
    """Return whether a fused kernel reads grouped keys in place; otherwise they must be repeated."""
    if q.device.type == "cuda":
        # Only flash does; the memory-efficient kernel, which masks and float32 need, does not.
        return mask is None and q.dtype in (torch.float16, torch.bfloat16)
    return q.device.type in ("cpu", "meta")


def chosen(q: Tensor, k: Tensor, v: Tensor, reasons: list[str], settings: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the name of the kernel that torch takes for this call, and the reasons against a faster one."""
    if q.device.type == "meta":
        return "none", [*reasons, "nothing is computed on the meta device"]
    mask, rate, causal = settings["attn_mask"], settings["dropout_p"], settings["is_causal"]
    rest = {"scale": settings["scale"], "enable_gqa": settings["enable_gqa"]}
    name = NAMES[torch._fused_sdp_choice(q, k, v, mask, rate, causal, **rest)]
    if name in ("flash", "cudnn"):
        return name, reasons
    reasons = list(reasons)
    if q.device.type == "cpu" and rate:
        reasons.append(NO_DROPOUT)
    if q.device.type == "cpu" and mask is not None and mask.requires_grad:
        reasons.append(NO_GRADIENT)
    if q.device.type == "cuda":
        params = torch.backends.cuda.SDPAParams(q, k, v, mask, rate, causal, settings["enable_gqa"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.backends.cuda.can_use_flash_attention(params, debug=True)
        reasons += [str(item.message).split(" (Triggered")[0] for item in caught]
    return name, reasons


@contextmanager
def named_layers(model: nn.Module) -> Iterator[None]:
    """Let `layer` return the path of the running mixer of `model` inside this context."""
    handles = []
    for path, module in model.named_modules():
        if isinstance(module, (Block, TokenMixer)):
            # A fused block runs the parts of its mixer without calling the mixer, so the block sets the path.
            name = f"{path}.token_mixer" if isinstance(module, Block) else path

            def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
                _KernelState.layer = name

            handles.append(module.register_forward_pre_hook(enter))
    try:
        yield
    finally:
        _KernelState.layer = ""
        for handle in handles:
            handle.remove()


def layer() -> str:
    """Return the path of the token mixer that runs; empty outside `named_layers`."""
    return _KernelState.layer


@contextmanager
def _listen(model: nn.Module) -> Iterator[list[Record]]:
    """Collect the kernels that mixers of `model` note, each under the path of its layer."""
    _KernelState.records = []
    try:
        with named_layers(model):
            yield _KernelState.records
    finally:
        _KernelState.records = None


def record(model: nn.Module, *inputs: Any, **named: Any) -> list[Record]:
    """Run one forward pass; return the kernel of every token mixer in order, and the reasons against a faster one.

    The mode (training or evaluation), autocast and gradients stay as they are, since each can decide the kernel. A
    compiled model runs eagerly here.
    """
    with _listen(model) as records, torch.compiler.set_stance("force_eager"):
        model(*inputs, **named)
        recorded = {entry["layer"] for entry in records}
        for path, module in model.named_modules():
            if isinstance(module, TokenMixer) and not module.holds and path not in recorded:
                reason = f"{type(module).__name__} does not attend"
                records.append({"layer": path, "kernel": "none", "reason": reason})
        order = {path: number for number, (path, _) in enumerate(model.named_modules())}
        return sorted(records, key=lambda entry: order.get(entry["layer"], -1))


def expected(
    ctx: Context,
    position: type[Position] | Position,
    device: str,
    dtype: torch.dtype,
    dropout: float = 0.0,
    mixer: TokenMixer | None = None,
) -> tuple[str, str]:
    """Return the expected kernel of a forward pass over full sequences, and the reasons against a faster one.

    Runs nothing.

    mixer: its window, strict order, further keys, widths and cap count too; None is plain attention
    """
    if not getattr(mixer, "fused", True):
        return "eager", EAGER
    reasons, width = [], max(getattr(mixer, "head_dim", ctx.head_dim), getattr(mixer, "value_dim", ctx.head_dim))
    biased = bool({"bias", "relate"} & position.acts_on)
    if biased:
        reasons.append(BIASED)
    if ctx.tokens.variable:
        reasons.append(PADDED)
    if ctx.data.packed:
        reasons.append(PACKED)
    if ctx.causal and getattr(mixer, "slots", None):
        reasons.append(OTHER_KEYS)
    if getattr(mixer, "chunked", False):
        reasons.append(CHUNKED)
    elif getattr(mixer, "window", None) is not None:
        reasons.append(WINDOWED)
    shaped = getattr(mixer, "shapes_scores", None)
    if getattr(mixer, "strict", False) and (reasons or shaped or not ctx.causal):
        reasons.append(STRICT)
    if shaped:
        reasons.append(shaped)
    if reasons:
        refused = refusal(device, dtype, width, dropout) or (refusal_of_scheme(position) if biased else None)
        if refused is None and ctx.tokens.max_len + ctx.num_prefix < FEWEST:
            refused = FEW
        if refused is None:
            return "flex", "; ".join(reasons)
        reasons.append(refused)
        if shaped:
            return "eager", "; ".join(reasons)
    if device == "cuda":
        half = dtype in (torch.float16, torch.bfloat16)
        if half and not reasons and width <= 256:
            return "flash", ""
        if not half:
            reasons.append(f"flash takes float16 and bfloat16, not {str(dtype).removeprefix('torch.')}")
        return "efficient", "; ".join(reasons)
    if dropout:
        reasons.append(NO_DROPOUT)
    if biased and isinstance(position, nn.Module) and list(position.parameters()):
        reasons.append(NO_GRADIENT)
    slow = NO_DROPOUT in reasons or NO_GRADIENT in reasons
    return "math" if slow else "flash", "; ".join(reasons)
