"""Rules about blocks: the mixers that they can hold, models with or without blocks, and how blocks are trained."""

from __future__ import annotations

from blockyard.config.rules.declarations import Facts, Pick, Rule
from blockyard.contracts import Block, TokenMixer


def fusing_tokens(f: Facts) -> str | None:
    """A fused block needs a token mixer that is projection, mix, projection."""
    return _fusing(f, "token_mixer")


def fusing_channels(f: Facts) -> str | None:
    """A fused block needs a channel mixer that is projection, mix, projection."""
    return _fusing(f, "channel_mixer")


def single_block(f: Facts) -> str | None:
    """A block of one mixer holds no channel mixer."""
    if not f["block"].target.single or f["channel_mixer"].target.empty:
        return None
    return f"{f['block']} has a token mixer only, so {f['channel_mixer']} would not be used"


def nothing_mixes(f: Facts) -> str | None:
    """A block needs a mixer that is not empty."""
    empty = f["token_mixer"].target.empty and f["channel_mixer"].target.empty
    if not empty or not f["model"].target.stacks:
        return None
    return f"{f['token_mixer']} and {f['channel_mixer']} are both empty, so a block would do nothing"


def cross_of_block(f: Facts) -> str | None:
    """A decoder with cross-attention needs blocks that support it."""
    if not f["model"].target.crosses or f["block"].target.add_cross is not Block.add_cross:
        return None
    return f"{f['block']} does not support the cross-attention of {f['model']}"


def blocks_of_model(f: Facts) -> str | None:
    """A model that stacks blocks needs one, and one without blocks takes none."""
    return _unused(f, "block", refuse_empty=True)


def norm_of_model(f: Facts) -> str | None:
    """A model without blocks takes no norm."""
    return _unused(f, "norm")


def token_mixer_of_model(f: Facts) -> str | None:
    """A model without blocks takes no token mixer."""
    return _unused(f, "token_mixer")


def channel_mixer_of_model(f: Facts) -> str | None:
    """A model without blocks takes no channel mixer."""
    return _unused(f, "channel_mixer")


def residual_of_model(f: Facts) -> str | None:
    """A model without blocks has no outputs to join."""
    return _unused(f, "residual")


def additions_of_block(f: Facts) -> str | None:
    """A residual choice that treats additions of blocks needs a block that adds to its input."""
    if not f["residual"].target.of_additions or f["block"].target.adds or not f["model"].target.stacks:
        return None
    return f"{f['residual']} treats what a block adds to its input; {f['block']} scales, normalises or replaces it"


def given_to_layers(f: Facts) -> str | None:
    """Some layer must give the values that other layers take of earlier ones."""
    missing = f.traits.takes - f.carried
    if not missing:
        return None
    names = " and ".join(sorted(missing)).replace("_", " ")
    return (
        f"the layers of {f['token_mixer']} read the {names} of an earlier layer, and none in front of them gives any: "
        "token_mixer.kv_every=2 computes them in every second layer, and a kind of layers or a member of "
        "token_mixer=cycle gives them to the next ones"
    )


def branches_of_block(f: Facts) -> str | None:
    """A parametrization with a factor on branches needs a block that adds them to its input."""
    scales = f["parametrization"].target.scales_branches(f["parametrization"].options)
    if not scales or f["block"].target.adds or not f["model"].target.stacks:
        return None
    return (
        f"{f['parametrization']} has a factor on what a block adds to its input (base_depth, branch); {f['block']} "
        "scales, normalises or replaces it"
    )


def scores_of_mixer(f: Facts) -> str | None:
    """A parametrization with a factor on scores needs a token mixer that has scores."""
    mixer = f["token_mixer"]
    scales = f["parametrization"].target.scales_scores(f["parametrization"].options)
    if not scales or "scores" in mixer.target.traits_for(mixer.options).ports:
        return None
    return f"{f['parametrization']} has a factor on scores of attention, and {mixer} has none"


def updates_of_optimizer(f: Facts) -> str | None:
    """A parametrization with factors on learning rates must know how large the updates of the optimizer are."""
    optimizer = f["optimizer"]
    if not f["parametrization"].target.scales or optimizer.target.update_rule(optimizer.options) is not None:
        return None
    choice = str(optimizer)
    name = optimizer.options.get("name")
    if name is not None:
        choice += f" optimizer.name={name}"
    return f"{f['parametrization']} derives learning rates from how large updates are, which is not known of {choice}"


RULES = (
    Rule(("model", "token_mixer"), given_to_layers),
    Rule(("parametrization", "block"), branches_of_block),
    Rule(("parametrization", "token_mixer"), scores_of_mixer),
    Rule(("parametrization", "optimizer"), updates_of_optimizer),
    Rule(("model", "residual"), residual_of_model),
    Rule(("residual", "block"), additions_of_block),
    Rule(("block", "token_mixer"), fusing_tokens),
    Rule(("block", "channel_mixer"), fusing_channels),
    Rule(("block", "channel_mixer"), single_block),
    Rule(("token_mixer", "channel_mixer"), nothing_mixes),
    Rule(("model", "block"), cross_of_block),
    Rule(("model", "block"), blocks_of_model),
    Rule(("model", "norm"), norm_of_model),
    Rule(("model", "token_mixer"), token_mixer_of_model),
    Rule(("model", "channel_mixer"), channel_mixer_of_model),
)


def _fusing(f: Facts, family: str) -> str | None:
    """A fused block needs a mixer of the family that is projection, mix, projection."""
    block = f["block"]
    mixer = f[family]
    if not block.target.fuses(block.options) or _projected(mixer):
        return None
    return f"{block} fuses the matmuls of both mixers; {mixer} has none to share: block.fused=false"


def _unused(f: Facts, family: str, refuse_empty: bool = False) -> str | None:
    """A model without blocks takes no choice of the family. refuse_empty: a model with blocks needs one."""
    stacks = f["model"].target.stacks
    empty = getattr(f[family].target, "empty", False)
    if not stacks and not empty:
        return f"{f['model']} has no blocks, so {f[family]} would not be used"
    if stacks and empty and refuse_empty:
        return f"{f['model']} stacks blocks; {f[family]} is none"
    return None


def _projected(mixer: Pick) -> bool:
    """Return whether a mixer follows `contracts.Projected`."""
    if issubclass(mixer.target, TokenMixer):
        return mixer.target.has("mix", mixer.options)
    return callable(getattr(mixer.target, "mix", None))
