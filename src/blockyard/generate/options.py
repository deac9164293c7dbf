"""Validates the options of `blockyard generate` that need no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from blockyard.errors import UserError

MOST_DRAFT_TOKENS = 64
COLDEST, HOTTEST = 1e-6, 1e6  # temperatures by which single precision can divide scores


def read_lines(option: str, path: str) -> list[str]:
    """The non-empty lines of a file. Raises UserError naming the option where there are none."""
    try:
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option}={path}: cannot read the file ({error})") from error
    if not lines:
        raise UserError(f"{option}={path}: the file has no text")
    return lines


def check_options(max_tokens: int, beam: int | None, length_penalty: float | None, sampling: dict[str, Any]) -> None:
    """Raises UserError for a value out of range, and for one that has no effect with the others."""
    options = {name: value for name, value in sampling.items() if value is not None}
    ranges = {
        "temperature": (
            lambda v: v == 0 or COLDEST <= v <= HOTTEST,
            f"0, which takes the most likely token, or a number from {COLDEST:g} to {HOTTEST:g}",
        ),
        "top_k": (lambda v: v >= 0, "an integer >= 0 (0 keeps all tokens)"),
        "top_p": (lambda v: 0 < v <= 1, "a number in (0, 1]"),
        "seed": (lambda v: 0 <= v < 2**62, "an integer >= 0"),
    }
    if max_tokens < 1:
        raise UserError(f"max_tokens={max_tokens}: expected an integer >= 1")
    for name, value in options.items():
        is_valid, expected = ranges[name]
        if not is_valid(value):
            raise UserError(f"{name}={value}: expected {expected}")
    if beam is not None and beam < 1:
        raise UserError(f"beam={beam}: expected an integer >= 1")
    if length_penalty is not None and not 0 <= length_penalty < float("inf"):
        raise UserError(f"length_penalty={length_penalty}: expected a number >= 0")
    if length_penalty is not None and beam is None:
        raise UserError(f"length_penalty={length_penalty} has an effect in beam search only; add beam=4 to use it")
    if beam is not None and options:
        name, value = next(iter(options.items()))
        raise UserError(f"{name}={value} has no effect with beam={beam}: beam search does not sample; leave one out")
    unused = {name: value for name, value in options.items() if name != "temperature"}
    if options.get("temperature") == 0 and unused:
        name, value = next(iter(unused.items()))
        raise UserError(f"{name}={value} has no effect with temperature=0, which does not sample; leave one out")


def check_draft_options(draft: bool, draft_tokens: int | None, beam: int | None) -> None:
    """Raises UserError for options of speculative decoding that have no effect, or are out of range."""
    if draft_tokens is not None and not draft:
        raise UserError(f"draft_tokens={draft_tokens} has no effect without draft=RUN or draft=ngram")
    if draft_tokens is not None and not 1 <= draft_tokens <= MOST_DRAFT_TOKENS:
        raise UserError(f"draft_tokens={draft_tokens}: expected an integer from 1 to {MOST_DRAFT_TOKENS}")
    if draft and beam is not None:
        raise UserError(f"beam={beam} and draft= exclude each other: a beam search does not sample; leave one out")


def check_compiled(compiled: bool, others: dict[str, Any], cache: bool) -> None:
    """Raises UserError for compile=true with what reads more than one token in a pass, or keeps no cache.

    others: options that exclude it, by name; None where not given
    """
    if not compiled:
        return
    for name, value in others.items():
        if value is not None:
            reason = "reorders the caches" if name == "beam" else "reads more than one token in a pass"
            reason = "keeps the keys of its source outside the caches" if name == "sources" else reason
            raise UserError(f"compile=true and {name}= exclude each other: {name} {reason}; leave one out")
    if not cache:
        raise UserError("compile=true and cache=false exclude each other: a step without a cache grows; leave one out")


def check_device(device: str) -> None:
    """Raises UserError for a device that this machine does not have."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (":" in device and not number.isdecimal()):
        raise UserError(f"device={device}: expected cpu, cuda, or one of several such as cuda:1")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if int(number or 0) >= count:
        available = "no CUDA device" if kind == "cuda" and not count else f"{count} {kind} device{'s' * (count > 1)}"
        raise UserError(f"device={device}: this machine has {available}; use device=cpu")
