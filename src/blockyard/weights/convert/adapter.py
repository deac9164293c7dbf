"""`blockyard export format=peft`: the additions of LoRA as an adapter of peft, for the library's model of the base.

Source: Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models (arXiv 2106.09685)
Reference: peft PeftModel.from_pretrained, LoraConfig
Equation: our W + s B A becomes the library's W' + s B' A; B' follows from the conversion rule of the weight

A rule may stack, split, reorder or scale the outputs of a layer, so several layers of the library may share A. Weights
that the run trained whole, such as those of its head, are stored whole (`modules_to_save`). The base is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.atomic_files import write_text
from blockyard.errors import UserError
from blockyard.runs.load import Loaded
from blockyard.runs.weights_file import write_weights
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.matching import match
from blockyard.weights.convert.rules import ConversionRule, convert_back
from blockyard.weights.convert.source import plain, read_source
from blockyard.weights.lora import ADDED, LowRank, added_parameters, merged, plain_name
from blockyard.weights.sources import library_folder, library_of

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every name in peft's file of weights
TASKS = {"ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM"}  # by the end of the class's name
DENSE = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")  # of a layer without experts
EXACT = 1e-9  # share of an addition, in float64, that B' A may miss


@dataclass(frozen=True)
class Adapter:
    """The content of an adapter, under the library's names.

    factors: module -> A (rank, in), B (out, rank); a layer of several of ours has the sum of their ranks
    whole: weights that replace those of the base
    fan_in_fan_out: whether the library stores the adapted weights as (in, out)
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    whole: dict[str, Tensor]
    fan_in_fan_out: bool


def write_adapter(loaded: Loaded, folder: Path, *, preset: str | None, near: str | None) -> list[str]:
    """Write the two files of an adapter, and return the lines for the user.

    preset, near: as in `match`

    Raises UserError for a run without additions, for a model that no class of transformers is like, and for an addition
    that a layer of the library cannot hold.
    """
    additions = _additions(loaded.model)
    if not additions:
        raise UserError(
            f"{loaded.folder.name} has no adapter: format=peft writes what init.lora.rank adds, and this run trained "
            "without it; use format=hf"
        )
    base = _base(loaded, preset, near)
    adapter = adapter_of(loaded.model, base.rules)
    addition = next(iter(additions.values()))  # a run has one rank and one scale
    rank, scale = addition.a.shape[0], addition.scale.item()
    larger = {module: len(a) for module, (a, _) in adapter.factors.items() if len(a) != rank}
    settings = {
        "peft_type": "LORA",
        "task_type": next((task for end, task in TASKS.items() if base.architecture.endswith(end)), None),
        "base_model_name_or_path": base.repository,
        "revision": base.revision,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": scale * rank,
        "rank_pattern": larger,
        "alpha_pattern": {module: scale * size for module, size in larger.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": adapter.fan_in_fan_out,
        "target_modules": sorted(adapter.factors),
        "modules_to_save": sorted({weight.rpartition(".")[0] for weight in adapter.whole}) or None,
    }
    tensors = {f"{PREFIX}{weight}": tensor for weight, tensor in adapter.whole.items()}
    for module, (a, b) in adapter.factors.items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = a
        tensors[f"{PREFIX}{module}.lora_B.weight"] = b
    write_text(folder / CONFIG, plain(settings))
    write_weights(folder / WEIGHTS, tensors)
    where = repr(base.repository) if base.repository else "BASE"
    lines = [f"peft.PeftModel.from_pretrained(transformers.{base.architecture}.from_pretrained({where}), '{folder}')"]
    if base.repository is None:
        lines.append(f"BASE is {base.description}")
    return lines


@dataclass(frozen=True)
class Base:
    """The library's model that an adapter is for.

    architecture: its class; repository, revision: on the hub; None for a folder, which `description` names
    """

    architecture: str
    rules: Sequence[ConversionRule]
    description: str
    repository: str | None = None
    revision: str | None = None


def _base(loaded: Loaded, preset: str | None, near: str | None) -> Base:
    """Return the model that a run started from: of transformers, or as format=hf writes it. Raises UserError."""
    name = str((loaded.config.get("init") or {}).get("from"))
    if library_of(name) == "hf:":
        # An output layer that was trained by itself is no longer the table, even if the base ties both.
        source = read_source(library_folder(name), own_head="head.proj.weight" in _trained_whole(loaded.model))
        repository, _, revision = name.removeprefix("hf:").partition("@")
        if source.path == Path(repository).absolute():
            return Base(source.architecture, source.foreign.rules, repository)
        return Base(source.architecture, source.foreign.rules, repository, repository, revision or None)
    ctx: Any = loaded.model.ctx
    config = {key: node for key, node in loaded.config.items() if key != "init"}
    matched = match(Trained(config, ctx, merged(_state(loaded.model))), "transformers", preset, near=near)
    architecture = matched.config.get("architectures", [matched.converter.architecture])[0]
    return Base(architecture, matched.foreign.rules, f"the folder of `blockyard export run={name} to=BASE format=hf`")


def adapter_of(model: nn.Module, rules: Sequence[ConversionRule]) -> Adapter:
    """Return the adapter of a model with additions. rules: of its class. Raises UserError."""
    additions = _additions(model)
    before, after = _weights(model, additions)
    saved = _saved_modules(rules, after, _trained_whole(model))
    whole = {}
    for name, tensor in _with_aliases(rules, convert_back(rules, merged(_state(model)))).items():
        if name.rpartition(".")[0] in saved:
            whole[name] = tensor
    has_experts = any(".experts." in name for rule in rules for name in rule.library_names)
    scale = next(iter(additions.values())).scale.double()
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    adapted_rules = [rule for rule in rules if additions.keys() & set(rule.model_names)]
    for rule in adapted_rules:
        a = torch.cat([additions[name].a.detach() for name in rule.model_names if name in additions])
        library_before = rule.to_library([before[name] for name in rule.model_names])
        library_after = rule.to_library([after[name] for name in rule.model_names])
        for name, old, new in zip(rule.library_names, library_before, library_after, strict=True):
            is_unchanged_bias = not name.endswith(".weight") and torch.equal(new, old)
            if name in whole or is_unchanged_bias:
                continue
            _check_layer(name, has_experts=has_experts)
            change = (new - old) / scale
            b = _output_factor(change.T if rule.transposes else change, a)
            if b is None or not name.endswith(".weight"):
                raise _not_linear(name, "is not a linear layer with this addition")
            factors[name.removesuffix(".weight")] = (a, b)
    return Adapter(factors, whole, any(rule.transposes for rule in adapted_rules))


def _check_layer(name: str, *, has_experts: bool) -> None:
    """Raise UserError for a library weight that peft refuses or takes for another one."""
    if name.endswith(".out_proj.weight") and (".mamba." in name or ".mixer." in name):
        raise _not_linear(name, "is a layer that peft does not adapt")
    if has_experts and name.endswith(DENSE) and ".experts." not in name:
        raise _not_linear(name, "stands beside experts, whose names peft rewrites so that it would miss this one")


def _not_linear(name: str, reason: str) -> UserError:
    return UserError(
        f"{name} of the library {reason}; leave its layer out of init.lora.layers, or use format=hf, which writes the "
        "weights with the additions merged"
    )


def _saved_modules(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor], trained: set[str]) -> set[str]:
    """Return the library's modules with a weight that depends on one of our `trained` weights."""
    saved = set()
    for rule in rules:
        if not trained & set(rule.model_names):
            continue
        library_now = rule.to_library([weights[name] for name in rule.model_names])
        library_moved = rule.to_library([weights[name] + (name in trained) for name in rule.model_names])
        changed = []
        for name, now, moved in zip(rule.library_names, library_now, library_moved, strict=True):
            if not torch.equal(now, moved):
                changed.append(name)
        assert changed, f"{rule.library_names} do not depend on {rule.model_names}"
        for name in changed:
            # The module of a copy holds it beside its other weights, and the name itself may be one of a module around.
            names = (*rule.copies, *rule.aliases) if name == rule.library_names[0] and rule.copies else (name,)
            saved |= {each.rpartition(".")[0] for each in names}
    return saved


def _with_aliases(rules: Sequence[ConversionRule], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return library weights, with those that the library ties written again: peft stores whole modules."""
    tensors = dict(weights)
    for rule in rules:
        for alias in rule.aliases:
            tensors[alias] = weights[rule.library_names[0]].clone()
    return tensors


def _output_factor(change: Tensor, a: Tensor) -> Tensor | None:
    """Return B' (out, rank) with change = B' A (out, in); None if there is none."""
    if change.ndim != 2 or change.shape[1] != a.shape[1]:
        return None
    b = change @ torch.linalg.pinv(a.double())
    missed = change - b @ a.double()
    if missed.norm() > EXACT * change.norm():
        return None
    return b.to(a.dtype)


def _additions(model: nn.Module) -> dict[str, LowRank]:
    """Return the additions by the name of their weight in a model without additions."""
    modules = {name: module for name, module in model.named_modules() if isinstance(module, LowRank)}
    return {f"{name.removesuffix(f'.{ADDED}')}.weight": module for name, module in modules.items()}


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def _weights(model: nn.Module, additions: Mapping[str, LowRank]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights without and with the additions, by plain name.

    In float64, so that the difference of two nearly equal weights has all digits of an addition.
    """
    before = {}
    for name, tensor in _state(model).items():
        plain_weight = plain_name(name)
        if plain_weight is not None:
            before[plain_weight] = tensor.double()
    after = dict(before)
    for name, addition in additions.items():
        after[name] = before[name] + addition.scale.double() * (addition.b.double() @ addition.a.double()).detach()
    return before, after


def _trained_whole(model: nn.Module) -> set[str]:
    """Return the plain names of trained weights, and of buffers, which follow the data; without additions."""
    added = {id(parameter) for parameter in added_parameters(model)}
    fixed = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in added or not parameter.requires_grad:
            fixed.add(name)
    names = {plain_name(name) for name in model.state_dict().keys() - fixed}
    return {name for name in names if name is not None}
