"""What may meet in a row: the future, padding, other documents, a second row, class and register tokens."""

from __future__ import annotations

from blockyard.config.rules.declarations import Facts, Rule


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


def direction_of_encoder(f: Facts) -> str | None:
    """One choice mixes in the encoder, which looks both ways, and in the decoder."""
    if not f["model"].target.takes_source or f.traits.bidirectional:
        return None
    return f"the encoder of {f['model']} looks both ways, {f['token_mixer']} cannot"


def causality_of_position(f: Facts) -> str | None:
    """A scheme that tells what lies behind from what lies ahead may be for models that see only one of both."""
    one_way = f.causal and not f["model"].target.takes_source
    looks = f["model"].target.stacks and not f.latents  # a model without blocks over tokens looks nowhere
    if not f["position"].target.needs_causal or one_way or not looks:
        return None
    who = f"the encoder of {f['model']}" if f.causal else str(f["model"])
    return f"{f['position']} is for models that look back only, {who} looks both ways"


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


def source(f: Facts) -> str | None:
    """A second row is read by an encoder, and an encoder beside a decoder has one to read."""
    given, takes = f.data.source is not None, f["model"].target.takes_source
    if given == takes:
        return None
    if given:
        return f"{f['data']} brings a source row beside the one that is written, {f['model']} reads only one"
    return f"{f['model']} reads a source row with its encoder, {f['data']} has none"


def source_of_objective(f: Facts) -> str | None:
    """What is written from a source needs one."""
    if not f["objective"].target.needs_source or f.data.source is not None:
        return None
    return f"{f['objective']} writes a row from a source row, {f['data']} has none"


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


def prefix_of_mixer(f: Facts) -> str | None:
    """Class and register tokens need a mixer that they take part in."""
    if f.prefix is None or not (f.prefix.class_token or f.prefix.registers) or f.traits.prefix:
        return None
    return f"{f['token_mixer']} has no place for class and register tokens (model.prefix)"


RULES = (
    Rule(("objective", "model"), causality_of_objective),
    Rule(("model", "token_mixer"), causality_of_mixer),
    Rule(("model", "token_mixer"), direction_of_encoder),
    Rule(("model", "position"), causality_of_position),
    Rule(("data", "token_mixer"), variable_length),
    Rule(("data", "token_mixer"), packing),
    Rule(("data", "model"), packing_of_model),
    Rule(("data", "model"), source),
    Rule(("data", "objective"), source_of_objective),
    Rule(("data", "norm"), norm_across_rows),
    Rule(("model", "norm"), norm_across_time),
    Rule(("model", "token_mixer"), prefix_of_mixer),
)
