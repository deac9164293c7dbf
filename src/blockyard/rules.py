"""What cannot be combined, from two declarations at a time.

Each rule reads what components declare (traits, ports, axes, ...) and returns a reason or None.
Adding a component adds no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blockyard.contracts import Block, DataSpec, TokenMixer, TokenSpec, Traits, plural


@dataclass(frozen=True)
class Pick:
    """One family's choice: its name, class and options."""

    family: str
    name: str
    target: type
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.family}={self.name}"


@dataclass
class Facts:
    """The choices whose combination is judged."""

    picks: dict[str, Pick]

    def swapped(self, pick: Pick) -> Facts:
        """The same choices with one replaced."""
        return Facts({**self.picks, pick.family: pick})

    def __getitem__(self, family: str) -> Pick:
        return self.picks[family]

    @cached_property
    def data(self) -> DataSpec:
        """What the data says of itself."""
        return self["data"].target(**self["data"].options).spec

    @cached_property
    def tokens(self) -> TokenSpec:
        """What the tokenizer makes of the data, and the objective of that where one is chosen."""
        tokens = self["tokenizer"].target(**self["tokenizer"].options).spec(self.data)
        asked = self.picks.get("objective")
        return tokens if asked is None else asked.target(**asked.options).tokens(tokens)

    @property
    def traits(self) -> Traits:
        """Of the token mixer, under its options."""
        return self["token_mixer"].target.traits_for(self["token_mixer"].options)

    @property
    def causal(self) -> bool:
        """Whether the model hides the future."""
        return self["model"].target.causal

    @property
    def axes(self) -> int:
        """A, the number of coordinates of a token."""
        declared = self["tokenizer"].target.axes
        return self.tokens.axes if declared is None else declared

    @property
    def latents(self) -> bool:
        """Whether token mixers see learned vectors, and not the tokens."""
        return self["model"].target.latents

    @property
    def prefix(self) -> Any:
        """The model's class and register tokens; None where it has none."""
        return self["model"].options.get("prefix")


def modality(f: Facts) -> str | None:
    """Data and tokenizer speak of the same kind of thing."""
    needed, given = f["tokenizer"].target.modality, f.data.modality
    if needed == given:
        return None
    return f"{f['tokenizer']} reads {plural(needed)}, {f['data']} gives {f.data.things}"


def axes_of_position(f: Facts) -> str | None:
    """The position scheme knows as many coordinates as tokens have."""
    if f.axes in f["position"].target.axes:
        return None
    return f"{f['position']} works on {_words(f['position'].target.axes)} coordinate axes, tokens have {f.axes}"


def axes_of_mixer(f: Facts) -> str | None:
    """The mixer works on as many axes as tokens have."""
    if f.latents or f.axes in f.traits.axes:
        return None
    return f"{f['token_mixer']} works on {_words(f.traits.axes)} coordinate axes, tokens have {f.axes}"


def mixer_of_latents(f: Facts) -> str | None:
    """Learned vectors lie nowhere, so that a mixer over them must not ask where."""
    if not f.latents or 0 in f.traits.axes:
        return None
    return f"{f['token_mixer']} works on {_words(f.traits.axes)} coordinate axes, the latents of {f['model']} have 0"


def features_of_mixer(f: Facts) -> str | None:
    """A mixer that goes by what the raw input of a token was needs a tokenizer that says so."""
    if not f.traits.reads_features or f["tokenizer"].target.gives_features:
        return None
    return f"{f['token_mixer']} mixes by features of each token's input, {f['tokenizer']} gives none"


def features_of_latents(f: Facts) -> str | None:
    """Learned vectors have no raw input."""
    if not f.latents or not f.traits.reads_features:
        return None
    return f"{f['token_mixer']} mixes by features of each token's input, the latents of {f['model']} have none"


def positions_of_model(f: Facts) -> str | None:
    """A model whose blocks see no tokens, or that has none, leaves nothing to turn and no scores to shift."""
    acts_on = f["position"].target.acts_on - {"embed"}
    if not acts_on or (f["model"].target.stacks and not f.latents):
        return None
    return f"{f['position']} acts on what mixers make of tokens, {f['model']} has no mixers over tokens"


def cross_of_block(f: Facts) -> str | None:
    """A decoder that looks at another row needs blocks with a place for that."""
    if not f["model"].target.crosses or f["block"].target.add_cross is not Block.add_cross:
        return None
    return f"{f['block']} has no place for the cross-attention of {f['model']}"


def blocks_of_model(f: Facts) -> str | None:
    """A model stacks blocks, or has none."""
    return _unused(f, "block", refuse_empty=True)


def norm_of_model(f: Facts) -> str | None:
    """A model without blocks has no use for their norm."""
    return _unused(f, "norm")


def token_mixer_of_model(f: Facts) -> str | None:
    """A model without blocks has no use for their token mixer."""
    return _unused(f, "token_mixer")


def channel_mixer_of_model(f: Facts) -> str | None:
    """A model without blocks has no use for their channel mixer."""
    return _unused(f, "channel_mixer")


def direction_of_encoder(f: Facts) -> str | None:
    """One choice mixes in the encoder, which looks both ways, and in the decoder."""
    if not f["model"].target.takes_source or f.traits.bidirectional:
        return None
    return f"the encoder of {f['model']} looks both ways, {f['token_mixer']} cannot"


def ports(f: Facts) -> str | None:
    """The mixer offers what the position scheme acts on."""
    scheme = f["position"].target
    missing = {scheme.needs[hook] for hook in scheme.acts_on if hook in scheme.needs} - f.traits.ports
    if not missing:
        return None
    return f"{f['position']} acts on {_words(missing)}, which {f['token_mixer']} does not have"


def causality_of_objective(f: Facts) -> str | None:
    """The objective gets a model that hides the future, or one that does not."""
    needs = f["objective"].target.needs_causal
    if needs is None or needs == f.causal:
        return None
    return f"{f['objective']} needs a model that {'hides' if needs else 'sees'} the future, {f['model']} does not"


def causality_of_mixer(f: Facts) -> str | None:
    """The mixer can keep, or drop, the order of time."""
    if f.causal and not f.traits.causal:
        return f"{f['model']} hides the future, {f['token_mixer']} cannot"
    if not f.causal and not f.traits.bidirectional:
        return f"{f['model']} looks both ways, {f['token_mixer']} cannot"
    return None


def variable_length(f: Facts) -> str | None:
    """Padded rows need a mixer that leaves padding out."""
    if not f.data.variable or f.latents or (f.traits.padding and f.traits.any_length):
        return None
    return f"{f['data']} has rows of different lengths, {f['token_mixer']} cannot leave padding out"


def packing(f: Facts) -> str | None:
    """Packed rows need a mixer that keeps documents apart."""
    if not f.data.packed or f.latents or f.traits.packing:
        return None
    return f"{f['data']} packs several documents into a row, {f['token_mixer']} cannot keep them apart"


def packing_of_model(f: Facts) -> str | None:
    """Vectors that read a whole row carry one document into another."""
    if not f.data.packed or not f.latents:
        return None
    return f"{f['data']} packs several documents into a row, the latents of {f['model']} would read them all"


def fusing_tokens(f: Facts) -> str | None:
    """A fused block needs a token mixer that is projection, mix, projection."""
    return _fusing(f, "token_mixer")


def fusing_channels(f: Facts) -> str | None:
    """A fused block needs a channel mixer that is projection, mix, projection."""
    return _fusing(f, "channel_mixer")


def head_of_objective(f: Facts) -> str | None:
    """The head gives one answer a token, or one a row, as the objective takes."""
    gives, takes = f["head"].target.gives, f["objective"].target.takes
    return None if gives == takes else f"{f['objective']} takes one answer a {takes}, {f['head']} gives one a {gives}"


def class_token(f: Facts) -> str | None:
    """A head that reads the class token needs one."""
    if not f["head"].target.needs_class_token or (f.prefix is not None and f.prefix.class_token):
        return None
    way = "has no place for one" if f.prefix is None else "has none: model.prefix.class_token=true"
    return f"{f['head']} reads the class token, {f['model']} {way}"


def class_token_sees(f: Facts) -> str | None:
    """A class token in front of a causal row sees nothing of it."""
    if not f["head"].target.needs_class_token or not f.causal:
        return None
    return f"{f['head']} reads a token in front of the row, which sees nothing in {f['model']}"


def prefix_of_mixer(f: Facts) -> str | None:
    """Class and register tokens need a mixer that they take part in."""
    if f.prefix is None or not (f.prefix.class_token or f.prefix.registers) or f.traits.prefix:
        return None
    return f"{f['token_mixer']} has no place for class and register tokens (model.prefix)"


def tied_head(f: Facts) -> str | None:
    """A tied head shares a table of symbols."""
    if not f["head"].target.ties(f["head"].options) or f.tokens.vocabulary is not None:
        return None
    return f"{f['head']} shares the table of symbols, {f['tokenizer']} has none: head.tied=false"


def tied_width(f: Facts) -> str | None:
    """A tied head shares vectors as wide as the stream; a concatenated position leaves tokens narrower ones."""
    if not f["head"].target.ties(f["head"].options) or not f["position"].target.concatenates(f["position"].options):
        return None
    return (
        f"{f['head']} shares the table of symbols, whose vectors are narrower than the stream beside a concatenated "
        f"{f['position']}: head.tied=false"
    )


def target_of_objective(f: Facts) -> str | None:
    """The data brings the target that the objective asks for."""
    needs, modal = f["objective"].target.target, f["objective"].target.modality
    if needs is not None and needs != f.data.target:
        return f"{f['objective']} needs {_TARGETS.get(needs, needs)}, {f['data']} has none"
    if modal is not None and modal != f.data.modality:
        return f"{f['objective']} is for {plural(modal)}, {f['data']} gives {f.data.things}"
    return None


def source(f: Facts) -> str | None:
    """A second row is read by an encoder, and an encoder beside a decoder has one to read."""
    given, takes = f.data.source is not None, f["model"].target.takes_source
    if given == takes:
        return None
    if given:
        return f"{f['data']} brings a source row for an encoder, {f['model']} has no encoder beside its decoder"
    return f"{f['model']} reads a source row with its encoder, {f['data']} has none"


def norm_across_rows(f: Facts) -> str | None:
    """A norm over all tokens of a batch wants them all real, and of one document a row."""
    if not getattr(f["norm"].target, "across_tokens", False) or not (f.data.variable or f.data.packed):
        return None
    why = "pads rows of different lengths" if f.data.variable else "packs several documents into a row"
    return f"{f['norm']} takes its statistics over all tokens of a batch, {f['data']} {why}"


def norm_across_time(f: Facts) -> str | None:
    """A norm over all tokens of a batch tells early ones of late ones."""
    if not getattr(f["norm"].target, "across_tokens", False) or not f.causal:
        return None
    return f"{f['norm']} takes its statistics over all tokens of a batch, {f['model']} hides the future"


def nothing_mixes(f: Facts) -> str | None:
    """A block has at least one mixer that adds something."""
    empty = f["token_mixer"].target.empty and f["channel_mixer"].target.empty
    if not empty or not f["model"].target.stacks:
        return None
    return f"{f['token_mixer']} and {f['channel_mixer']} both add nothing, so that a block does nothing"


def single_block(f: Facts) -> str | None:
    """A block of one mixer has no place for a channel mixer."""
    if not f["block"].target.single or f["channel_mixer"].target.empty:
        return None
    return f"{f['block']} has one mixer, that of the tokens, and no place for {f['channel_mixer']}"


@dataclass(frozen=True)
class Rule:
    """A reason-giver and the two families whose choices it concerns."""

    pair: tuple[str, str]
    reason: Callable[[Facts], str | None]


RULES = (
    Rule(("data", "tokenizer"), modality),
    Rule(("tokenizer", "position"), axes_of_position),
    Rule(("tokenizer", "token_mixer"), axes_of_mixer),
    Rule(("position", "token_mixer"), ports),
    Rule(("objective", "model"), causality_of_objective),
    Rule(("model", "token_mixer"), causality_of_mixer),
    Rule(("data", "token_mixer"), variable_length),
    Rule(("data", "token_mixer"), packing),
    Rule(("block", "token_mixer"), fusing_tokens),
    Rule(("block", "channel_mixer"), fusing_channels),
    Rule(("block", "channel_mixer"), single_block),
    Rule(("token_mixer", "channel_mixer"), nothing_mixes),
    Rule(("data", "norm"), norm_across_rows),
    Rule(("model", "norm"), norm_across_time),
    Rule(("head", "objective"), head_of_objective),
    Rule(("head", "model"), class_token),
    Rule(("head", "model"), class_token_sees),
    Rule(("model", "token_mixer"), prefix_of_mixer),
    Rule(("head", "tokenizer"), tied_head),
    Rule(("head", "position"), tied_width),
    Rule(("data", "objective"), target_of_objective),
    Rule(("data", "model"), source),
    Rule(("data", "model"), packing_of_model),
    Rule(("model", "token_mixer"), mixer_of_latents),
    Rule(("tokenizer", "token_mixer"), features_of_mixer),
    Rule(("model", "token_mixer"), features_of_latents),
    Rule(("model", "token_mixer"), direction_of_encoder),
    Rule(("model", "position"), positions_of_model),
    Rule(("model", "block"), cross_of_block),
    Rule(("model", "block"), blocks_of_model),
    Rule(("model", "norm"), norm_of_model),
    Rule(("model", "token_mixer"), token_mixer_of_model),
    Rule(("model", "channel_mixer"), channel_mixer_of_model),
)


# What an objective asks of the data, in words.
_TARGETS = {
    "class": "a class for each sample",
    "symbols": "symbols to answer with in each row",
    "pixels": "a class for each pixel",
}


def _fusing(f: Facts, family: str) -> str | None:
    block, mixer = f["block"], f[family]
    if not block.target.fuses(block.options) or _projected(mixer):
        return None
    return f"{block} fuses the matmuls of both mixers, {mixer} has none to share: block.fused=false"


def _unused(f: Facts, family: str, refuse_empty: bool = False) -> str | None:
    stacks, empty = f["model"].target.stacks, getattr(f[family].target, "empty", False)
    if not stacks and not empty:
        return f"{f['model']} has no blocks, and so no use for {f[family]}"
    if stacks and empty and refuse_empty:
        return f"{f['model']} stacks blocks, {f[family]} is none"
    return None


def _projected(mixer: Pick) -> bool:
    """Whether a mixer follows `contracts.Projected`."""
    if issubclass(mixer.target, TokenMixer):
        return mixer.target.has("mix", mixer.options)
    return callable(getattr(mixer.target, "mix", None))


def _words(things: frozenset[Any] | set[Any]) -> str:
    return " or ".join(sorted(map(str, things))) or "no"
