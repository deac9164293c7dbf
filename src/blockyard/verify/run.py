"""Checks every property of a component that applies to it, in small models on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.config.build import Components
from blockyard.config.check import check as issues_of
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.contracts import HasAuxiliary, Position, Traits
from blockyard.errors import UserError, first_line
from blockyard.verify import checks
from blockyard.verify.checks import VOCABULARY, BrokenError, auxiliary_padding, token_ids
from blockyard.verify.coordinates import Trainee, fading, growth, problems

WIDTHS = (64, 128, 256)  # of the models in the coordinate check; narrower models are not flat yet
SEEDS = (0, 1)
LENGTH = 6  # tokens
SMALL = (
    *("data=code", "tokenizer=byte", f"data.context={LENGTH}", "model.dim=16", "model.depth=2", "model.heads=4"),
    *("position=none", "logger=none", "head=token"),
)
DECODER = (*SMALL, "model=decoder", "objective=next_token")
ENCODER = (*SMALL, "model=encoder", "objective=masked_token")
Verdict = Literal["holds", "broken", "not declared", "not possible"]
# The checks of properties in a model with one prediction for each sequence.
OF_SEQUENCES = {"padding": checks.padding_of_sequences}


@dataclass(frozen=True)
class Finding:
    """The outcome of one property; detail: the counter-example, or the reason why it was not checked."""

    name: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Property:
    """A property of a model, with the small model in which it is checked.

    base: the overrides of the small model, before the user's overrides
    declared: returns whether a token mixer declares the property; None where every component must have it
    check: raises `checks.BrokenError` where the model does not have the property
    causal: True for a property of causal models, False for a property of bidirectional models, None for both
    """

    name: str
    base: tuple[str, ...]
    declared: Callable[[Traits], bool] | None
    check: Callable[[nn.Module, int], None]
    causal: bool | None = None

    @property
    def of_tokens(self) -> bool:
        """Return whether the property is about outputs of single tokens, which a head for sequences does not give."""
        return self.declared is not None


PROPERTIES = (
    Property("causality", DECODER, lambda traits: traits.causal, checks.causality, True),
    Property("padding", ENCODER, lambda traits: traits.padding and traits.any_length, checks.padding),
    Property("auxiliary", ENCODER, lambda traits: traits.padding and traits.any_length, checks.auxiliary_padding),
    Property("packing", ENCODER, lambda traits: traits.packing and traits.any_length, checks.packing),
    Property("packing, causal", DECODER, lambda t: t.causal and t.packing and t.any_length, checks.packing, True),
    Property("cached decoding", DECODER, lambda traits: traits.causal, checks.cached_decoding, True),
    Property("permutation", ENCODER, lambda traits: traits.equivariant, checks.permutation, False),
    Property("determinism", ENCODER, None, checks.determinism),
    Property("gradients", ENCODER, None, checks.gradients),
    Property("bf16", ENCODER, None, checks.bfloat16),
    Property("compile", ENCODER, None, checks.compiles),
)


def verify(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> list[Finding]:
    """Return a finding for each property.

    overrides: of the small models, `token_mixer=gated_conv allow=[mine]`; they win over the models' own
    Raises UserError where no small model can hold the component, and where no override is of a family with checks.
    """
    _refuse_other_families(overrides)
    reasons: dict[str, None] = {}
    findings = []
    for wanted in PROPERTIES:
        composed = compose([*wanted.base, *overrides], config_dirs)
        issues = issues_of(composed)
        if issues and wanted.causal is None:  # a component may be for decoders alone
            decoder = compose([*DECODER, *overrides], config_dirs)
            if not issues_of(decoder):
                composed = decoder
                issues = []
        if issues:
            reasons |= dict.fromkeys(map(str, issues))
            findings.append(Finding(wanted.name, "not possible", issues[0].text))
            continue
        components = Components(composed.config)
        model = components.meta_model()
        has_auxiliary = any(isinstance(module, HasAuxiliary) for module in model.modules())
        if wanted.check is auxiliary_padding and not has_auxiliary:
            continue
        findings.append(_finding(wanted, components, model))
    findings += _of_widths(overrides, config_dirs)
    if all(finding.verdict == "not possible" for finding in findings):
        raise UserError("no small model can hold this:\n  - " + "\n  - ".join(reasons))
    return findings


def _refuse_other_families(overrides: Sequence[str]) -> None:
    """Raise UserError where overrides name families, and none of them has checks."""
    others = []
    for text in overrides:
        family = text.partition("=")[0].lstrip("+").partition(".")[0]
        if family in catalog.VERIFIED:
            return
        if family in catalog.families():
            others.append(text)
    if others:
        family = others[0].partition("=")[0]
        raise UserError(
            f"{others[0]}: verify has no checks of {family}; it checks {', '.join(catalog.VERIFIED)}; "
            f"`blockyard check {others[0]}` builds it"
        )


def _finding(wanted: Property, components: Components, model: Any) -> Finding:
    """Check a property, and return the outcome.

    model: built from the components on the meta device; its layers may have mixers and schemes of several kinds
    """
    mixers = list(model.mixers)
    if wanted.declared is not None and not all(wanted.declared(mixer.traits) for mixer in mixers):
        return Finding(wanted.name, "not declared", "a token mixer does not declare it")
    causal = bool(components.architecture.causal)
    if wanted.causal is not None and causal != wanted.causal:
        kind = "causal" if causal else "bidirectional"
        return Finding(wanted.name, "not declared", f"the model is {kind}, and no such model promises it")
    positions = [module for module in model.modules() if isinstance(module, Position)]
    if wanted.name == "permutation" and any(position.acts_on for position in positions):
        return Finding(wanted.name, "not declared", "the position scheme tells tokens apart")
    architecture = components.architecture
    reads_order = getattr(architecture, "ngrams", None) or getattr(architecture, "smear", None)
    if wanted.name == "permutation" and reads_order:
        return Finding(wanted.name, "not declared", "vectors of n-grams tell tokens apart")
    base = components.node("token_mixer")
    cached = base.func.has("init_cache", dict(base.keywords)) and all(hasattr(mixer, "init_cache") for mixer in mixers)
    if wanted.name == "cached decoding" and not cached:
        return Finding(wanted.name, "not declared", "it has no init_cache; decoding computes the sequence anew")
    check = wanted.check
    head = components.node("head").func
    if wanted.of_tokens and head.gives == "sequence":
        if wanted.name not in OF_SEQUENCES:
            return Finding(wanted.name, "not declared", "the head predicts for a sequence, not for each token")
        if head.fixed_length:
            return Finding(wanted.name, "not declared", "the head takes sequences of one length")
        check = OF_SEQUENCES[wanted.name]
    elif wanted.of_tokens and head.reads_last:
        return Finding(wanted.name, "not declared", "the head predicts all tokens from the last one")
    try:
        # In float64, where `checks.TOLERANCE` tells a leak from rounding.
        check(stirred(components.model(0)).double().eval(), LENGTH)
    except BrokenError as broken:
        return Finding(wanted.name, "broken", str(broken))
    except Exception as error:  # a component may raise anything
        return Finding(wanted.name, "broken", f"{type(error).__name__}: {first_line(error)}")
    return Finding(wanted.name, "holds", str(check.__doc__).split("\n", 1)[0])


def _of_widths(overrides: Sequence[str], config_dirs: Sequence[str]) -> list[Finding]:
    """Return a finding on the sizes of activations over the width of the model; none without a parametrization."""
    name = "sizes over widths"
    sizes = {}
    for width in WIDTHS:
        sized = ("optimizer.lr=0.003", *overrides, f"model.dim={width}")
        composed = compose([*ENCODER, *sized], config_dirs)
        if issues_of(composed):
            composed = compose([*DECODER, *sized], config_dirs)
        if "parametrization" not in composed.config:
            return []
        issues = issues_of(composed)
        if issues:
            return [Finding(name, "not possible", issues[0].text)]
        sizes[width] = Components(composed.config)
    if not sizes[WIDTHS[0]].parametrization.scales:
        return []

    def make(width: int, seed: int) -> Trainee:
        model = sizes[width].model(seed)
        loss = partial(cross_entropy, inputs=token_ids(16, LENGTH))
        return Trainee(model, sizes[width].optimizer.build(model), loss, VOCABULARY)

    try:
        fades = fading(sizes[WIDTHS[0]].meta_model())
        faults = problems(growth(make, WIDTHS, SEEDS), fades)
    except Exception as error:  # a component may raise anything
        return [Finding(name, "broken", f"{type(error).__name__}: {first_line(error)}")]
    if faults:
        return [Finding(name, "broken", "; ".join(faults))]
    exception = ""
    if fades:
        path, reason = list(fades.items())[-1]
        exception = f"; of {path} they may shrink: {reason}"
    widths = ", ".join(map(str, WIDTHS))
    detail = f"After ten updates, sizes of activations are the same at widths {widths}{exception}."
    return [Finding(name, "holds", detail)]


def cross_entropy(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the cross-entropy of the first outputs with classes that follow from two token ids each, a scalar."""
    outputs = model(inputs)[..., :VOCABULARY]
    classes = (3 * inputs + inputs.roll(1, 1)) % outputs.shape[-1]
    if outputs.ndim != 3:  # one prediction for each sequence
        classes = classes[:, 0]
    return F.cross_entropy(outputs.flatten(0, -2), classes.flatten())


def stirred(model: nn.Module) -> nn.Module:
    """Move every parameter in place, biases and gains too, so that no branch is silent by its initial zeros."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def small_model(overrides: Sequence[str], config_dirs: Sequence[str] = (), *, causal: bool = False) -> nn.Module:
    """Return a model of two blocks of width 16 over six bytes, in float64, for a test of a component of one's own.

    overrides: as in `verify`
    causal: a decoder rather than an encoder
    Raises UserError with every reason why it cannot be built.
    """
    base = DECODER if causal else ENCODER
    composed = compose([*base, *overrides], config_dirs)
    issues = issues_of(composed)
    if issues:
        raise UserError("no small model can hold this:\n  - " + "\n  - ".join(map(str, issues)))
    return stirred(Components(composed.config).model(0)).double().eval()
