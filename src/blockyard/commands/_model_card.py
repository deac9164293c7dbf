"""The model of a config as a table, counted on the meta device: nothing is allocated or read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from blockyard.config import layer_kinds
from blockyard.config.build import OPTIONAL, Components
from blockyard.config.size_matching import flops_by_module, state_bytes
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import locate
from blockyard.contracts import (
    ROLES,
    Block,
    ChannelMixer,
    Context,
    Embedder,
    Head,
    Position,
    Residual,
    Role,
    TextTokenizer,
    TokenMixer,
    active_parameters,
    iter_blocks,
    parameter_roles,
)
from blockyard.errors import first_line, fold
from blockyard.model._block_stack import BlockStack
from blockyard.model._carry import carried_text
from blockyard.model._part_names import is_in
from blockyard.ops.kernel import expected
from blockyard.ops.meta import without_compiler
from blockyard.terminal import console, table

# The family of a module, by its class. Any other module inside a block belongs to `block`, and else to `model`.
CLASSES: tuple[tuple[type, str], ...] = (
    (Embedder, "tokenizer"),
    (Position, "position"),
    (TokenMixer, "token_mixer"),
    (ChannelMixer, "channel_mixer"),
    (Residual, "residual"),
    (Head, "head"),
)
ORDER = (
    "tokenizer",
    "source_tokenizer",
    "position",
    "source_position",
    "model",
    "block",
    "residual",
    "layers",
    "token_mixer",
    "channel_mixer",
    "norm",
    "head",
    "parametrization",
)


def print_card(config: Node, choices: dict[str, str | None]) -> None:
    """Print component, choice, parameters and FLOPs, parameter groups, tokens and the attention kernel."""
    components = Components(config)
    ctx, model = components.context(), components.meta_model()
    parameters, flops, failure = _parameters(model, config), {}, None
    try:
        flops = _flops(model, ctx, config)
    except Exception as error:  # a user's own component that needs real tensors, or does not run at all
        failure = f"{type(error).__name__}: {error}"
    screen, rows = console(), table(None, "component", "choice", "parameters", "forward FLOPs per sample")
    for column in rows.columns[2:]:
        column.justify = "right"
    for family in ("data", *ORDER, "objective"):
        if family in OPTIONAL and family not in config:
            continue
        counts = (_format(count.get(family)) for count in (parameters, flops))
        rows.add_row(family, _choice(config, choices, family), *counts)
    total, active = sum(parameter.numel() for parameter in model.parameters()), active_parameters(model)
    rows.add_row("sum", "", _format(total), _format(sum(flops.values()) if flops else None), style="bold")
    screen.print(rows)
    screen.print()
    if "layers" in config:
        screen.print(_layers(components, config, choices))
        screen.print()
    unknown = None
    try:
        screen.print(_groups(components, model))
        screen.print()
    except Exception as error:  # a user's own optimizer that needs real tensors
        unknown = f"{type(error).__name__}: {error}"
    facts = (
        _facts(components, ctx, model)
        | ({"active": f"{active:,} of {total:,} parameters are used by one token"} if active < total else {})
        | _state(model, ctx)
        | _initial(components, model)
        | _teacher(components)
        | _newton_schulz(components)
        | ({"FLOPs": f"not counted ({failure})"} if failure else {})
        | ({"groups": f"not known ({unknown})"} if unknown else {})
    )
    for name, text in facts.items():
        screen.print(Text(f"{name:<12}{text}"))


def _layers(components: Components, config: Node, choices: dict[str, str | None]) -> Table:
    """The kinds of layers: which layers are of each, and their parts; of a stack with another depth its layers too."""
    architecture: Any = components.architecture
    depths = {"": architecture.depth, "encoder ": getattr(architecture, "encoder_depth", architecture.depth)}
    kinds: dict[str, dict[str, list[int]]] = {}
    for stack, depth in depths.items():
        if not stack or depth != architecture.depth:
            for layer, kind in enumerate(components.parts.kinds(depth)):
                kinds.setdefault(kind, {}).setdefault(stack, []).append(layer)
    rows = table(None, "kind", "layers", *layer_kinds.FAMILIES)
    for kind, layers in kinds.items():
        numbers = "; ".join(f"{stack}{','.join(map(str, numbers))}" for stack, numbers in layers.items())
        rows.add_row(kind, numbers, *layer_kinds.described(config, kind, choices).values())
    return rows


def _choice(config: Node, choices: dict[str, str | None], family: str) -> str:
    name = choices.get(family) or config[family]["_target_"]
    if family == "model":
        sizes = " ".join(f"{key}={config['model'][key]}" for key in ("dim", "depth", "heads") if key in config["model"])
        order = config["model"].get("order")
        return f"{name} ({sizes}{'' if order is None else ' order=' + ','.join(map(str, order))})"
    return str(name)


def _parameters(model: nn.Module, config: Node) -> dict[str, int]:
    """The number of parameters of each family, frozen ones included."""
    counts: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        counts[_family(path.rpartition(".")[0], model, config)] += parameter.numel()
    return dict(counts)


def _flops(model: nn.Module, ctx: Context, config: Node) -> dict[str, int]:
    """FLOPs of one forward pass of one full sample, by family. A fused block does its mixers' matmuls itself."""
    compiled = bool(config["trainer"].get("compile"))
    totals = {path: flops for path, flops in flops_by_module(model, ctx, compiled=compiled).items() if path}
    counts = dict.fromkeys(("token_mixer", "channel_mixer", "block"), 0) if list(iter_blocks(model)) else {}
    inside: Counter[str] = Counter()  # by the nearest module around that was called, which a list of modules is not
    for path, total in totals.items():
        parts = path.split(".")
        around = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        inside[next((each for each in around if each in totals), "")] += total
    for path, total in totals.items():
        own = total - inside[path]
        family = _family(path, model, config)
        if own or family in ("tokenizer", "source_tokenizer", "head"):
            counts[family] = counts.get(family, 0) + own
    return counts


def _family(path: str, model: nn.Module, config: Node) -> str:
    """The family of the module at a path: that of the outermost module around it that has one."""
    around = _around(path, model)
    for module in around:
        family = next((family for kind, family in CLASSES if isinstance(module, kind)), None)
        if family:
            of_source = f"source_{family}"  # where the config has one, that of the encoder, or of all that is read
            objective: Any = locate(str(config["objective"]["_target_"]))
            alone = objective.reads == "source"
            if of_source in config and (alone or path.startswith(("encoder.", "source."))):
                return of_source
            return family
    if any(isinstance(module, Block) for module in around):
        # A block's own modules (gates, scales) are defined in its own file; the others are norms.
        own = isinstance(around[-1], Block) or type(around[-1]).__module__.startswith("blockyard.block.")
        return "block" if own else "norm"
    if path.rpartition(".")[2].endswith("norm"):
        return "norm"
    return "model"


def _around(path: str, model: nn.Module) -> list[nn.Module]:
    """The modules that contain the one at a path, and that one, from the outside in; without the model itself."""
    names = path.split(".") if path else []
    return [model.get_submodule(".".join(names[: depth + 1])) for depth in range(len(names))]


def _state(model: nn.Module, ctx: Context) -> dict[str, str]:
    """The cache of a decoder after a full sequence; nothing of a model that has none."""
    try:
        count = state_bytes(model, ctx)
    except ValueError:  # no cache
        return {}
    except Exception as error:  # a mixer of the user's own may need real tensors
        return {"state": f"unknown: {type(error).__name__}: {first_line(error)}"}
    return {"state": f"{count:,} bytes of cache after {ctx.tokens.max_len:,} tokens, in float32"}


def _facts(components: Components, ctx: Context, model: nn.Module) -> dict[str, str]:
    tokens, tokenizer = ctx.tokens, components.tokenizer
    grid = f" ({' x '.join(map(str, tokens.grid))})" if tokens.grid else ", a set"
    prefix = f" + {ctx.num_prefix} in front" if ctx.num_prefix else ""
    facts = {"tokens": f"{tokens.max_len}{prefix} per sample{grid}, {ctx.dim} wide"}
    if ctx.source is not None:
        source = f" ({' x '.join(map(str, ctx.source.grid))})" if ctx.source.grid else ", a set"
        facts["source"] = f"{ctx.source.max_len} tokens{source}"
    if tokens.vocabulary:
        unfitted = isinstance(tokenizer, TextTokenizer) and tokenizer.learns and tokenizer.state() == {}
        learned = ", at most: it is learned from the training split" if unfitted else ""
        facts["vocabulary"] = f"{tokens.vocabulary} tokens{learned}"
    carried = [f"{path}: {text}" if path else text for path, text in _carried(model)]
    if carried:
        facts["carried"] = "; ".join(carried)
    if ctx.parametrization.scales:
        factors = {
            place: ctx.parametrization.factor(place, ctx) for place in ("logits", "scores", "branch", "embedding")
        }
        wide = f"{ctx.width_ratio:.4g} times as wide as its base"
        facts["size"] = f"{wide}; factors: {', '.join(f'{place} {value:.4g}' for place, value in factors.items())}"
    kernels = _kernels(ctx, model, components.config["trainer"])
    if kernels:
        alike = len(kernels) == 1
        layers = [text if alike else f"{n} layer{'s' * (n > 1)}: {text}" for text, n in kernels.items()]
        facts["attention"] = "; ".join(layers)
    return facts


def _carried(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The path of each stack of blocks whose layers take something of earlier ones, and what, by block."""
    for path, module in model.named_modules():
        if isinstance(module, BlockStack) and module.carry.used:
            yield path, carried_text(module.carry, module.order)


def _initial(components: Components, model: nn.Module) -> dict[str, str]:
    """Return the parts that are trained, if not all are, and the source of the first weights."""
    every = list(model.parameters())
    trained = sum(p.numel() for p in every if p.requires_grad)
    total = sum(p.numel() for p in every)
    facts = {"trained": f"{trained:,} of {total:,} parameters"} if trained < total else {}
    if components.init is None:
        return facts
    components.init.prepare_tokenizers(components)
    transfer = components.init.transfer(components, components.meta_model(adapted=False))
    return facts | ({"init": f"from {components.init.name}: {transfer}"} if transfer is not None else {})


def _teacher(components: Components) -> dict[str, str]:
    """The model whose predictions are targets too, and what its forward pass costs."""
    distillation = components.objective.distillation
    if distillation is None:
        return {}
    from blockyard.weights.teacher import flops

    share, temperature = distillation.weight, distillation.temperature
    cost = f"{flops(components):,} forward FLOPs per sample in each step"
    return {"teacher": f"{distillation.teacher}: {share:g} of the loss, at temperature {temperature:g}; {cost}"}


def _newton_schulz(components: Components) -> dict[str, str]:
    """The type that an optimizer's Newton-Schulz computes in; empty for an optimizer without it."""
    arithmetic = getattr(components.optimizer, "arithmetic", None)
    if arithmetic:
        return {"optimizer": f"Newton-Schulz in {arithmetic}"}
    return {}


def _groups(components: Components, model: nn.Module) -> Table:
    """The parameter groups of the optimizer: what is in them, and their learning rate and weight decay.

    With a parametrization also the roles of the weights.
    """
    scales = components.parametrization.scales
    columns = ("roles",) if scales else ()
    groups = table(None, "parameter group", *columns, "parameters", "learning rate", "weight decay")
    for column in groups.columns[1 + len(columns) :]:
        column.justify = "right"
    roles: dict[int, set[Role | None]] = {}  # a table that the head shares is an input and an output
    for _, parameter, role in parameter_roles(model):
        roles.setdefault(id(parameter), set()).add(role)
    names = {id(p): name for name, p in model.named_parameters()}
    with without_compiler():
        optimizer = components.optimizer.build(model)
    for group in optimizer.param_groups:
        parts = fold(_covering([names[id(p)] for p in group["params"]], list(names.values())))
        count = sum(p.numel() for p in group["params"])
        held = ", ".join(role for role in ROLES if any(role in roles[id(p)] for p in group["params"]))
        own = (held,) if scales else ()
        groups.add_row(parts, *own, _format(count), f"{group['lr']:.4g}", f"{group.get('weight_decay', 0.0):.4g}")
    return groups


def _covering(members: list[str], names: list[str]) -> list[str]:
    """Dotted names that match these parameters and no others of a model; `*` stands for numbers of blocks."""
    inside, covered = set(members), []
    for name in members:
        parts = name.split(".")
        prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        covered.append(next(p for p in prefixes if all(n in inside for n in names if is_in(n, [p]))))
    starred = [re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in covered]
    whole = [all(name in inside for name in names if is_in(name, [star])) for star in starred]
    return list(dict.fromkeys(star if fits else name for name, star, fits in zip(covered, starred, whole, strict=True)))


def _kernels(ctx: Context, model: Any, trainer: Node) -> dict[str, int]:
    """The attention kernel to expect, and in how many layers. trainer: its options."""
    named = trainer.get("attention", "auto")
    mixers = [m for m in model.modules() if isinstance(m, TokenMixer) and not m.holds]
    attending = [m for m in mixers if "scores" in m.traits.ports]
    if trainer.get("strategy") == "context" and attending:
        return {"ring kernel (trainer.strategy=context)": len(attending)}
    if named != "auto" and attending:
        return {f"{named} kernel (trainer.attention={named})": len(attending)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    kernels: Counter[str] = Counter()
    towers = [module for module in model.modules() if isinstance(module, BlockStack)]
    placed = [(scheme, mixer) for tower in towers for scheme, mixers in tower.placed_mixers() for mixer in mixers]
    positions = {part: scheme for scheme, mixer in placed for part in mixer.modules()}
    for mixer in attending:
        kernel, reason = expected(
            ctx, positions.get(mixer, model.position), device, dtype, getattr(mixer, "dropout", 0.0), mixer
        )
        kernels[f"{kernel} kernel expected on {device}{f' ({reason})' if reason else ''}"] += 1
    return dict(kernels)


def _format(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
