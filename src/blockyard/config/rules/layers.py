"""Rules about kinds of layers: models that have them, and parts of a kind without effect inside its layers."""

from __future__ import annotations

from blockyard.config.rules.declarations import Facts, Rule


def layers_of_model(f: Facts) -> str | None:
    """A model without blocks has no layers that could differ."""
    differ = f["layers"].options.get("kinds") or f["layers"].options.get("pattern")
    if not differ or f["model"].target.stacks:
        return None
    return f"{f['model']} has no blocks, so {f['layers']} would not be used"


def enters_once(f: Facts) -> str | None:
    """The scheme of a kind acts inside mixers: tokens are placed once, before the first layer."""
    early = f["position"].target.acts_on & f["position"].target.before_blocks
    if "position" not in f.differing or not early:
        return None
    return f"{f['position']} acts on the tokens before the first layer, where only the config's own scheme does"


def scales_once(f: Facts) -> str | None:
    """The scheme of a kind is none for one grid: coordinates are scaled once, before the first layer."""
    if "position" not in f.differing or not f["position"].target.bounded or enters_once(f):
        return None
    return f"{f['position']} is made for one grid, to which only the config's own scheme scales coordinates"


def acts_in_source(f: Facts) -> str | None:
    """A kind with a scheme of its own needs a source without one: either could act in its layers over the source."""
    if "position" not in f.differing or "source_position" not in f.picks:
        return None
    return f"the layers over the source have {f['source_position']}, and those of this kind {f['position']}"


RULES = (
    Rule(("model", "layers"), layers_of_model),
    Rule(("position", "layers"), enters_once),
    Rule(("position", "layers"), scales_once),
    Rule(("position", "source_position"), acts_in_source),
)
