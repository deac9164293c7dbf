"""What tokenizers with a network of timm share. timm is imported only where one is used: it takes seconds."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from blockyard.errors import near


@cache
def check_name(name: str) -> None:
    """Raises ValueError where timm has no model of this name."""
    import timm

    if not timm.is_model(name):
        close = near(name, timm.list_models())
        raise ValueError(f"tokenizer.name={name}: timm has no such model; nearest: {', '.join(close) or 'none'}")


def make(name: str, channels: int, size: tuple[int, int], *, pretrained: bool = False, **shape: Any) -> nn.Module:
    """A network of timm for images of `channels` and `size`, without its classifier.

    shape: what else `timm.create_model` is told: features_only and out_indices, or num_classes
    Raises ValueError where the network cannot read such images.
    """
    import timm

    check_name(name)
    given = {"pretrained": pretrained, "in_chans": channels, **shape}
    try:
        try:
            return timm.create_model(name, img_size=size, **given)
        except TypeError:  # most convolutional networks take any size
            return timm.create_model(name, **given)
    except (AssertionError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        if "out_indices" in shape and (problem := _no_stage(name, *shape["out_indices"])):
            raise ValueError(problem) from error
        raise ValueError(f"tokenizer.name={name} does not work here: {error}") from error


def _no_stage(name: str, stage: int) -> str | None:
    """What to say where a network has no such stage; None where that is not the reason."""
    import timm

    try:
        with torch.device("meta"):
            count = len(timm.create_model(name, features_only=True).feature_info)
    except (AssertionError, AttributeError, IndexError, RuntimeError, ValueError):
        return None  # it gives no feature maps at all
    if -count <= stage < count:
        return None
    return f"tokenizer.stage={stage}: {name} has {count} feature maps, 0 to {count - 1} or -{count} to -1"


@cache
def shape_of(name: str, channels: int, size: tuple[int, int], stage: int | None) -> tuple[int, ...]:
    """What comes out for one image: (channels, rows, cols) of a stage's map, or (channels,) of the whole network.

    Worked out on the meta device. Raises ValueError where the network cannot read such images.
    """
    what = {"num_classes": 0} if stage is None else {"features_only": True, "out_indices": (stage,)}
    with torch.device("meta"):
        network = make(name, channels, size, **what).eval()
        try:
            found = network(torch.zeros(1, channels, *size))
        except (AssertionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"tokenizer.name={name} cannot read images of {size[0]} x {size[1]} pixels: {error}"
            ) from error
    return tuple((found if stage is None else found[0]).shape[1:])
