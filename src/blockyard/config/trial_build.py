"""The last pass of the check: each component is constructed on the meta device and may object.

A constructor knows best what does not fit (a width that does not divide, an image that no patch
tiles); on the meta device nothing is allocated, so asking costs milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from blockyard.config.build import CONTRACTS, LATE, Components, instantiate
from blockyard.config.overrides import nodes
from blockyard.config.rules import Facts
from blockyard.config.schema import REQUIRED, RESERVED, allowed, locate, options
from blockyard.contracts import Context, Issue
from blockyard.model._positions import check_key_widths
from blockyard.weight_init import initialise


def shapes(config: dict[str, Any], facts: Facts, refused: set[str]) -> Iterator[Issue]:
    """What plans say of their options, and modules of their Context. `refused` families have been judged."""
    allow = list(config.get("allow") or [])
    built = {}
    for family, node in config.items():
        # Every plan, and whatever else a config holds (trainer, loggers, callbacks), is cheap to build.
        for key, part in nodes(node, family):
            if key in LATE or ("." in key and key.partition(".")[0] in CONTRACTS):
                continue
            if _sound(part, allow):
                try:
                    built[key] = instantiate(part, allow)
                except Exception as error:  # a user's own class may fail in any way
                    yield Issue(key, _said(error))
    if "data" in built:
        missing = built["data"].missing()
        if missing:  # what is not there has no shape either
            yield Issue("data", missing)
            return
    try:
        if built.keys() >= {"data", "tokenizer"} and built["tokenizer"].modality != built["data"].spec.modality:
            return  # a rule has said so, and there are no tokens to speak of
        ctx = _context(built)
    except KeyError:
        return
    except ValueError as error:
        yield Issue("shapes", str(error))
        return
    for key, part in built.items():
        yield from (Issue(key, text) for text in _problems(part, built))
    parts: dict[str, Any] = {}
    with torch.device("meta"):
        for family in LATE:
            if family != "block" and family in facts.picks and family not in refused:
                pick = facts[family]
                place = built["model"].mixing(ctx) if family == "token_mixer" else ctx
                try:
                    parts[family] = pick.target(place, **pick.options)
                except Exception as error:
                    yield Issue(family, _said(error))
    if parts.keys() >= {"position", "token_mixer"}:
        try:
            check_key_widths(ctx, parts["position"], [parts["token_mixer"]])
        except Exception as error:
            yield Issue("position", _said(error))


def weights(config: dict[str, Any]) -> Iterator[Issue]:
    """Whether the whole model of a config without other problems can be built, and every weight says how it starts."""
    try:
        initialise(Components(config).meta_model(), 0)
    except Exception as error:
        yield Issue("model", _said(error))


def _problems(part: Any, built: dict[str, Any]) -> list[str]:
    """What a plan says against the data, objective and model it is to run with, and a trainer against this machine."""
    found = list(part.problems(built["data"], built["objective"], built["model"])) if hasattr(part, "problems") else []
    if hasattr(part, "device_type"):
        try:
            part.device_type()
        except ValueError as error:
            found.append(str(error))
    return found


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _context(built: dict[str, Any]) -> Context:
    data, objective = built["data"].spec, built["objective"]
    tokens = objective.tokens(built["tokenizer"].spec(data))
    ctx = built["model"].context(data, tokens, objective.outputs(data, tokens))
    assert ctx.head_dim, "a context knows its head width"
    return ctx


def _sound(node: dict[str, Any], allow: list[str]) -> bool:
    target = str(node["_target_"])
    if not allowed(target, allow):
        return False
    try:
        known = options(locate(target))
    except ValueError:
        return False
    return all(
        name in RESERVED
        or (name in known and ((isinstance(value, dict) and "_target_" in value) or not known[name].problem(value)))
        for name, value in node.items()
    ) and all(option.default is not REQUIRED or name in node for name, option in known.items())
