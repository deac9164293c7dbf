"""The model of a config as a table, counted on the meta device: nothing is allocated or read."""

from __future__ import annotations

import re
from collections import Counter
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
    ctx = components.context()
    model = components.meta_model()
    parameters: Counter[str] = Counter()  # by family, frozen ones included
    for path, parameter in model.named_parameters():
        parameters[_family(path.rpartition(".")[0], model, config)] += parameter.numel()
    flops: dict[str, int] = {}
    uncounted = None
    try:
        flops = _flops(model, ctx, config)
    except Exception as error:  # a user's own component that needs real tensors, or does not run at all
        uncounted = f"{type(error).__name__}: {error}"
    screen = console()
    rows = table(None, "component", "choice", "parameters", "forward FLOPs per sample")
    for column in rows.columns[2:]:
        column.justify = "right"
    for family in ("data", *ORDER, "objective"):
        if family in OPTIONAL and family not in config:
            continue
        # Not by index, by which a Counter would show 0 parameters for a family without modules.
        choice = _choice(config, choices, family)
        rows.add_row(family, choice, _format(parameters.get(family)), _format(flops.get(family)))
    total = sum(parameters.values())
    total_flops = None
    if flops:
        total_flops = sum(flops.values())
    rows.add_row("sum", "", _format(total), _format(total_flops), style="bold")
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
    facts = _facts(components, ctx, model)
    active = active_parameters(model)
    if active < total:
        facts["active"] = f"{active:,} of {total:,} parameters are used by one token"
    facts |= _state(model, ctx)
    facts |= _initial(components, model)
    facts |= _teacher(components)
    arithmetic = getattr(components.optimizer, "arithmetic", None)
    if arithmetic:
        facts["optimizer"] = f"Newton-Schulz in {arithmetic}"
    if uncounted:
        facts["FLOPs"] = f"not counted ({uncounted})"
    if unknown:
        facts["groups"] = f"not known ({unknown})"
    for name, text in facts.items():
        screen.print(Text(f"{name:<12}{text}"))


def _layers(components: Components, config: Node, choices: dict[str, str | None]) -> Table:
    """Return a table of the kinds of layers with the layers and the parts of each.

    The layers of an encoder are listed too where its depth differs from the decoder's.
    """
    architecture: Any = components.architecture
    depths = {"": architecture.depth, "encoder ": getattr(architecture, "encoder_depth", architecture.depth)}
    layers_by_kind: dict[str, dict[str, list[int]]] = {}
    for stack, depth in depths.items():
        if not stack or depth != architecture.depth:
            for layer, kind in enumerate(components.parts.kinds(depth)):
                layers_by_kind.setdefault(kind, {}).setdefault(stack, []).append(layer)
    rows = table(None, "kind", "layers", *layer_kinds.FAMILIES)
    for kind, layers in layers_by_kind.items():
        numbers = "; ".join(f"{stack}{','.join(map(str, numbers))}" for stack, numbers in layers.items())
        rows.add_row(kind, numbers, *layer_kinds.described(config, kind, choices).values())
    return rows


def _choice(config: Node, choices: dict[str, str | None], family: str) -> str:
    """Return the name of a family's choice, for the model with its sizes; the class where the choice has no name."""
    name = choices.get(family) or config[family]["_target_"]
    if family != "model":
        return str(name)
    model = config["model"]
    sizes = " ".join(f"{key}={model[key]}" for key in ("dim", "depth", "heads") if key in model)
    order = model.get("order")
    if order is not None:
        sizes += f" order={','.join(map(str, order))}"
    return f"{name} ({sizes})"


def _flops(model: nn.Module, ctx: Context, config: Node) -> dict[str, int]:
    """Return the FLOPs of one forward pass of one full sample, by family.

    A fused block does its mixers' matmuls itself.
    """
    compiled = bool(config["trainer"].get("compile"))
    totals = flops_by_module(model, ctx, compiled=compiled)
    totals = {path: flops for path, flops in totals.items() if path}
    counts: dict[str, int] = {}
    if list(iter_blocks(model)):  # a fused block leaves its mixers nothing to compute, which is shown as 0
        counts = {"token_mixer": 0, "channel_mixer": 0, "block": 0}
    inside: Counter[str] = Counter()  # FLOPs of the modules that each module called
    for path, total in totals.items():
        caller = path.rpartition(".")[0]
        while caller and caller not in totals:  # a list of modules lies in the path, but is never called
            caller = caller.rpartition(".")[0]
        inside[caller] += total
    for path, total in totals.items():
        flops = total - inside[path]
        family = _family(path, model, config)
        if flops or family in ("tokenizer", "source_tokenizer", "head"):
            counts[family] = counts.get(family, 0) + flops
    return counts


def _family(path: str, model: nn.Module, config: Node) -> str:
    """Return the family of the module at a path: the family of the outermost module around it that has one."""
    around: list[nn.Module] = []  # from the outside in, without the model itself
    if path:
        names = path.split(".")
        around = [model.get_submodule(".".join(names[: depth + 1])) for depth in range(len(names))]
    for module in around:
        family = next((family for kind, family in CLASSES if isinstance(module, kind)), None)
        if family:
            # A separate tokenizer or position of the source is the encoder's, or serves all inputs where the
            # objective reads the source only.
            source_family = f"source_{family}"
            objective: Any = locate(str(config["objective"]["_target_"]))
            alone = objective.reads == "source"
            if source_family in config and (alone or path.startswith(("encoder.", "source."))):
                return source_family
            return family
    if any(isinstance(module, Block) for module in around):
        # A block's own modules (gates, scales) are defined in its own file; the others are norms.
        if isinstance(around[-1], Block) or type(around[-1]).__module__.startswith("blockyard.block."):
            return "block"
        return "norm"
    if path.rpartition(".")[2].endswith("norm"):
        return "norm"
    return "model"


def _state(model: nn.Module, ctx: Context) -> dict[str, str]:
    """Return the size of a decoder's cache after a full sequence; nothing for a model without a cache."""
    try:
        count = state_bytes(model, ctx)
    except ValueError:  # no cache
        return {}
    except Exception as error:  # a mixer of the user's own may need real tensors
        return {"state": f"unknown: {type(error).__name__}: {first_line(error)}"}
    return {"state": f"{count:,} bytes of cache after {ctx.tokens.max_len:,} tokens, in float32"}


def _facts(components: Components, ctx: Context, model: nn.Module) -> dict[str, str]:
    """Return the tokens, the vocabulary, the carried values, the size and the attention kernels of a model."""
    tokens = ctx.tokens
    prefix = ""
    if ctx.num_prefix:
        prefix = f" + {ctx.num_prefix} in front"
    facts = {"tokens": f"{tokens.max_len}{prefix} per sample{_grid(tokens.grid)}, {ctx.dim} wide"}
    if ctx.source is not None:
        facts["source"] = f"{ctx.source.max_len} tokens{_grid(ctx.source.grid)}"
    if tokens.vocabulary:
        tokenizer = components.tokenizer
        facts["vocabulary"] = f"{tokens.vocabulary} tokens"
        if isinstance(tokenizer, TextTokenizer) and tokenizer.learns and tokenizer.state() == {}:
            facts["vocabulary"] += ", at most: it is learned from the training split"
    carried = []
    for path, module in model.named_modules():
        if isinstance(module, BlockStack) and module.carry.used:
            text = carried_text(module.carry, module.order)
            carried.append(f"{path}: {text}" if path else text)
    if carried:
        facts["carried"] = "; ".join(carried)
    if ctx.parametrization.scales:
        factors = []
        for place in ("logits", "scores", "branch", "embedding"):
            factors.append(f"{place} {ctx.parametrization.factor(place, ctx):.4g}")
        facts["size"] = f"{ctx.width_ratio:.4g} times as wide as its base; factors: {', '.join(factors)}"
    kernels = _kernels(ctx, model, components.config["trainer"])
    if len(kernels) == 1:
        facts["attention"] = next(iter(kernels))
    elif kernels:
        layers = []
        for text, count in kernels.items():
            noun = "layer" if count == 1 else "layers"
            layers.append(f"{count} {noun}: {text}")
        facts["attention"] = "; ".join(layers)
    return facts


def _grid(sizes: tuple[int, ...] | None) -> str:
    """Return the sizes of a grid of tokens as a text; tokens without a grid are a set."""
    if sizes:
        return f" ({' x '.join(map(str, sizes))})"
    return ", a set"


def _initial(components: Components, model: nn.Module) -> dict[str, str]:
    """Return the parts that are trained, if not all are, and the source of the first weights."""
    facts = {}
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    if trained < total:
        facts["trained"] = f"{trained:,} of {total:,} parameters"
    if components.init is None:
        return facts
    components.init.prepare_tokenizers(components)
    transfer = components.init.transfer(components, components.meta_model(adapted=False))
    if transfer is not None:
        facts["init"] = f"from {components.init.name}: {transfer}"
    return facts


def _teacher(components: Components) -> dict[str, str]:
    """Return the teacher of a distillation, its share of the loss, its temperature and its FLOPs; empty without one."""
    distillation = components.objective.distillation
    if distillation is None:
        return {}
    from blockyard.weights.teacher import flops

    share = distillation.weight
    temperature = distillation.temperature
    cost = f"{flops(components):,} forward FLOPs per sample in each step"
    return {"teacher": f"{distillation.teacher}: {share:g} of the loss, at temperature {temperature:g}; {cost}"}


def _groups(components: Components, model: nn.Module) -> Table:
    """Return a table of the optimizer's parameter groups: their parameters, learning rate and weight decay.

    With a parametrization also the roles of the weights.
    """
    scales = components.parametrization.scales
    columns = ["parameter group", "parameters", "learning rate", "weight decay"]
    if scales:
        columns.insert(1, "roles")
    rows = table(None, *columns)
    for column in rows.columns[-3:]:
        column.justify = "right"
    roles: dict[int, set[Role | None]] = {}  # a table that the head shares is an input and an output
    for _, parameter, role in parameter_roles(model):
        roles.setdefault(id(parameter), set()).add(role)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with without_compiler():
        optimizer = components.optimizer.build(model)
    for group in optimizer.param_groups:
        members = [names[id(parameter)] for parameter in group["params"]]
        cells = [fold(_covering(members, list(names.values())))]
        if scales:
            group_roles = set().union(*(roles[id(parameter)] for parameter in group["params"]))
            cells.append(", ".join(role for role in ROLES if role in group_roles))
        cells.append(_format(sum(parameter.numel() for parameter in group["params"])))
        cells.append(f"{group['lr']:.4g}")
        cells.append(f"{group.get('weight_decay', 0.0):.4g}")
        rows.add_row(*cells)
    return rows


def _covering(members: list[str], names: list[str]) -> list[str]:
    """Return dotted names that match these parameters and no others of a model; `*` stands for numbers of blocks."""
    inside = set(members)

    def matches_only_members(pattern: str) -> bool:
        return all(name in inside for name in names if is_in(name, [pattern]))

    covering = []
    for name in members:
        parts = name.split(".")
        prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        shortest = next(prefix for prefix in prefixes if matches_only_members(prefix))
        starred = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", shortest)
        if matches_only_members(starred):
            covering.append(starred)
        else:
            covering.append(shortest)
    return list(dict.fromkeys(covering))


def _kernels(ctx: Context, model: Any, trainer: Node) -> dict[str, int]:
    """Return the attention kernels to expect, and in how many layers; trainer: the options of the trainer."""
    attention = trainer.get("attention", "auto")
    attending = []
    for module in model.modules():
        # A mixer that holds others computes no scores; the mixers inside it do.
        if isinstance(module, TokenMixer) and not module.holds and "scores" in module.traits.ports:
            attending.append(module)
    if trainer.get("strategy") == "context" and attending:
        return {"ring kernel (trainer.strategy=context)": len(attending)}
    if attention != "auto" and attending:
        return {f"{attention} kernel (trainer.attention={attention})": len(attending)}
    device = "cpu"
    dtype = torch.float32
    if torch.cuda.is_available():
        device = "cuda"
        dtype = torch.bfloat16
    positions: dict[nn.Module, Position | None] = {}  # the position of every mixer, as its stack has placed it
    for tower in model.modules():
        if isinstance(tower, BlockStack):
            for scheme, mixers in tower.placed_mixers():
                for mixer in mixers:
                    positions.update(dict.fromkeys(mixer.modules(), scheme))
    kernels: Counter[str] = Counter()
    for mixer in attending:
        position = positions.get(mixer, model.position)
        kernel, reason = expected(ctx, position, device, dtype, getattr(mixer, "dropout", 0.0), mixer)
        text = f"{kernel} kernel expected on {device}"
        if reason:
            text += f" ({reason})"
        kernels[text] += 1
    return dict(kernels)


def _format(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
