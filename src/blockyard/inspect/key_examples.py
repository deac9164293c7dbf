"""The strongest training tokens of a few keys, with the tokens around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Batch, Split
from blockyard.data._order import take
from blockyard.errors import UserError
from blockyard.inspect.labels import token_labels
from blockyard.inspect.memory_keys import LayerKeys, coefficients, key_mixers, strongest
from blockyard.inspect.options import Options
from blockyard.inspect.samples import Sample, load_splits, sample_of
from blockyard.runs.load import Loaded

SHOWN = 8  # keys of a layer, where none are named
AT_ONCE = 16  # samples of a forward pass


@dataclass(frozen=True)
class Example:
    """One token of the training split, and its sequence without prefix and padding.

    coefficients: (N,), of the key at each token; labels: names of the tokens
    image, grid: what the tokens are patches of, as `Sample.image`, and their layout; None where it is no image
    """

    sample: int
    token: int
    coefficients: Tensor
    labels: list[str]
    image: Tensor | None
    grid: tuple[int, ...] | None


@dataclass(frozen=True)
class ShownKey:
    """A key and its examples, the strongest first."""

    layer: LayerKeys
    key: int
    examples: list[Example]


def key_examples(loaded: Loaded, options: Options) -> tuple[list[LayerKeys], list[ShownKey], int]:
    """Returns the strongest training tokens of all keys, examples of those that are shown, and the samples searched.

    Raises UserError where no layer has keys, and for keys and layers that do not exist.
    """
    key_mixers(loaded.model, options.layers)  # refuses before any data is read
    split = load_splits(loaded).train
    count = min(options.train_samples, len(split))
    layers = strongest(loaded.model, _batches(loaded, split, count), options.examples, options.layers)
    chosen = [(layer, key) for layer in layers for key in _chosen(layer, options.keys)]
    wanted = {int(number) for layer, key in chosen for number in layer.samples[key]}
    samples = {number: sample_of(loaded, take(split, torch.tensor([number]), None), number) for number in wanted}
    by_sample = {number: _sequences(loaded, sample, options.layers) for number, sample in samples.items()}
    return layers, [_shown(layer, key, samples, by_sample) for layer, key in chosen], count


def _batches(loaded: Loaded, split: Split, count: int) -> Iterator[Batch]:
    for order in torch.arange(count).split(AT_ONCE):
        yield loaded.objective.ready(take(split, order, None))


def _chosen(layer: LayerKeys, keys: tuple[int, ...] | None) -> list[int]:
    if keys is None:
        return layer.coefficients[:, 0].argsort(dim=0, descending=True, stable=True)[:SHOWN].tolist()
    unknown = [key for key in keys if key >= len(layer.coefficients)]
    if unknown:
        raise UserError(
            f"keys={','.join(map(str, unknown))}: no such key; {layer.name} has {len(layer.coefficients)}, counted "
            "from 0"
        )
    return list(keys)


def _sequences(
    loaded: Loaded, sample: Sample, layers: tuple[int, ...] | None
) -> dict[str, tuple[Tensor, list[str], tuple[int, ...] | None]]:
    """Returns coefficients (N, E), labels and the grid of a sample without prefix and padding, by layer."""
    results = {}
    for path, (m, seq) in coefficients(loaded.model, sample.batch, key_mixers(loaded.model, layers)).items():
        real = int(torch.isfinite(m[0, :, 0]).sum())
        labels = token_labels(sample.text_at(path), loaded.model, seq)[seq.num_prefix :][:real]
        results[path] = (m[0, :real], labels, seq.grid)
    return results


def _shown(
    layer: LayerKeys,
    key: int,
    samples: dict[int, Sample],
    by_sample: dict[int, dict[str, tuple[Tensor, list[str], tuple[int, ...] | None]]],
) -> ShownKey:
    examples = []
    for number, token in zip(layer.samples[key].tolist(), layer.tokens[key].tolist(), strict=True):
        m, labels, grid = by_sample[number][layer.path]
        sample = samples[number]
        image = sample.source_image if "encoder" in layer.path.split(".") else sample.image
        if grid is None or len(grid) != 2 or grid[0] * grid[1] != len(m):
            image = None
        examples.append(Example(number, token, m[:, key], labels, image, grid))
    return ShownKey(layer, key, examples)
