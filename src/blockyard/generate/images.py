"""Images from a trained decoder of image tokens: drawn from nothing, of a class, or completed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.atomic_files import replacing
from blockyard.contracts import DrawsValues, Model
from blockyard.data.splits.image_tokens import ImageTokenSplit
from blockyard.errors import UserError
from blockyard.generate.decode import collected, decode_batch
from blockyard.generate.draft import Run
from blockyard.generate.request import check_device, check_learned, check_options
from blockyard.generate.sampling import samplers
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import NO_CACHE, has_fixed_length, new_cache
from blockyard.model._cache import Cache
from blockyard.runs.load import Loaded, load, splits_of
from blockyard.tokenizer._image_tokens import ImageTokens

_SIDE = 64  # least side of an image in the picture, in pixels
_GROUP = 10  # completions side by side
_GAP = 2  # pixels of an image between two
_PAPER = 255
_ABSENT = 128  # the gray of pixels that were not given


@dataclass(frozen=True)
class GeneratedImages:
    """Images that a run drew.

    images: uint8 (n, C, height, width) of `levels` gray levels
    classes: (n,) int64, the class of each image; None for a run without classes
    true: the test images with a given beginning, as `images`; None if nothing was given
    given: bool (height, width), the given pixels
    """

    images: Tensor
    levels: int
    classes: Tensor | None
    true: Tensor | None
    given: Tensor
    stats: Stats
    loaded: Loaded


def generate_images(
    run: Run,
    count: int = 16,
    *,
    label: int | None = None,
    given: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    cache: bool = True,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    device: str = "cpu",
) -> GeneratedImages:
    """Draw `count` images. Image i uses seed + i, so that the first one is as if alone.

    label: the class of all images, for a run that was trained with tokenizer.condition=class; None goes through the
        classes in turn
    given: rows of tokens taken from test images, of this class if there is one; columns with tokenizer.order=column
    temperature, top_k, top_p, seed, cache, device: as in `generate_all`; all tokens may be drawn by default. Patches
        of real values have a temperature alone: see `PatchDensity.draw`

    Raises UserError for a run that draws no images, and for a class or rows that it does not have.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    loaded = load_to_draw(run, sampling, which=which, outputs=outputs, device=device, allow=allow)
    tokenizer = _image_tokenizer(loaded)
    if loaded.model.ctx.data.source is not None:
        raise UserError(f'{loaded.folder.name} draws what a source asks for; it needs one, such as source="..."')
    if isinstance(loaded.objective, DrawsValues):
        _refuse_cutting(loaded, top_k, top_p)
    classes = _classes(loaded, tokenizer, count, label)
    true = None
    prompt = torch.empty(count, 0, *tokenizer.item, dtype=torch.int64)
    if given:
        width = _check_given(loaded, tokenizer, given)
        true, true_classes = _test_images(loaded, count, label)
        if classes is not None:
            classes = true_classes
        prompt = tokenizer.encode(true)[:, : given * width]  # (n, given tokens)
    start_classes = classes
    if start_classes is None:
        start_classes = torch.zeros(count, dtype=torch.int64)
    start = tokenizer.start(start_classes)
    prompts = torch.cat([start[:, None], prompt], 1)  # (n, 1 + given tokens, *item)
    stats = Stats(prompt_tokens=count * prompts.shape[1])
    missing = len(tokenizer.cells) - prompt.shape[1]
    if isinstance(loaded.objective, DrawsValues):
        first_seed = seed or 0
        seeds = range(first_seed, first_seed + count)
        drawn = write_patches(
            loaded.model, loaded.objective, prompts, missing, temperature, seeds, cache=cache, stats=stats
        )
    else:
        choose = samplers(count, temperature, top_k, top_p, seed)
        steps = decode_batch(loaded.model, prompts.tolist(), choose, max_tokens=missing, cache=cache, stats=stats)
        drawn = torch.cat([prompt, torch.tensor(collected(steps, count))], 1)
    images = tokenizer.decode(drawn)
    return GeneratedImages(
        images=images,
        levels=tokenizer.levels,
        classes=classes,
        true=true,
        given=_mask(tokenizer, prompt.shape[1], images),
        stats=stats,
        loaded=loaded,
    )


def load_to_draw(run: Run, sampling: dict[str, Any], *, device: str, **settings: Any) -> Loaded:
    """Return a run that is to sample images or sounds. sampling: its options by name; settings: of `load`

    Raises UserError for options out of range, and for a device or a run that does not exist.
    """
    options = dict(sampling)
    if options["temperature"] == 1:
        options["temperature"] = None  # the default, as if it were not set
    check_options(1, None, None, options)
    check_device(device)
    if isinstance(run, Loaded):
        return run
    return load(run, device=device, **settings)


def _refuse_cutting(loaded: Loaded, top_k: int | None, top_p: float | None) -> None:
    """Raise UserError for options about token ids, of a run whose tokens are real values."""
    for name, value in (("top_k", top_k), ("top_p", top_p)):
        if value is not None:
            raise UserError(
                f"{name}={value}: {loaded.folder.name} draws patches from a density, which has no most likely tokens; "
                "use temperature="
            )


def _image_tokenizer(loaded: Loaded) -> ImageTokens:
    """Return the tokenizer of a run that draws images. Raises UserError for other runs, and if its state is lost."""
    objective = loaded.objective
    if not isinstance(loaded.tokenizer, ImageTokens) or not (objective.predicts_next or objective.reads_start):
        raise UserError(
            f"{loaded.folder.name} does not draw images: images= needs a run of objective=next_token with tokens of "
            "images, such as tokenizer=levels, or of objective=patch_density"
        )
    tokenizer = loaded.tokenizer
    image = torch.zeros(1, len(tokenizer.cells), *tokenizer.item, dtype=torch.int64)
    check_learned(loaded, partial(tokenizer.decode, image))
    return tokenizer


def _classes(loaded: Loaded, tokenizer: ImageTokens, count: int, label: int | None) -> Tensor | None:
    """Return the class of each image; None for a run without classes. Raises UserError for an unknown class."""
    if tokenizer.condition is None:
        if label is not None:
            raise UserError(
                f"class={label}: {loaded.folder.name} was trained without classes; tokenizer.condition=class trains a "
                "run that draws images of a class"
            )
        return None
    classes = loaded.data.spec.classes
    assert classes is not None
    if label is None:
        return torch.arange(count) % classes
    if label >= classes:
        raise UserError(f"class={label}: the data of {loaded.folder.name} has {classes} classes, 0 to {classes - 1}")
    return torch.full((count,), label)


def _check_given(loaded: Loaded, tokenizer: ImageTokens, given: int) -> int:
    """Return the number of tokens of a row. Raises UserError for so many rows that nothing is left to draw."""
    if tokenizer.order == "random":
        raise UserError(f"given={given}: {loaded.folder.name} draws tokens in a random order, not row by row")
    rows, width = loaded.model.ctx.tokens.grid
    if given >= rows:
        kind = "columns" if tokenizer.order == "column" else "rows"
        raise UserError(f"given={given}: an image of {loaded.folder.name} has {rows} {kind} of tokens; give fewer")
    return int(width)


def _test_images(loaded: Loaded, count: int, label: int | None) -> tuple[Tensor, Tensor]:
    """Return the first test images, of a class if one is named, with their classes. Raises UserError for too few."""
    split = splits_of(loaded).test
    assert isinstance(split, ImageTokenSplit)
    batch = split.images.batch(torch.arange(len(split)), None)
    assert isinstance(batch.target, Tensor)
    chosen = torch.arange(len(split))
    if label is not None:
        chosen = (batch.target == label).nonzero()[:, 0]
    if len(chosen) < count:
        raise UserError(f"images={count}: the test split has {len(chosen)} images to complete; use fewer")
    return batch.inputs[chosen[:count]], batch.target[chosen[:count]]


def _mask(tokenizer: ImageTokens, count: int, images: Tensor) -> Tensor:
    """Return the pixels (height, width) bool of the first `count` tokens."""
    height, width = images.shape[2:]
    side = math.isqrt(height * width // len(tokenizer.cells))
    cells = torch.zeros(len(tokenizer.cells), dtype=torch.bool)
    cells[tokenizer.cells[:count]] = True
    grid = cells.view(height // side, width // side)
    return grid.repeat_interleave(side, 0).repeat_interleave(side, 1)


def write_grid(result: GeneratedImages, path: Path) -> Path:
    """Write the images row by row; completions as three rows: the given pixels, the completion, the true image."""
    images = bytes_of(result.images, result.levels)
    if result.true is None:
        columns = _columns(len(images))
        lines = images.split(columns)
    else:
        true = bytes_of(result.true, result.levels)
        shown = torch.where(result.given, true, torch.full_like(true, _ABSENT))
        groups = zip(shown.split(_GROUP), images.split(_GROUP), true.split(_GROUP), strict=True)
        lines = tuple(chain.from_iterable(groups))
    return save(paste(lines), path)


def write_rows(rows: Sequence[Sequence[Tensor]], levels: int, path: Path) -> Path:
    """Write rows of images, each uint8 (C, height, width) of `levels` gray levels."""
    return save(paste(tuple(bytes_of(torch.stack(list(row)), levels) for row in rows)), path)


def bytes_of(images: Tensor, levels: int) -> Tensor:
    """Return images (n, C, height, width) of `levels` gray levels as bytes from black to white."""
    return (images.float() * 255 / (levels - 1)).round().to(torch.uint8)


def _columns(count: int) -> int:
    """Return the number of images in a row."""
    if count % 10 == 0:  # full rows: data often have ten classes
        return 10
    return min(count, max(1, round(count**0.5)))


def paste(lines: tuple[Tensor, ...]) -> Tensor:
    """Return rows of images (n, C, height, width) uint8 as one picture (height, width, C), white between them."""
    channels, height, width = lines[0].shape[1:]
    most = max(map(len, lines))
    picture = torch.full((channels, len(lines) * (height + _GAP) - _GAP, most * (width + _GAP) - _GAP), _PAPER)
    for row, line in enumerate(lines):
        for column, image in enumerate(line):
            top = row * (height + _GAP)
            left = column * (width + _GAP)
            picture[:, top : top + height, left : left + width] = image
    scale = max(1, -(-_SIDE // max(height, width)))
    return picture.repeat_interleave(scale, 1).repeat_interleave(scale, 2).permute(1, 2, 0).to(torch.uint8)


def save(picture: Tensor, path: Path) -> Path:
    """Write a picture (height, width, 1 or 3) uint8 as PNG; never a partial file."""
    from PIL import Image

    if picture.shape[2] == 1:
        picture = picture[..., 0]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        Image.fromarray(picture.contiguous().numpy()).save(temporary, format="PNG")
    return path


@torch.inference_mode()
def write_patches(
    model: Model,
    objective: DrawsValues,
    prompts: Tensor,
    missing: int,
    temperature: float,
    seeds: Sequence[int],
    *,
    cache: bool,
    stats: Stats,
) -> Tensor:
    """Return the tokens (n, N, V) of images that begin with prompts (n, 1 + given tokens, V), on the CPU.

    missing: tokens to write; seeds: of each image, so that it is as if alone

    Raises UserError if a prediction is not finite.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    device = next(model.parameters()).device
    kept = None
    if cache:
        kept = new_cache(model, len(prompts), stats)
    else:
        stats.method = f"{NO_CACHE} (cache=false)"
    tokens = prompts
    counted = time.perf_counter()
    for _ in range(missing):
        new = tokens if kept is None else tokens[:, kept.length :]
        prediction = _last(model, new.to(device), kept)  # (n, V')
        if not bool(prediction.isfinite().all()):
            raise UserError("the model's predictions are not finite: its weights are broken; try which=previous")
        pairs = zip(prediction, generators, strict=True)
        drawn = [objective.draw(patch, temperature, generator) for patch, generator in pairs]
        tokens = torch.cat([tokens, torch.stack(drawn)[:, None]], 1)
        now = time.perf_counter()
        stats.steps += 1
        stats.count(len(drawn), now - counted)
        counted = now
    if kept is not None and stats.steps:
        stats.cache_bytes = kept.bytes
        stats.cache_bytes_per_token = kept.bytes / kept.length / len(prompts)
    return tokens[:, 1:]


def _last(model: Model, tokens: Tensor, cache: Cache | None) -> Tensor:
    """Return the prediction (n, V') of the token after the last one, on the CPU."""
    if cache is not None:
        return model(tokens, cache=cache)[:, -1].float().cpu()
    length = tokens.shape[1]
    if has_fixed_length(model):
        # A causal model's predictions do not depend on what follows, so padding behind is harmless.
        tokens = torch.nn.functional.pad(tokens, (0, 0, 0, model.ctx.tokens.max_len - length))
    return model(tokens)[:, length - 1].float().cpu()
