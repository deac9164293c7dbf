"""The files that `blockyard new` writes: for each family a component that works, and its test against a formula."""

from __future__ import annotations

from blockyard.commands.templates.around import POOLED_HEAD, POSITION
from blockyard.commands.templates.blocks import BLOCK, NORM, RESIDUAL
from blockyard.commands.templates.mixers import CARRYING_MIXER, CHANNEL_MIXER, ROUTING_MIXER, TOKEN_MIXER
from blockyard.commands.templates.models import MODEL
from blockyard.commands.templates.shared import Template
from blockyard.commands.templates.tasks import DATA, OBJECTIVE, TOKENIZER
from blockyard.commands.templates.training import CALLBACK, OPTIMIZER, PARAMETRIZATION, SCHEDULE

TEMPLATES = {
    "token_mixer": TOKEN_MIXER,
    "channel_mixer": CHANNEL_MIXER,
    "norm": NORM,
    "block": BLOCK,
    "residual": RESIDUAL,
    "position": POSITION,
    "head": POOLED_HEAD,
    "model": MODEL,
    "data": DATA,
    "tokenizer": TOKENIZER,
    "objective": OBJECTIVE,
    "parametrization": PARAMETRIZATION,
    "optimizer": OPTIMIZER,
    "schedule": SCHEDULE,
    "callbacks": CALLBACK,
}
# Others of a family, by the name that `kind=` gives them.
KINDS = {
    "token_mixer": {"carrying": CARRYING_MIXER},
    "channel_mixer": {"routing": ROUTING_MIXER},
}


def template_of(family: str, kind: str | None = None) -> Template:
    """The template of a family. Raises KeyError for a kind that the family has not."""
    return TEMPLATES[family] if kind is None else KINDS[family][kind]
