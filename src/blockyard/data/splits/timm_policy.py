"""Augmentation policies that timm makes from a string, such as timm:rand-m9-n2.

Source: Cubuk et al. 2019, AutoAugment (arXiv 1805.09501); Cubuk et al. 2020, RandAugment (arXiv 1909.13719); Hendrycks
    et al. 2020, AugMix (arXiv 1912.02781); Touvron et al. 2022, 3-Augment in DeiT III (arXiv 2204.07118)
Reference: timm.data.auto_augment

timm skips a section without digits, takes an unknown set of operations as the default set, and a section twice by
rules of its own. Those are refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

PREFIX = "timm:"
WHOLE, POSITIVE, REAL = "[0-9]{1,2}", "[1-9][0-9]?", r"[0-9]{1,3}(\.[0-9]{1,9})?"
SHARE = r"0(\.[0-9]{1,9})?|1(\.0)?"
_NOISE = {"mstd0.5": f"mstd{REAL}"}

# An example of each section that a policy takes, and its pattern.
SECTIONS = {
    "rand": {
        "m9": f"m{WHOLE}",
        "n2": f"n{POSITIVE}",
        "p0.5": f"p({SHARE})",
        "mmax10": f"mmax{POSITIVE}",
        "inc1": "inc[01]",
        "tweights (or t3a, t3aw)": "t(weights|3a|3aw)",
        **_NOISE,
    },
    "augmix": {
        "m5": f"m{WHOLE}",
        "w4": f"w{POSITIVE}",
        "d2": f"d{POSITIVE}",
        "a1.0": f"a{REAL}",
        "b1": "b[01]",
        **_NOISE,
    },
    **dict.fromkeys(("original", "originalr", "v0", "v0r", "3a"), _NOISE),
}


def check_policy(text: str) -> None:
    """Raise ValueError if timm cannot make a policy of `timm:NAME-SECTION-...`, or would ignore a part of it."""
    prefix, policy = text[: len(PREFIX)], text[len(PREFIX) :]
    name, *sections = policy.split("-")
    if prefix != PREFIX or name not in SECTIONS:
        raise ValueError(
            f"data.augment={text}: expected timm: and {', '.join(SECTIONS)}, with sections, such as timm:rand-m9-n2"
        )
    for pattern in SECTIONS[name].values():
        for section in sections:
            if re.fullmatch(pattern, section):
                sections.remove(section)
                break
    if sections:
        raise ValueError(
            f"data.augment={text}: the section {sections[0]!r} is not for {name}; it takes each of these at most once, "
            f"with numbers of your own: {', '.join(SECTIONS[name])}"
        )
    from PIL.Image import new

    try:
        make_policy(text)(new("RGB", (8, 8)))
    except ValueError as error:  # more operations without replacement than there are, for one
        raise ValueError(f"data.augment={text}: timm cannot apply it: {error}; use other numbers") from error


def make_policy(text: str) -> Callable[[Image], Image]:
    """Return timm's transform, of gray images too. It draws from the global generators of Python and NumPy.

    timm takes RGB images alone. Three equal channels stay equal under all of its operations, so gray stays gray.
    """
    from timm.data.auto_augment import (  # importing timm takes seconds
        augment_and_mix_transform,
        auto_augment_transform,
        rand_augment_transform,
    )

    policy = text.removeprefix(PREFIX)
    makers = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform}
    make = makers.get(policy.split("-")[0], auto_augment_transform)
    transform = make(policy)

    def apply(image: Image) -> Image:
        changed: Image = transform(image.convert("RGB"))
        return changed.convert(image.mode)

    return apply
