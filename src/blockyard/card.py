"""The model of a config as a table, counted on the meta device: nothing is allocated or read."""

from __future__ import annotations

from typing import Any

import torch
from rich.text import Text
from torch import nn

from blockyard.assemble import Plan
from blockyard.contracts import Block, Context, TextTokenizer, TokenMixer
from blockyard.engine.cost import counter
from blockyard.ops.kernel import expected
from blockyard.verbs._screen import console, table

# A part of the model by the first words of a weight's path; what is inside a block by the words after its number.
ROWS = {"embedder": "tokenizer", "position": "position", "prefix": "model", "final_norm": "norm", "head": "head"}
IN_BLOCK = {"token_mixer": "token_mixer", "channel_mixer": "channel_mixer"}
ORDER = ("tokenizer", "position", "block", "token_mixer", "channel_mixer", "norm", "head")


def print_card(config: dict[str, Any], choices: dict[str, str | None]) -> None:
    """Print component, choice, parameters and FLOPs per sample, then tokens and the attention kernel."""
    plan = Plan(config)
    ctx, model = plan.context(), plan.sketch()
    weights, flops, why = _weights(model), {}, None
    try:
        flops = _flops(model, ctx)
    except Exception as error:  # a component of the user's own that needs real tensors, or does not run at all
        why = f"{type(error).__name__}: {error}"
    screen, rows = console(), table(None, "component", "choice", "parameters", "FLOPs per sample")
    for column in rows.columns[2:]:
        column.justify = "right"
    for family in ("data", *ORDER[:2], "model", *ORDER[2:], "objective"):
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
        family = _family(path, model)
        counts[family] = counts.get(family, 0) + weight.numel()
    return counts


def _family(path: str, model: nn.Module) -> str:
    first, *rest = path.split(".")
    if first == "blocks":
        named = next((IN_BLOCK[word] for word in rest[1:2] if word in IN_BLOCK), None)
        owner = model.get_submodule(".".join(path.split(".")[:3])) if len(rest) > 2 else None
        return named or ("norm" if owner is not None and not isinstance(owner, Block) else "block")
    return ROWS.get(first, "model")


def _flops(model: nn.Module, ctx: Context) -> dict[str, int]:
    """FLOPs of one forward pass of one full sample, by family. A fused block does its mixers' matmuls itself."""
    length = ctx.tokens.max_len
    with torch.device("meta"):
        inputs = torch.zeros(1, length, dtype=torch.long) if ctx.tokens.vocabulary else torch.zeros(1, *ctx.data.shape)
    with torch.no_grad(), counter() as counted:
        model.eval()(inputs)
    by_module = {path: sum(ops.values()) for path, ops in counted.get_flop_counts().items()}
    root = type(model).__name__
    found: dict[str, int] = {}
    for path, total in by_module.items():
        words = path.removeprefix(f"{root}.").split(".")
        if path.startswith(f"{root}.") and words[0] in ROWS and len(words) == 1:
            found[ROWS[words[0]]] = found.get(ROWS[words[0]], 0) + total
        elif words[0] == "blocks" and len(words) == 2:
            inside = {name: by_module.get(f"{path}.{name}", 0) for name in IN_BLOCK}
            for name, count in inside.items():
                found[name] = found.get(name, 0) + count
            found["block"] = found.get("block", 0) + total - sum(inside.values())
    return found


def _facts(plan: Plan, ctx: Context, model: nn.Module) -> dict[str, str]:
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
        each = [text if len(said) == 1 else f"{count} layers: {text}" for text, count in said.items()]
        facts["attention"] = "; ".join(each)
    return facts


def _count(number: int | None) -> str:
    return f"{number:,}" if number else "-" if number is None else "0"
