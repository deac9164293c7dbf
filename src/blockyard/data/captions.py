"""Your own images with a caption each: a folder with metadata.jsonl, as Hugging Face's image folders have it.

Source: the ImageFolder layout of Hugging Face datasets; Vinyals et al. 2015, Show and Tell (arXiv 1411.4555), for the
    task
Reference: datasets.load_dataset("imagefolder")

    metadata.jsonl   {"file_name": "noto/1f431.png", "text": "cat face", "split": "train"}
                     {"file_name": "noto/1f436.png", "text": "dog face"}      split may be left out of all lines

Images lie in the folder or in .zip archives in it. They are brought to `size` x `size` as those of image_folder, and
transparent pixels are white. Without splits in the file `split_seed` draws them.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    DataSpec,
    Length,
    Samples,
    Seed,
    Side,
    Splits,
    Text,
    TextTokenizer,
    Tokenizer,
)
from blockyard.data._captioned_files import METADATA, read_captions, read_images
from blockyard.data._captions import caption_parts
from blockyard.data._decode import read_picture
from blockyard.data._loaded import LoadedData
from blockyard.data._split import Fraction, check_fractions, sha256
from blockyard.data._table_splits import split_rows

log = logging.getLogger("blockyard")


@dataclass(kw_only=True, eq=False)
class Captions(LoadedData):
    """Images with a caption each, decoded once.

    Options:
        path: the folder that holds metadata.jsonl
        text: the key of the captions in metadata.jsonl
        size: side of an image in pixels after resizing
        channels: 3 for color, 1 for grayscale
        blank: show an empty image, for the rival that sees nothing
        context: maximum tokens of a caption with its end token; longer ones are left out
        samples: maximum training images; null uses all
        train_size: training images to keep, before those with long captions are left out; null keeps all, and a
            smaller size selects a subset of a larger one
        validation_fraction: share of all images that is the validation split, if the file names none
        test_fraction: share of all images that is the test split, if the file names none
        split_seed: seed of the split; independent of the run's seed, so that all seeds share one split
        batch_size: images in a training step, over all processes
        eval_batch_size: images in a validation or test step, over all processes
    """

    path: Text = "data/captions"
    text: Text = "text"
    size: Side = 32
    channels: Literal[1, 3] = 3
    blank: bool = False
    context: Length = 32
    samples: Samples | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.1
    split_seed: Seed = 0
    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 256

    def __post_init__(self) -> None:
        check_fractions(self.validation_fraction, self.test_fraction)

    @property
    def spec(self) -> DataSpec:
        """Captions of different lengths, each of an image."""
        source = DataSpec("image", (self.channels, self.size, self.size))
        return DataSpec("text", (self.context,), variable=True, source=source)

    def missing(self) -> str | None:
        """Returns why there are no captions and what to do about it, or None."""
        if (self._folder / METADATA).is_file():
            return None
        return f"no {METADATA} in {self._folder.absolute()}; set data.path=FOLDER that holds one, and the images"

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Decodes the images and encodes the captions; fits the tokenizer on those of training if it has no state."""
        if not isinstance(tokenizer, TextTokenizer):
            raise ValueError(f"text data needs a text tokenizer, not {type(tokenizer).__name__}")
        captioned = read_captions(self._folder, self.text)
        images = read_images(captioned, channels=self.channels, size=self.size)
        self._fingerprint = sha256([images, *captioned.names, *captioned.texts])
        fractions = (self.validation_fraction, self.test_fraction)
        alike = torch.zeros(len(images), dtype=torch.int64)
        parts = split_rows(self._folder / METADATA, alike, captioned.assigned, fractions, self.split_seed)
        if self.samples is not None:
            parts[0] = parts[0][: self.samples]
        parts = [part[self.kept(number, len(part))] for number, part in enumerate(parts)]
        return caption_parts(parts, images, captioned.names, captioned.texts, self.spec, tokenizer, blank=self.blank)

    def read_source(self, path: str) -> Tensor:
        """Returns an image file as float32 (1, C, size, size) from -1 (black) to 1."""
        return read_picture(Path(os.path.expanduser(path)), channels=self.channels, size=self.size)

    @property
    def _folder(self) -> Path:
        return Path(os.path.expanduser(self.path))
