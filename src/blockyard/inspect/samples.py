"""The samples that a model is inspected on, and the selected layers and heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import AsksForPart, Batch, ImageTokenizer, Split, TextTokenizer
from blockyard.data.splits.order import take
from blockyard.errors import UserError
from blockyard.inspect.labels import token_text
from blockyard.inspect.options import Options
from blockyard.inspect.sound import Sound, is_sound, sound_of
from blockyard.ops.maps import block_number
from blockyard.runs.load import Loaded, splits_of


@dataclass
class Sample:
    """One sample, as the model is called with it.

    batch: a batch of one; index: its index in the validation split, None for a prompt
    text: the text of each token, empty for inputs that are not text; source_text: the same for an encoder's input
    image: (height, width) or (height, width, 3) from 0 to 1, with pixels that the tokenizer adds; None if the input is
        not an image
    source_image: the same for an encoder's input
    region: (height, width) bool, the pixels of the source that are asked for; None if no part is
    sound: of inputs that are samples of sound; source_sound: the same for an encoder's input
    edges: joined pairs of nodes of a graph; None if the input is no graph
    """

    batch: Batch
    index: int | None
    text: list[str] = field(default_factory=list)
    source_text: list[str] = field(default_factory=list)
    image: Tensor | None = None
    source_image: Tensor | None = None
    region: Tensor | None = None
    sound: Sound | None = None
    source_sound: Sound | None = None
    edges: list[tuple[int, int]] | None = None

    @property
    def nodes(self) -> int:
        """The number of tokens without padding."""
        lengths = self.batch.lengths
        if lengths is None:
            return self.batch.inputs.shape[1]
        return int(lengths[0])

    def text_at(self, path: str) -> list[str]:
        """Return the text of the sequence that the module at `path` processes."""
        if "encoder" in path.split("."):
            return self.source_text
        return self.text

    @property
    def memory_text(self) -> list[str]:
        """The text of the sequence that cross-attention reads: the source if there is one."""
        return self.source_text or self.text

    @property
    def name(self) -> str:
        """The name of the sample in titles."""
        if self.index is None:
            return "the prompt"
        return f"validation sample {self.index}"


def samples_name(samples: list[Sample]) -> str:
    """Return the name of consecutive samples in titles."""
    if len(samples) == 1:
        return samples[0].name
    return f"validation samples {samples[0].index} to {samples[-1].index}"


def load_samples(loaded: Loaded, options: Options) -> list[Sample]:
    """Return the samples that `options` select. Raises UserError if they do not exist."""
    if options.prompt is not None:
        return [_prompt_sample(loaded, options.prompt)]
    split, indices = validation_samples(loaded, options)
    samples = [sample_of(loaded, take(split, torch.tensor([index]), None), index) for index in indices]
    if isinstance(split, AsksForPart):
        padding = loaded.model.ctx.source_tokens.padding or (0, 0, 0, 0)
        for sample, region in zip(samples, split.region(torch.tensor(indices)), strict=True):
            sample.region = F.pad(region, padding) if bool(region.any()) else None
    return samples


def validation_samples(loaded: Loaded, options: Options) -> tuple[Split, range]:
    """Return the validation split, and the indices that `options` select. Raises UserError if they do not exist."""
    split = splits_of(loaded).validation
    if options.sample >= len(split):
        raise UserError(
            f"sample={options.sample} is out of range: the validation split has {len(split)} samples, counted from 0"
        )
    return split, range(options.sample, min(options.sample + options.samples, len(split)))


def sample_of(loaded: Loaded, batch: Batch, index: int) -> Sample:
    """Return the sample of a batch of one from a split."""
    batch = loaded.objective.ready(batch)
    sample = Sample(batch, index)
    if isinstance(loaded.tokenizer, ImageTokenizer):
        assert isinstance(batch.target, Tensor)
        sample.image = _image(loaded.tokenizer.decode(batch.target)[0])
    elif is_sound(batch.inputs):
        sample.sound = sound_of(loaded, batch)
    elif batch.inputs.ndim == 2:
        sample.text = _texts(loaded, batch.inputs[0], batch.lengths)
    if batch.inputs.ndim == 4 and batch.inputs.shape[1] in (1, 3):
        sample.image = _image(batch.inputs[0], loaded.model.ctx.tokens.padding)
    if batch.pairs is not None:
        joined = (batch.pairs[0, : sample.nodes, : sample.nodes, 0] == 1).triu().nonzero()
        sample.edges = [(i, j) for i, j in joined.tolist()]
    if batch.source is not None:
        if batch.source.ndim == 4 and batch.source.shape[1] in (1, 3):
            sample.source_image = _image(batch.source[0], loaded.model.ctx.source_tokens.padding)
        elif is_sound(batch.source):
            sample.source_sound = sound_of(loaded, batch)
        elif batch.source.ndim == 2:
            of_source = replace(loaded, tokenizer=loaded.components.source_tokenizer)
            sample.source_text = _texts(of_source, batch.source[0], batch.source_lengths)
    return sample


def _prompt_sample(loaded: Loaded, prompt: str) -> Sample:
    name, max_len = loaded.folder.name, loaded.model.ctx.tokens.max_len
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"prompt: {name} reads {loaded.data.spec.things}, not text; use sample=INDEX")
    if loaded.components.architecture.takes_source:
        raise UserError(f"prompt: {name} reads a source and a target, a prompt is one text; use sample=INDEX")
    token_ids = loaded.tokenizer.encode(prompt)
    if not 0 < len(token_ids) <= max_len:
        raise UserError(f"prompt: it has {len(token_ids)} tokens; {name} takes 1 to {max_len}")
    inputs = torch.tensor([token_ids])  # (1, N)
    return Sample(Batch(inputs), None, text=_texts(loaded, inputs[0], None))


def _texts(loaded: Loaded, token_ids: Tensor, lengths: Tensor | None) -> list[str]:
    """Return the text of each token, padding excluded."""
    token_ids = token_ids if lengths is None else token_ids[: int(lengths[0])]
    return [token_text(loaded, token_id) for token_id in token_ids.tolist()]


def _image(pixels: Tensor, padding: tuple[int, int, int, int] | None = None) -> Tensor:
    """Return pixels (C, height, width) of any range as (height, width) or (height, width, 3), scaled to 0 to 1.

    padding: pixels that the tokenizer adds, so that the squares of its grid lie on the model's patches
    """
    pixels = pixels.float()
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / (high - low).clamp_min(1e-12)
    pixels = pixels if padding is None else F.pad(pixels, padding)
    if len(pixels) == 1:
        return pixels[0]
    return pixels.permute(1, 2, 0)


def select_layers(paths: Iterable[str], layers: tuple[int, ...] | None) -> list[str]:
    """Return the paths in these layers, all for None. Raises UserError for a layer that does not exist."""
    paths = list(paths)
    numbers = {block_number(path) for path in paths}
    existing = sorted(number for number in numbers if number is not None)
    unknown = [layer for layer in layers or () if layer not in existing]
    if unknown:
        raise UserError(
            f"layers={','.join(map(str, unknown))}: no such layer (layers: {', '.join(map(str, existing)) or 'none'})"
        )
    return [path for path in paths if layers is None or block_number(path) in layers]


def select_heads(count: int, heads: tuple[int, ...] | None) -> list[int]:
    """Return the selected heads of a layer that has `count`, all for None. Raises UserError for one beyond."""
    unknown = [head for head in heads or () if head >= count]
    if unknown:
        raise UserError(f"heads={','.join(map(str, unknown))}: no such head; a layer has {count}, counted from 0")
    return list(range(count)) if heads is None else list(heads)
