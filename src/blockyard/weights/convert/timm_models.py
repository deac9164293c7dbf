"""Models of timm: their sizes, read from the library's own model on the meta device, and names that fit a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockyard.errors import UserError, first_line, near, quoted
from blockyard.weights.convert.declared_sizes import Stored, flag, real_number, whole_number
from blockyard.weights.convert.settings import LibraryConfig

# The names that an export tries, by preset: in timm they fix width, depth and patch.
_NAMES = {
    "mixer": ("mixer_s32_224", "mixer_s16_224", "mixer_b32_224", "mixer_b16_224", "mixer_l32_224", "mixer_l16_224"),
    "gmlp": ("gmlp_ti16_224", "gmlp_s16_224", "gmlp_b16_224"),
}
# Modules of a model that no preset has.
_EXTRAS = ("norm_pre", "fc_norm", "attn_pool")

# Arguments of a model of timm that a file may set, and the type of each. All others are refused: some open files
# (checkpoint_path), download (pretrained) or change what the model is (features_only, pretrained_cfg).
_NUMBERS = ("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "reg_tokens")
_FLAGS = (
    *("class_token", "no_embed_class", "qkv_bias", "qk_norm", "pre_norm", "fc_norm", "final_norm", "proj_bias"),
    *("dynamic_img_size", "dynamic_img_pad", "reg_prefix", "scale_attn_norm", "scale_mlp_norm", "flatten"),
)
_NAMES_OF = ("global_pool", "act_layer", "pos_embed", "norm_layer", "weight_init")
_RATES = ("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate")
_RATIOS = ("mlp_ratio", "init_values")
INITIAL = 1e-5  # of LayerScale; the weights replace it
_WIDEST = 64.0  # ratio of a hidden width


def checked_arguments(name: str, arguments: Mapping[str, Any], stored: Stored | None = None) -> LibraryConfig:
    """Return the arguments of a model of timm from a file. Raises UserError for an unknown one, or bad values."""
    where = f"cannot build {name}: model_args"
    checked: LibraryConfig = {}
    for key, value in arguments.items():
        if key in _NUMBERS:
            pair = value if isinstance(value, list) and len(value) == 2 and "size" in key else [value]
            least = 0 if key in ("num_classes", "reg_tokens") else 1
            of_file = None if key in ("img_size", "num_classes") else stored
            numbers = [whole_number(where, key, number, least=least, stored=of_file) for number in pair]
            checked[key] = tuple(numbers) if isinstance(value, list) else numbers[0]
        elif value is None and key in (*_FLAGS, *_NAMES_OF, *_RATIOS):
            checked[key] = None
        elif key in _FLAGS:
            checked[key] = flag(where, key, value)
        elif key in _NAMES_OF and isinstance(value, str):
            checked[key] = value
        elif key in _RATES:
            checked[key] = real_number(where, key, value)
        elif key in _RATIOS:
            pair = value if isinstance(value, list) and len(value) == 2 else [value]
            ratios = [real_number(where, key, ratio) for ratio in pair]
            if any(not 0 < ratio <= _WIDEST for ratio in ratios):
                raise UserError(f"{where}: {key}={quoted(value)}: expected numbers above 0, at most {_WIDEST:g}")
            checked[key] = tuple(ratios) if isinstance(value, list) else ratios[0]
        else:
            accepted = ", ".join((*_NUMBERS, *_RATIOS, *_FLAGS, *_NAMES_OF, *_RATES))
            raise UserError(f"{where}: {key}={quoted(value)} is not taken from a file (these are: {accepted})")
    return checked


def create(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return a model of timm without memory for its weights. Raises UserError if timm refuses it."""
    import timm
    import torch

    if not timm.is_model(name):
        names = near(name, timm.list_models())
        hint = ""
        if names:
            hint = f"; did you mean {', '.join(names)}?"
        raise UserError(f"timm has no model {name!r}{hint}")
    try:
        with torch.device("meta"):
            return timm.create_model(name, pretrained=False, **arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError, LookupError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"timm cannot build {name} with {dict(arguments)} ({reason})") from error


def describe(name: str, arguments: Mapping[str, Any]) -> tuple[str, LibraryConfig]:
    """Return the preset of a timm model, and its sizes. Raises UserError for a model that no preset is like."""
    model = create(name, arguments)
    kind = type(model).__name__
    if kind == "VisionTransformer":
        has_layer_scale = _weighted(getattr(model.blocks[0], "ls1", None))
        preset = "dinov2" if has_layer_scale else "vit"
        return preset, _vision_transformer(model)
    if kind == "MlpMixer":
        inner = type(model.blocks[0]).__name__
        readers = {"MixerBlock": ("mixer", _mixer), "SpatialGatingBlock": ("gmlp", _gated)}
        if inner in readers:
            preset, read = readers[inner]
            return preset, read(model)
        kind = inner
    if kind == "MetaFormer":
        return "poolformer", _metaformer(model)
    raise UserError(f"{name} is a {kind} of timm, which no preset is like")


def _weighted(module: Any) -> bool:
    """Return whether a module is there and has weights."""
    return module is not None and any(True for _ in module.parameters())


def _common(model: Any, stem: Any) -> LibraryConfig:
    """Return the sizes that models of patches share. Raises UserError for parts that no preset has."""
    if type(stem).__name__ != "PatchEmbed" or _weighted(stem.norm):
        raise UserError(f"the stem of the model is {type(stem).__name__}, expected plain patches")
    height, width = stem.img_size
    rows, columns = stem.patch_size
    if height != width or rows != columns:
        raise UserError(f"images of {height} x {width} in patches of {rows} x {columns}: expected squares")
    extra = [name for name in _EXTRAS if _weighted(getattr(model, name, None))]
    if extra:
        raise UserError(f"the model has {', '.join(extra)}, which no preset has")
    return {
        "img_size": height,
        "patch_size": rows,
        "in_chans": stem.proj.in_channels,
        "embed_dim": model.embed_dim,
        "num_classes": model.num_classes,
        "depth": len(model.blocks),
        "global_pool": model.global_pool,
    }


def _vision_transformer(model: Any) -> LibraryConfig:
    block = model.blocks[0]
    if type(block).__name__ != "Block" or type(block.attn).__name__ != "Attention" or type(block.mlp).__name__ != "Mlp":
        raise UserError(
            f"its blocks are {type(block).__name__} of {type(block.attn).__name__}, expected the plain ones"
        )
    extras = {"qk_norm": block.attn.q_norm, "scale_attn_norm": block.attn.norm, "scale_mlp_norm": block.mlp.norm}
    for name, module in extras.items():
        if _weighted(module):
            raise UserError(f"the model has {name}, which preset=vit has not")
    sizes = {
        "num_heads": block.attn.num_heads,
        "hidden": block.mlp.fc1.out_features,
        "eps": block.norm1.eps,
        "act": type(block.mlp.act).__name__,
        "qkv_bias": block.attn.qkv.bias is not None,
        "class_token": model.has_class_token,
        "reg_tokens": model.num_reg_tokens,
        "no_embed_class": model.no_embed_class,
        "pos_embed": model.pos_embed is not None,
    }
    if _weighted(block.ls1):
        sizes["init_values"] = INITIAL
    return _common(model, model.patch_embed) | sizes


def _mixer(model: Any) -> LibraryConfig:
    block = model.blocks[0]
    return _common(model, model.stem) | {
        "token_hidden": block.mlp_tokens.fc1.out_features,
        "hidden": block.mlp_channels.fc1.out_features,
        "eps": block.norm1.eps,
        "act": type(block.mlp_tokens.act).__name__,
    }


def _gated(model: Any) -> LibraryConfig:
    block = model.blocks[0]
    return _common(model, model.stem) | {
        "hidden": block.mlp_channels.fc1.out_features,
        "eps": block.norm.eps,
        "act": type(block.mlp_channels.act).__name__,
    }


def _metaformer(model: Any) -> LibraryConfig:
    stage = model.stages[0]
    block = stage.blocks[0]
    if type(block.token_mixer).__name__ != "Pooling":
        raise UserError(f"its token mixer is {type(block.token_mixer).__name__}, expected Pooling")
    return {
        "stages": len(model.stages),
        "embed_dim": block.mlp.fc1.in_channels,
        "depth": len(stage.blocks),
        "hidden": block.mlp.fc1.out_channels,
        "num_classes": model.num_classes,
        "in_chans": model.stem.conv.in_channels,
        "img_size": 224,
    }


def arguments_of(preset: str, sizes: Mapping[str, Any]) -> tuple[str, LibraryConfig]:
    """Return a name of timm and arguments that build a model of these sizes. Raises UserError if no name fits."""
    shared = {key: sizes[key] for key in ("img_size", "in_chans", "num_classes")}
    if preset in ("vit", "dinov2"):
        names = ("patch_size", "embed_dim", "depth", "num_heads", "class_token", "reg_tokens")
        arguments = shared | {key: sizes[key] for key in (*names, "no_embed_class", "global_pool")}
        arguments["mlp_ratio"] = sizes["hidden"] / sizes["embed_dim"]
        if sizes["global_pool"] == "avg":
            arguments["fc_norm"] = False  # our model normalises before the mean
        if preset == "dinov2":
            arguments["init_values"] = sizes["init_values"]
        return "vit_tiny_patch16_224", arguments  # each of its sizes is among the arguments
    if preset == "mixer":
        dim = sizes["embed_dim"]
        shared["mlp_ratio"] = [sizes["token_hidden"] / dim, sizes["hidden"] / dim]
    there = []
    for name in _NAMES[preset]:
        _, fixed = describe(name, shared)
        keys = ["embed_dim", "depth", "patch_size"]
        if preset == "gmlp":
            keys.append("hidden")  # an argument of the other classes
        if all(fixed[key] == sizes[key] for key in keys):
            return name, shared
        there.append(f"{name} (dim={fixed['embed_dim']}, depth={fixed['depth']}, patches of {fixed['patch_size']})")
    raise UserError(
        f"timm's names fix the sizes of this model, and none has model.dim={sizes['embed_dim']}, "
        f"model.depth={sizes['depth']}, tokenizer.size={sizes['patch_size']}: there are {', '.join(there)}"
    )
