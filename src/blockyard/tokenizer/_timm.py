"""Shared parts of tokenizers with a timm network. timm is imported in functions, since its import takes seconds."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from blockyard.errors import near


@cache
def check_name(name: str) -> None:
    """Raise ValueError if timm has no model of this name."""
    import timm

    if not timm.is_model(name):
        close = near(name, timm.list_models())
        raise ValueError(f"tokenizer.name={name}: timm has no such model; nearest: {', '.join(close) or 'none'}")


def make(name: str, channels: int, size: tuple[int, int], *, pretrained: bool = False, **options: Any) -> nn.Module:
    """Return a timm network for images of `channels` and `size`, without its classifier.

    options: further arguments of `timm.create_model`: features_only and out_indices, or num_classes
    Raises ValueError if the network cannot read such images.
    """
    import timm

    check_name(name)
    options = {"pretrained": pretrained, "in_chans": channels, **options}
    try:
        try:
            return timm.create_model(name, img_size=size, **options)
        except TypeError:  # most convolutional networks have no img_size
            return timm.create_model(name, **options)
    except (AssertionError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        problem = _missing_stage(name, *options["out_indices"]) if "out_indices" in options else None
        if problem is not None:
            raise ValueError(problem) from error
        raise ValueError(f"tokenizer.name={name} cannot be built for these images: {error}") from error


def _missing_stage(name: str, stage: int) -> str | None:
    """Return a message if the network has no such stage, else None."""
    import timm

    try:
        with torch.device("meta"):
            network: Any = timm.create_model(name, features_only=True)
            count = len(network.feature_info)
    except (AssertionError, AttributeError, IndexError, RuntimeError, ValueError):
        return None  # it has no feature maps at all
    if -count <= stage < count:
        return None
    return f"tokenizer.stage={stage}: {name} has {count} feature maps, 0 to {count - 1} or -{count} to -1"


@cache
def output_shape(name: str, channels: int, size: tuple[int, int], stage: int | None) -> tuple[int, ...]:
    """Return the output shape for one image: (channels, rows, cols) of a stage, or (channels,) of the whole network.

    Computed on the meta device. Raises ValueError if the network cannot read such images.
    """
    options = {"num_classes": 0} if stage is None else {"features_only": True, "out_indices": (stage,)}
    with torch.device("meta"):
        network = make(name, channels, size, **options).eval()
        try:
            output = network(torch.zeros(1, channels, *size))
        except (AssertionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"tokenizer.name={name} cannot read images of {size[0]} x {size[1]} pixels: {error}"
            ) from error
    return tuple((output if stage is None else output[0]).shape[1:])
