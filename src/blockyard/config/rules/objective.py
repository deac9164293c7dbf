"""Rules about the task: targets, heads, class tokens, tied tables."""

from __future__ import annotations

from blockyard.config.rules.declarations import Facts, Rule, of_read
from blockyard.contracts import plural

# What an objective needs the data to have.
_TARGETS = {
    "class": "a class for each sample",
    "symbols": "target tokens for each sequence",
    "pixels": "a class for each pixel",
    "values": "real-valued targets",
    "labels": "several labels for each sample",
    "tags": "a tag for each word",
}

# What heads give that is no plain prediction.
_SPECIAL = {
    "mixture": "a mixture of densities per token",
    "contrast": "predictions and learned codes per token",
}


def target_of_objective(f: Facts) -> str | None:
    """The data has the target and the modality that the objective needs."""
    needs = f["objective"].target.target
    modality = f["objective"].target.modality
    if needs is not None and needs != f.data.target:
        return f"{f['objective']} needs {_TARGETS.get(needs, needs)}; {f['data']} has none"
    modalities = (modality,) if isinstance(modality, str) else modality
    if modalities is not None and f.data.modality not in modalities:
        return f"{f['objective']} is for {' and '.join(map(plural, modalities))}; {f['data']} gives {f.data.things}"
    if needs is None and modalities and f.data.modality == "text" and f.data.target not in (None, "symbols"):
        return f"{f['objective']} makes its targets from running text; {f['data']} gives a {f.data.target} for each one"
    return None


def patches_of_objective(f: Facts) -> str | None:
    """An objective that predicts the values of patches needs tokens that hold some of their own."""
    if not f["objective"].target.patches or f.tokens.patch is not None:
        return None
    problem = f"{f['objective']} predicts the values of patches; the tokens of {f['tokenizer']} share theirs"
    advice = f["tokenizer"].target.own_patches
    if advice:
        return f"{problem}: {advice}"
    return problem


def order_of_patches(f: Facts) -> str | None:
    """An objective of causal models that predicts patches needs vectors that do not depend on later ones."""
    objective = f["objective"].target
    if not objective.patches or not objective.needs_causal or f.tokens.causal:
        return None
    problem = f"{f['objective']} predicts later patches; vectors of {f['tokenizer']} depend on them"
    advice = f["tokenizer"].target.causal_patches
    if advice:
        return f"{problem}: {advice}"
    return problem


def ids_of_objective(f: Facts) -> str | None:
    """An objective that predicts the next token needs tokens with ids."""
    if not f["objective"].target.predicts_next or f.tokens.vocabulary is not None:
        return None
    return f"{f['objective']} predicts token ids; {f['tokenizer']} gives none"


def tokens_ahead(f: Facts) -> str | None:
    """Sequences that begin with a start token are for objectives that predict the tokens behind it."""
    objective = f["objective"].target
    if objective.reads_start and not f.tokens.ahead:
        return f"{f['objective']} predicts what follows a start token; {f['tokenizer']} makes none"
    if not f.tokens.ahead or objective.predicts_next or objective.reads_start:
        return None
    return f"{f['tokenizer']} makes sequences in which each token predicts the next one; {f['objective']} does not"


def head_of_objective(f: Facts) -> str | None:
    """The head predicts once a token, or once a sequence, or a density, as the objective takes it."""
    gives = f["head"].target.gives
    takes = f["objective"].target.takes
    if gives == takes:
        return None
    if gives in _SPECIAL or takes in _SPECIAL:
        needed = _SPECIAL.get(takes, f"one prediction per {takes}")
        available = _SPECIAL.get(gives, f"one prediction per {gives}")
        return f"{f['objective']} needs {needed}; {f['head']} gives {available}"
    return f"{f['objective']} needs one prediction per {takes}; {f['head']} gives one per {gives}"


def class_token(f: Facts) -> str | None:
    """A head that reads the class token needs one."""
    if not f["head"].target.needs_class_token or (f.prefix is not None and f.prefix.class_token):
        return None
    if f.prefix is None:
        return f"{f['head']} reads the class token; {f['model']} cannot have one"
    return f"{f['head']} reads the class token; {f['model']} has none: model.prefix.class_token=true"


def class_token_sees(f: Facts) -> str | None:
    """A class token in front of a causal sequence sees none of it."""
    if not f["head"].target.needs_class_token or not f.causal:
        return None
    return f"{f['head']} reads a token in front of the sequence, which sees nothing in {f['model']}, a causal model"


def bidirectional_head(f: Facts) -> str | None:
    """A head that mixes all tokens is for models with tokens that see each other."""
    if not f["head"].target.bidirectional or not f.causal:
        return None
    return f"{f['head']} mixes all tokens; in {f['model']}, a causal model, the last one has read the others"


def fixed_length(f: Facts) -> str | None:
    """A head with weights for each position reads sequences of one length."""
    if not f["head"].target.fixed_length or not f.tokens.variable:
        return None
    return f"{f['head']} has weights for each position; {f['data']} has sequences of different lengths"


def fixed_length_of_model(f: Facts) -> str | None:
    """A head with weights for each position reads tokens, not latents."""
    if not f["head"].target.fixed_length or not f.latents:
        return None
    return f"{f['head']} has weights for each token; the head of {f['model']} reads latents"


def causality_of_head(f: Facts) -> str | None:
    """A head that predicts later tokens reads a causal model's tokens."""
    if not f["head"].target.later_ids or (f.causal and not f.latents):
        return None
    return f"{f['head']} predicts later tokens, for which the model must be causal; {f['model']} is not"


def source_of_head(f: Facts) -> str | None:
    """A head that predicts later tokens would also predict a source in front, but its tokens are given."""
    if not f["head"].target.later_ids or not f.data.joined:
        return None
    return f"{f['head']} predicts every later token, and of {f['data']} only the target is predicted: head=token"


def later_tokens_of_head(f: Facts) -> str | None:
    """A head that reads the last token alone tells every token about later ones."""
    if not f["head"].target.reads_last or not f["objective"].target.needs_causal:
        return None
    return f"{f['head']} reads the last token for all of them; {f['objective']} predicts tokens from earlier ones"


def strict_mixer(f: Facts) -> str | None:
    """An objective that predicts tokens at their own positions needs mixers that let no token read itself."""
    if not _strict(f) or f.traits.strict:
        return None
    return f"{_own(f)}; with {f['token_mixer']} a token reads itself: token_mixer=strict_attention asks=learned"


def strict_block(f: Facts) -> str | None:
    """It needs blocks that do not pass on their input."""
    if not _strict(f) or f["block"].target.replaces:
        return None
    return f"{_own(f)}; {f['block']} passes the token on to its own output: block=no_residual"


def strict_residual(f: Facts) -> str | None:
    """It needs a stream equal to the output of the last block."""
    if not _strict(f) or f["residual"].target.empty:
        return None
    return f"{_own(f)}; {f['residual']} passes earlier states of the stream on: residual=add"


def strict_model(f: Facts) -> str | None:
    """It needs a decoder of one sequence, with a head that reads the last block alone."""
    if not _strict(f):
        return None
    model = f["model"]
    order = model.options.get("order")
    if model.target.takes_source:
        return f"{_own(f)}, for which a decoder of one sequence is built; {model} reads a source too: model=decoder"
    if model.options.get("backout") is not None:
        return f"{_own(f)}; {model} takes an earlier stream out of the last one: model.backout=null"
    if order and order[0] != 0:
        return f"{_own(f)}; {model} visits another block before the first one: model.order=null"
    return None


def strict_tokens(f: Facts) -> str | None:
    """It needs sequences without a start token: their positions belong to the tokens before."""
    if not _strict(f) or not f.tokens.ahead:
        return None
    return f"{_own(f)}; the positions of {f['tokenizer']} are those of the tokens before: objective.shift=1"


def strict_head(f: Facts) -> str | None:
    """A head that gets later token ids reads its own targets."""
    if not _strict(f) or not f["head"].target.later_ids:
        return None
    return f"{_own(f)}; {f['head']} reads their ids"


def blocks_of_head(f: Facts) -> str | None:
    """A head with blocks of its own stands behind the blocks of a decoder."""
    if not f["head"].target.has_blocks or f["model"].target.extends:
        return None
    return f"{f['head']} has blocks of its own; {f['model']} does not build them"


def ids_of_head(f: Facts) -> str | None:
    """A head that predicts later tokens needs their ids."""
    if not f["head"].target.later_ids or f.tokens.vocabulary is not None:
        return None
    return f"{f['head']} predicts token ids; {f['tokenizer']} gives none"


def tied_head(f: Facts) -> str | None:
    """A tied head shares the token embedding table."""
    if not f["head"].target.ties(f["head"].options) or f.tokens.vocabulary is not None:
        return None
    return f"{f['head']} shares the token embedding table; {f['tokenizer']} has none: head.tied=false"


def tied_width(f: Facts) -> str | None:
    """A tied head shares embeddings as wide as the model; a concatenated position leaves narrower ones."""
    if not f["head"].target.ties(f["head"].options) or not f["position"].target.concatenates(f["position"].options):
        return None
    return (
        f"{f['head']} shares the token embedding table, whose vectors are narrower than the model beside a "
        f"concatenated {f['position']}: head.tied=false"
    )


def width_of_codes(f: Facts) -> str | None:
    """A head with learned codes reads embeddings as wide as the model; a concatenated position leaves narrower ones."""
    if f["head"].target.gives != "contrast" or not f["position"].target.concatenates(f["position"].options):
        return None
    return (
        f"{f['head']} reads embeddings, whose vectors are narrower than the model beside a concatenated {f['position']}"
    )


RULES = (
    Rule(("data", "objective"), target_of_objective),
    of_read(Rule(("tokenizer", "objective"), patches_of_objective)),
    of_read(Rule(("tokenizer", "objective"), order_of_patches)),
    of_read(Rule(("tokenizer", "objective"), ids_of_objective)),
    of_read(Rule(("tokenizer", "objective"), tokens_ahead)),
    Rule(("head", "objective"), head_of_objective),
    Rule(("head", "model"), class_token),
    Rule(("head", "model"), class_token_sees),
    Rule(("head", "model"), bidirectional_head),
    of_read(Rule(("data", "head"), fixed_length)),
    Rule(("head", "model"), fixed_length_of_model),
    of_read(Rule(("head", "tokenizer"), tied_head)),
    of_read(Rule(("head", "tokenizer"), ids_of_head)),
    Rule(("head", "model"), causality_of_head),
    Rule(("head", "model"), blocks_of_head),
    Rule(("head", "objective"), later_tokens_of_head),
    Rule(("data", "head"), source_of_head),
    Rule(("objective", "token_mixer"), strict_mixer),
    Rule(("objective", "block"), strict_block),
    Rule(("objective", "residual"), strict_residual),
    Rule(("objective", "model"), strict_model),
    of_read(Rule(("tokenizer", "objective"), strict_tokens)),
    Rule(("head", "objective"), strict_head),
    Rule(("head", "position"), tied_width),
    Rule(("head", "position"), width_of_codes),
)


def _strict(f: Facts) -> bool:
    return bool(f["objective"].target.needs_strict(f["objective"].options))


def _own(f: Facts) -> str:
    return f"{f['objective']} with shift=0 predicts each token at its own position, which the model must not read"
