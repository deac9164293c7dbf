"""Where tokens lie: what data, tokenizer, position scheme and mixer know of places and of raw inputs."""

from __future__ import annotations

from blockyard.config.rules.declarations import Facts, Rule, words
from blockyard.contracts import plural


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
    return f"{f['position']} works on {words(f['position'].target.axes)} coordinate axes, tokens have {f.axes}"


def axes_of_mixer(f: Facts) -> str | None:
    """The mixer works on as many axes as tokens have."""
    if f.latents or f.axes in f.traits.axes:
        return None
    return f"{f['token_mixer']} works on {words(f.traits.axes)} coordinate axes, tokens have {f.axes}"


def mixer_of_latents(f: Facts) -> str | None:
    """Learned vectors lie nowhere, so that a mixer over them must not ask where."""
    if not f.latents or 0 in f.traits.axes:
        return None
    return f"{f['token_mixer']} works on {words(f.traits.axes)} coordinate axes, the latents of {f['model']} have 0"


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


def ports(f: Facts) -> str | None:
    """The mixer offers what the position scheme acts on."""
    scheme = f["position"].target
    missing = {scheme.needs[hook] for hook in scheme.acts_on if hook in scheme.needs} - f.traits.ports
    if not missing:
        return None
    return f"{f['position']} acts on {words(missing)}, which {f['token_mixer']} does not have"


def positions_of_model(f: Facts) -> str | None:
    """A model whose blocks see no tokens, or that has none, leaves nothing to turn and no scores to shift."""
    acts_on = f["position"].target.acts_on - {"embed"}
    if not acts_on or (f["model"].target.stacks and not f.latents):
        return None
    return f"{f['position']} acts on what mixers make of tokens, {f['model']} has no mixers over tokens"


RULES = (
    Rule(("data", "tokenizer"), modality),
    Rule(("tokenizer", "position"), axes_of_position),
    Rule(("tokenizer", "token_mixer"), axes_of_mixer),
    Rule(("model", "token_mixer"), mixer_of_latents),
    Rule(("tokenizer", "token_mixer"), features_of_mixer),
    Rule(("model", "token_mixer"), features_of_latents),
    Rule(("position", "token_mixer"), ports),
    Rule(("model", "position"), positions_of_model),
)
