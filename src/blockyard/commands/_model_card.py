"""The model of a config as a table, counted on the meta device: nothing is allocated or read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from rich.text import Text
from torch import nn

from blockyard.config.build import Components
from blockyard.contracts import (
    Block,
    ChannelMixer,
    Context,
    Embedder,
    Head,
    Position,
    TextTokenizer,
    TokenMixer,
    iter_blocks,
)
from blockyard.model._example_batch import example
from blockyard.ops.flops import counter
from blockyard.ops.kernel import expected
from blockyard.terminal import console, table

# A part of the model by what it is, wherever it lies; what is none of these is `block` inside one, else the model's.
KINDS: tuple[tuple[type, str], ...] = (
    (Embedder, "tokenizer"),
    (Position, "position"),
    (TokenMixer, "token_mixer"),
    (ChannelMixer, "channel_mixer"),
    (Head, "head"),
)
ORDER = ("tokenizer", "position", "model", "block", "token_mixer", "channel_mixer", "norm", "head")


def print_card(config: dict[str, Any], choices: dict[str, str | None]) -> None:
    """Print component, choice, parameters and FLOPs per sample, then tokens and the attention kernel."""
    plan = Components(config)
    ctx, model = plan.context(), plan.meta_model()
    weights, flops, why = _weights(model), {}, None
    try:
        flops = _flops(model, ctx)
    except Exception as error:  # a component of the user's own that needs real tensors, or does not run at all
        why = f"{type(error).__name__}: {error}"
    screen, rows = console(), table(None, "component", "choice", "parameters", "FLOPs per sample")
    for column in rows.columns[2:]:
        column.justify = "right"
    for family in ("data", *ORDER, "objective"):
        rows.add_row(family, _choice(config, choices, family), *(_count(of.get(family)) for of in (weights, flops)))
    rows.add_row(
        "sum",
        "",
        _count(sum(p.numel() for p in model.parameters())),
        _count(sum(flops.values()) if flops else None),
        style="bold",
    )
    screen.print(rows)
    screen.print()
    facts = _facts(plan, ctx, model) | ({"FLOPs": f"not counted ({why})"} if why else {})
    for name, text in facts.items():
        screen.print(Text(f"{name:<12}{text}"))


def _choice(config: dict[str, Any], choices: dict[str, str | None], family: str) -> str:
    name = choices.get(family) or config[family]["_target_"]
    if family == "model":
        sizes = " ".join(f"{key}={config['model'][key]}" for key in ("dim", "depth", "heads") if key in config["model"])
        return f"{name} ({sizes})"
    return str(name)


def _weights(model: nn.Module) -> dict[str, int]:
    counts: dict[str, int] = {}
    for path, weight in model.named_parameters():
        family = _family(path.rpartition(".")[0], model)
        counts[family] = counts.get(family, 0) + weight.numel()
    return counts


def _family(path: str, model: nn.Module) -> str:
    """The family of the part at a path: that of the outermost part around it that has one."""
    inside = _around(path, model)
    for module in inside:
        named = next((family for kind, family in KINDS if isinstance(module, kind)), None)
        if named:
            return named
    if any(isinstance(module, Block) for module in inside):
        # What a block has of its own (gates, scales) are modules of its own file; the rest are norms.
        wired = isinstance(inside[-1], Block) or type(inside[-1]).__module__.startswith("blockyard.block.")
        return "block" if wired else "norm"
    return "norm" if path.rpartition(".")[2].endswith("norm") else "model"


def _around(path: str, model: nn.Module) -> list[nn.Module]:
    """The modules that hold the one at a path, and that one, from the outside in; the model itself is left out."""
    words = path.split(".") if path else []
    return [model.get_submodule(".".join(words[: n + 1])) for n in range(len(words))]


def _flops(model: nn.Module, ctx: Context) -> dict[str, int]:
    """FLOPs of one forward pass of one full sample, by family. A fused block does its mixers' matmuls itself."""
    with torch.no_grad(), counter() as counted:
        model.eval()(**example(replace(ctx, tokens=replace(ctx.tokens, variable=False)), "meta"))
    root = f"{type(model).__name__}."
    totals = {
        path.removeprefix(root): sum(ops.values())
        for path, ops in counted.get_flop_counts().items()
        if path.startswith(root)
    }
    found = dict.fromkeys(("token_mixer", "channel_mixer", "block"), 0) if list(iter_blocks(model)) else {}
    for path, total in totals.items():
        inner = [held for held in totals if held.rpartition(".")[0] == path]
        own = total - sum(totals[held] for held in inner)
        family = _family(path, model)
        if own or family in ("tokenizer", "head"):
            found[family] = found.get(family, 0) + own
    return found


def _facts(plan: Components, ctx: Context, model: nn.Module) -> dict[str, str]:
    tokens, text = ctx.tokens, isinstance(plan.tokenizer, TextTokenizer)
    grid = f" ({' x '.join(map(str, tokens.grid))})" if tokens.grid else ", a set"
    prefix = f" + {ctx.num_prefix} in front" if ctx.num_prefix else ""
    facts = {"tokens": f"{tokens.max_len}{prefix} per sample{grid}, {ctx.dim} wide"}
    if tokens.vocabulary:
        learned = ", at most: it is learned from the training part" if text and plan.tokenizer.state() == {} else ""
        facts["vocabulary"] = f"{tokens.vocabulary} symbols{learned}"
    attending = [m for m in model.modules() if isinstance(m, TokenMixer) and "scores" in m.traits.ports]
    if attending:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        said = {}
        for mixer in attending:
            kernel, why = expected(ctx, model.position, device, dtype, getattr(mixer, "dropout", 0.0), mixer)
            text = f"{kernel} kernel expected on {device}{f' ({why})' if why else ''}"
            said[text] = said.get(text, 0) + 1
        each = [text if len(said) == 1 else f"{count} layer{'s' * (count > 1)}: {text}" for text, count in said.items()]
        facts["attention"] = "; ".join(each)
    return facts


def _count(number: int | None) -> str:
    return f"{number:,}" if number else "-" if number is None else "0"
