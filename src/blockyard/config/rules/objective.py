"""What is asked and answered: targets, heads, class tokens, shared tables."""

from __future__ import annotations

from blockyard.config.rules.declarations import Facts, Rule
from blockyard.contracts import plural

# What an objective asks of the data, in words.
_TARGETS = {
    "class": "a class for each sample",
    "symbols": "symbols to answer with in each row",
    "pixels": "a class for each pixel",
}


def target_of_objective(f: Facts) -> str | None:
    """The data brings the target that the objective asks for."""
    needs, modal = f["objective"].target.target, f["objective"].target.modality
    if needs is not None and needs != f.data.target:
        return f"{f['objective']} needs {_TARGETS.get(needs, needs)}, {f['data']} has none"
    if modal is not None and modal != f.data.modality:
        return f"{f['objective']} is for {plural(modal)}, {f['data']} gives {f.data.things}"
    return None


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


RULES = (
    Rule(("data", "objective"), target_of_objective),
    Rule(("head", "objective"), head_of_objective),
    Rule(("head", "model"), class_token),
    Rule(("head", "model"), class_token_sees),
    Rule(("head", "tokenizer"), tied_head),
    Rule(("head", "position"), tied_width),
)
