"""Rules about coordinates and raw inputs: data, tokenizer, position scheme and mixer must agree on them."""

from __future__ import annotations

from itertools import chain

from blockyard.config.rules.declarations import Facts, Rule, either, of_row, of_source
from blockyard.contracts import plural


def modality(f: Facts) -> str | None:
    """The tokenizer reads the modality of the data."""
    if f["tokenizer"].target.modality == f.data.modality:
        return None
    return f"{f['tokenizer']} reads {plural(f['tokenizer'].target.modality)}, but {f['data']} gives {f.data.things}"


def levels(f: Facts) -> str | None:
    """A tokenizer of gray levels needs data that stores them."""
    if not f["tokenizer"].target.reads_levels or f.data.modality != "image" or f.data.levels is not None:
        return None
    return f"{f['tokenizer']} reads gray levels; {f['data']} gives images without them"


def token_ids(f: Facts) -> str | None:
    """A tokenizer that passes token ids through needs data that is made of them, and says how many there are."""
    if not f["tokenizer"].target.reads_ids or f.data.vocabulary is not None:
        return None
    return f"{f['tokenizer']} reads token ids; {f['data']} gives none, or not their number (data.vocabulary=N)"


def written_sounds(f: Facts) -> str | None:
    """A sound that is written is made of codes, and one that is read of samples."""
    if f.data.modality != "audio" or f["tokenizer"].target.modality != "audio":
        return None
    writes, written = f["tokenizer"].target.writes_sound, f.data.source is not None
    if writes == written:
        return None
    if written:
        return f"{f['data']} gives sounds to write; {f['tokenizer']} makes no codes of them: tokenizer=audio_vq"
    return f"{f['tokenizer']} makes codes of sounds that are written; {f['data']} gives sounds to read"


def written_images(f: Facts) -> str | None:
    """An image that is written beside its source is made of codes of gray levels."""
    if f.data.modality != "image" or f.data.source is None or f["tokenizer"].target.modality != "image":
        return None
    if f["tokenizer"].target.reads_levels:
        return None
    return f"{f['data']} gives images to write; {f['tokenizer']} makes no codes of them: tokenizer=patch_codes or vq"


def source_tokenizer(f: Facts) -> str | None:
    """Only the source of data that has one is read by a tokenizer of its own."""
    if "source_tokenizer" not in f.picks or f.data.source is not None:
        return None
    return f"{f['source_tokenizer']} reads the source of data that has one; {f['data']} has none: source_tokenizer=same"


def source_position(f: Facts) -> str | None:
    """Only a source beside the sequence has a position scheme of its own."""
    if "source_position" not in f.picks or (f.data.source is not None and not f.reads_source):
        return None
    reason = f"{f['data']} has none"
    if f.reads_source:
        reason = f"{f['objective']} reads the source of {f['data']} alone, placed by {f['position']}"
    return f"{f['source_position']} places a source beside a sequence; {reason}: source_position=same"


def shared_embedder(f: Facts) -> str | None:
    """Two kinds of sequences cannot share an embedder."""
    model = f["model"]
    if "source_tokenizer" not in f.picks or not model.target.takes_source or not model.target.shares(model.options):
        return None
    return f"{model} embeds source and target alike; {f['source_tokenizer']} reads another kind: model.shared=false"


def axes_of_position(f: Facts) -> str | None:
    """The position scheme supports the number of coordinate axes of the tokens."""
    if f.axes in f["position"].target.axes:
        return None
    return f"{f['position']} needs tokens with {either(f['position'].target.axes)} coordinate axes; they have {f.axes}"


def axes_of_mixer(f: Facts) -> str | None:
    """The mixer supports the number of coordinate axes of the tokens."""
    if f.latents or f.axes in f.traits.axes:
        return None
    return f"{f['token_mixer']} needs tokens with {either(f.traits.axes)} coordinate axes; they have {f.axes}"


def mixer_of_latents(f: Facts) -> str | None:
    """Learned vectors have no coordinates, so a mixer over them must not need any."""
    if not f.latents or 0 in f.traits.axes:
        return None
    needs = f"{f['token_mixer']} needs tokens with {either(f.traits.axes)} coordinate axes"
    return f"{needs}; the latents of {f['model']} have 0"


def features_of_mixer(f: Facts) -> str | None:
    """A mixer that reads features of each token's raw input needs a tokenizer that gives them."""
    if not f.traits.reads_features or f["tokenizer"].target.gives_features:
        return None
    return f"{f['token_mixer']} needs features of each token's raw input; {f['tokenizer']} gives none"


def features_of_latents(f: Facts) -> str | None:
    """Learned vectors have no raw input to read features of."""
    if not f.latents or not f.traits.reads_features:
        return None
    return f"{f['token_mixer']} needs features of each token's raw input; the latents of {f['model']} have none"


def ids_of_mixer(f: Facts) -> str | None:
    """A mixer that looks up token ids needs a tokenizer that gives them."""
    if not f.traits.reads_ids or f.latents or f.tokens.vocabulary is not None:
        return None
    return f"{f['token_mixer']} looks up token ids; {f['tokenizer']} gives none: token_mixer.value_embedding=none"


def ids_of_latents(f: Facts) -> str | None:
    """Learned vectors have no token ids."""
    if not f.latents or not f.traits.reads_ids:
        return None
    return f"{f['token_mixer']} looks up token ids; the latents of {f['model']} have none"


def ports(f: Facts) -> str | None:
    """The mixer has the ports that the position scheme acts on, unless other layers have the scheme too."""
    if f.differing and "position" not in f.differing:
        return None  # the config's own scheme acts in the layers that have its ports, as in token_mixer=cycle
    scheme = f["position"].target
    missing = {scheme.needs[hook] for hook in scheme.acts_on if hook in scheme.needs} - f.traits.ports
    if not missing:
        return None
    return f"{f['position']} acts on {either(missing)}, which {f['token_mixer']} does not have"


def pairs_of_position(f: Facts) -> str | None:
    """A scheme that reads facts of pairs of tokens needs data that has them."""
    scheme = f["position"].target
    if not scheme.acts_on & scheme.of_pairs or f["tokenizer"].target.gives_pairs:
        return None
    return f"{f['position']} reads facts of pairs of tokens, such as their distance; {f['tokenizer']} gives none"


def pairs_of_mixer(f: Facts) -> str | None:
    """A mixer that reads facts of pairs of tokens needs data that has them."""
    if not f.traits.reads_pairs or f["tokenizer"].target.gives_pairs:
        return None
    return f"{f['token_mixer']} reads facts of pairs of tokens, such as their distance; {f['tokenizer']} gives none"


def pairs_of_latents(f: Facts) -> str | None:
    """Learned vectors have no facts of pairs."""
    if not f.latents or not f.traits.reads_pairs:
        return None
    return f"{f['token_mixer']} reads facts of pairs of tokens; the latents of {f['model']} have none"


def later_tokens_of_position(f: Facts) -> str | None:
    """A scheme may read later tokens, in facts of pairs or as neighbours; a causal model would see them through it."""
    scheme = f["position"].target
    if not f.causal or not scheme.acts_on & scheme.of_later:
        return None
    later = "the neighbours of a token"
    if scheme.acts_on & scheme.of_pairs:
        later = "facts that depend on all tokens"
    return f"{f['position']} reads {later}, later ones too; {f['model']} is causal"


def positions_of_model(f: Facts) -> str | None:
    """A scheme that acts inside mixers needs a model with mixers over tokens."""
    scheme = f["position"].target
    if scheme.acts_on <= scheme.before_blocks or (f["model"].target.stacks and not f.latents):
        return None
    return f"{f['position']} acts inside token mixers; {f['model']} has none over tokens"


# Asked of the source too.
OF_INPUTS = tuple(Rule(("data", "tokenizer"), refusal) for refusal in (modality, levels, token_ids, written_sounds))
OF_SEQUENCE = (
    Rule(("tokenizer", "position"), axes_of_position),
    Rule(("tokenizer", "token_mixer"), axes_of_mixer),
    Rule(("tokenizer", "token_mixer"), features_of_mixer),
    Rule(("tokenizer", "token_mixer"), ids_of_mixer),
    Rule(("tokenizer", "position"), pairs_of_position),
    Rule(("tokenizer", "token_mixer"), pairs_of_mixer),
    Rule(("position", "token_mixer"), ports),
)
RULES = (
    *chain.from_iterable((rule, of_source(rule)) for rule in OF_INPUTS),
    Rule(("data", "tokenizer"), written_images),
    *map(of_row, OF_SEQUENCE),
    *map(of_source, OF_SEQUENCE),
    Rule(("data", "source_tokenizer"), source_tokenizer),
    Rule(("data", "source_position"), source_position),
    Rule(("model", "source_tokenizer"), shared_embedder),
    Rule(("model", "token_mixer"), mixer_of_latents),
    Rule(("model", "token_mixer"), features_of_latents),
    Rule(("model", "token_mixer"), ids_of_latents),
    Rule(("model", "token_mixer"), pairs_of_latents),
    Rule(("model", "position"), later_tokens_of_position),
    Rule(("model", "position"), positions_of_model),
)
