"""Rules about sequences: causality, padding, packing, a source sequence, class and register tokens."""

from __future__ import annotations

from blockyard.config.rules.declarations import Facts, Pick, Rule, of_row, of_source
from blockyard.contracts import plural

_TOKENS = "use channel_mixer.route=token"  # of the one choice that can mix tokens


def causality_of_objective(f: Facts) -> str | None:
    """The objective gets a causal model, or a bidirectional one, as it needs."""
    needs = f["objective"].target.needs_causal
    if needs is None or needs == f.causal:
        return None
    if needs:
        return f"{f['objective']} needs a causal model; {f['model']} is bidirectional"
    return f"{f['objective']} needs a bidirectional model; {f['model']} is causal"


def causality_of_mixer(f: Facts) -> str | None:
    """The mixer can be causal, or bidirectional, as the model requires."""
    if f.causal and not f.traits.causal:
        return f"{f['token_mixer']} cannot be causal; {f['model']} requires it"
    if not f.causal and not f.traits.bidirectional:
        return f"{f['token_mixer']} cannot be bidirectional; {f['model']} requires it"
    return None


def direction_of_encoder(f: Facts) -> str | None:
    """The same choice mixes in the bidirectional encoder and in the decoder."""
    if not _encodes(f) or f.traits.bidirectional:
        return None
    return f"{f['token_mixer']} cannot be bidirectional; the encoder of {f['model']} requires it"


def causality_of_position(f: Facts) -> str | None:
    """A position scheme may be for causal models only."""
    has_mixers = f["model"].target.stacks and not f.latents  # over tokens, for the scheme to act on
    if not f["position"].target.needs_causal or not has_mixers:
        return None
    if f.causal and f["model"].target.ties(f["model"].options):
        return f"{f['position']} needs a causal model; the tokens of a source see each other with sees=source"
    if f.causal:
        return None
    return f"{f['position']} needs a causal model; {f['model']} is bidirectional"


def causality_of_source_position(f: Facts) -> str | None:
    """A position scheme may be for causal models only, and the encoder of a source is bidirectional."""
    if not f["source_position"].target.needs_causal or not _encodes(f):
        return None
    return f"{_source_scheme(f)} needs a causal model; the encoder of {f['model']} is bidirectional"


def variable_length(f: Facts) -> str | None:
    """Padded sequences need a mixer that ignores padding."""
    if not f.data.variable or f.latents or (f.traits.padding and f.traits.any_length):
        return None
    return f"{f['data']} has sequences of different lengths; {f['token_mixer']} cannot ignore padding"


def packing(f: Facts) -> str | None:
    """Packed sequences need a mixer that keeps documents apart."""
    if not f.data.packed or f.latents or f.traits.packing:
        return None
    return f"{f['data']} packs several documents into a sequence; {f['token_mixer']} cannot keep them apart"


def packing_of_model(f: Facts) -> str | None:
    """Latents read a whole sequence, and so would mix its documents."""
    if not f.data.packed or not f.latents:
        return None
    return f"{f['data']} packs several documents into a sequence; the latents of {f['model']} would mix them"


def source(f: Facts) -> str | None:
    """A source sequence needs an encoder in addition to the decoder, and such an encoder needs a source."""
    has_source = f.data.source is not None
    takes_source = f["model"].target.takes_source
    if f.reads_source and has_source:
        if takes_source:
            return f"{f['objective']} reads the source alone; {f['model']} reads a source beside a sequence"
        return None
    if has_source == takes_source:
        return None
    if has_source:
        return f"{f['data']} has a source sequence and a target; {f['model']} reads only one sequence"
    return f"{f['model']} needs a source sequence for its encoder; {f['data']} has none"


def length_of_joined_source(f: Facts) -> str | None:
    """Sources that stand in front of a sequence are of one length: their padding would lie inside it."""
    if not f["model"].target.joins or f.data.source is None or not f.data.source.variable:
        return None
    return (
        f"{f['data']} has sources of different lengths, which would leave padding in the sequence of {f['model']}; "
        "model=encoder_decoder reads them apart from it"
    )


def prefix_of_joined_source(f: Facts) -> str | None:
    """A source in front of the sequence needs a mixer that mixes it in."""
    if not f["model"].target.joins or f.mixes_prefix:
        return None
    return f"{f['token_mixer']} does not mix in tokens that stand in front of the sequence, as {f['model']} needs"


def ties_of_joined_source(f: Facts) -> str | None:
    """Tokens that see each other although the model is causal need a mixer that compares pairs by their index."""
    model = f["model"]
    if not model.target.ties(model.options):
        return None
    for name, target, options in f.mixers():
        if "scores" not in target.traits_for(options).ports:
            return f"{name} mixes in order of the tokens, so those of a source cannot see each other: sees=past"
        if not target.by_pairs:
            return f"{name} chooses among groups of tokens, in which those of a source and later ones meet: sees=past"
    return None


def position_of_joined_source(f: Facts) -> str | None:
    """A scheme that acts inside mixers leaves a source in front of the sequence alone."""
    target = f["source_position"].target
    if not f["model"].target.joins or target.acts_on <= target.before_blocks:
        return None
    return f"{_source_scheme(f)} acts inside token mixers, which in {f['model']} leave the source alone"


def source_of_objective(f: Facts) -> str | None:
    """An objective that conditions on a source needs data with one."""
    needs = f["objective"].target.needs_source or f.reads_source
    # Joined data hold the source in the sequence itself, where an objective of the source alone does not look.
    joined = f.data.joined and not f.reads_source
    if needs and f.data.source is None and not joined:
        return f"{f['objective']} needs a source sequence; {f['data']} has none"
    kind = f["objective"].target.source_modality
    if kind is None or f.data.source is None or f.data.source.modality == kind:
        return None
    return f"{f['objective']} is for sources of {plural(kind)}; those of {f['data']} are {f.data.source.things}"


def norm_across_rows(f: Facts) -> str | None:
    """A norm over all tokens of a batch needs them unpadded, and one document a sequence."""
    if not getattr(f["norm"].target, "across_tokens", False) or not (f.data.variable or f.data.packed):
        return None
    statistics = f"{f['norm']} takes its statistics over all tokens of a batch"
    if f.data.variable:
        return f"{statistics}; {f['data']} pads its sequences"
    return f"{statistics}; {f['data']} packs several documents into a sequence"


def norm_across_time(f: Facts) -> str | None:
    """A norm over all tokens of a batch leaks the future."""
    if not getattr(f["norm"].target, "across_tokens", False) or not f.causal:
        return None
    return f"{f['norm']} takes its statistics over all tokens of a batch, future ones too; {f['model']} is causal"


def causality_of_channels(f: Facts) -> str | None:
    """A channel mixer may mix tokens, later ones too."""
    if not f.causal or not f["channel_mixer"].target.mixes_tokens(f["channel_mixer"].options):
        return None
    return f"{f['channel_mixer']} lets later tokens decide about earlier ones; {f['model']} is causal: {_TOKENS}"


def packing_of_channels(f: Facts) -> str | None:
    """A channel mixer that mixes tokens would mix the tokens of packed documents."""
    if not f.data.packed or not f["channel_mixer"].target.mixes_tokens(f["channel_mixer"].options):
        return None
    return f"{f['data']} packs several documents into a sequence; {f['channel_mixer']} would mix them: {_TOKENS}"


def prefix_of_mixer(f: Facts) -> str | None:
    """Class and register tokens need a mixer that supports them."""
    if f.prefix is None or not (f.prefix.class_token or f.prefix.registers) or f.mixes_prefix:
        return None
    return f"{f['token_mixer']} does not support class and register tokens (model.prefix)"


OF_SEQUENCE = (
    Rule(("data", "token_mixer"), variable_length),
    Rule(("data", "token_mixer"), packing),
    Rule(("data", "norm"), norm_across_rows),
    Rule(("data", "channel_mixer"), packing_of_channels),
)
RULES = (
    Rule(("data", "model"), length_of_joined_source),
    Rule(("model", "token_mixer"), prefix_of_joined_source),
    Rule(("model", "token_mixer"), ties_of_joined_source),
    Rule(("model", "source_position"), position_of_joined_source),
    Rule(("objective", "model"), causality_of_objective),
    Rule(("model", "token_mixer"), causality_of_mixer),
    Rule(("model", "token_mixer"), direction_of_encoder),
    Rule(("model", "position"), causality_of_position),
    Rule(("model", "source_position"), causality_of_source_position),
    *map(of_row, OF_SEQUENCE),
    *map(of_source, OF_SEQUENCE),
    Rule(("data", "model"), packing_of_model),
    Rule(("data", "model"), source),
    Rule(("data", "objective"), source_of_objective),
    Rule(("model", "norm"), norm_across_time),
    Rule(("model", "channel_mixer"), causality_of_channels),
    Rule(("model", "token_mixer"), prefix_of_mixer),
)


def _source_scheme(f: Facts) -> Pick:
    """Return the choice that gives the source its positions: its own, or the one that all sequences have."""
    if "source_position" in f.picks:
        return f["source_position"]
    return f["position"]


def _encodes(f: Facts) -> bool:
    """Return whether the model has an encoder of its own for the source."""
    return bool(f["model"].target.takes_source and not f["model"].target.joins)
