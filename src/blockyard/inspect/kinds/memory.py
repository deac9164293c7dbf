"""`blockyard inspect memory`: the training tokens that each key of an MLP or a memory answers to most, in context.

Source: Geva et al. 2021, Transformer Feed-Forward Layers Are Key-Value Memories (arXiv 2012.14913), section 3.1: the
    trigger examples of a key are the inputs with the largest memory coefficients
Equation: m_i = f(x W_in)_i, the weight of value i: the activation of a hidden channel, or the softmax over keys

Of each sample only its strongest token counts for a key, so that the examples come from different samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Block, ChannelMixer, Seq
from blockyard.data.splits.order import take
from blockyard.errors import UserError
from blockyard.inspect._canvas import INK, printable, split_pages
from blockyard.inspect.labels import InLayer, token_labels
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Mark, Page, Panel, box, picture, signed, text
from blockyard.inspect.recorded_calls import forward_once
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import Sample, sample_of, select_layers
from blockyard.runs.load import Loaded, splits_of

OPTIONS = ("layers", "keys", "examples", "train_samples")

SHOWN = 8  # keys of a layer, if none are named
AT_ONCE = 16  # samples of a forward pass
BEFORE = 20  # tokens of a context before the example; as many follow unless the model is causal
_CONTEXT = 12  # tokens before an example, in the table
_KEYS = 8  # of a page
_COLUMNS = 10  # images of a row


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the strongest training tokens of the keys of the selected layers."""
    layers, shown, count = key_examples(loaded, options)
    causal = bool(loaded.model.ctx.causal)
    return InspectionResult(
        numbers={
            "train_samples": count,
            "layers": [_numbers(layer) for layer in layers],
            "shown": [_example_numbers(key, causal) for key in shown],
        },
        rows=[_row(key) for key in shown],
        pages=pages(shown, causal=causal),
        summary=f"Of {count:,} training samples, each of which counts once for a key; [ ] is the token",
    )


@dataclass(frozen=True)
class Example:
    """One token of the training split, and its sequence without prefix and padding.

    coefficients: (N,), of the key at each token; labels: names of the tokens
    image, grid: the image of the patches, as `Sample.image`, and their layout; None for tokens of anything else
    """

    sample: int
    token: int
    coefficients: Tensor
    labels: list[str]
    image: Tensor | None
    grid: tuple[int, ...] | None


class LayerSequence(NamedTuple):
    """The sequence of a sample in one layer, without prefix and padding.

    coefficients: (N, E); labels: names of the tokens; grid: their layout
    """

    coefficients: Tensor
    labels: list[str]
    grid: tuple[int, ...] | None


@dataclass(frozen=True)
class ShownKey:
    """A key and its examples, the strongest first."""

    layer: LayerKeys
    key: int
    examples: list[Example]


def key_examples(loaded: Loaded, options: Options) -> tuple[list[LayerKeys], list[ShownKey], int]:
    """Return the strongest training tokens of all keys, the shown keys with examples, and the number of samples.

    Raises UserError if no layer has keys, and for keys and layers that do not exist.
    """
    key_mixers(loaded.model, options.layers)  # refuses before any data is read
    split = splits_of(loaded).train
    count = min(options.train_samples, len(split))
    batches = (loaded.objective.ready(take(split, order, None)) for order in torch.arange(count).split(AT_ONCE))
    layers = strongest(loaded.model, batches, options.examples, options.layers)
    samples: dict[int, Sample] = {}
    sequences: dict[int, dict[str, LayerSequence]] = {}
    shown = []
    for layer in layers:
        for key in _chosen(layer, options.keys):
            for number in layer.samples[key].tolist():
                if number not in samples:  # one sample is often an example of several keys
                    samples[number] = sample_of(loaded, take(split, torch.tensor([number]), None), number)
                    sequences[number] = _sequences(loaded, samples[number], options.layers)
            shown.append(_shown(layer, key, samples, sequences))
    return layers, shown, count


def _chosen(layer: LayerKeys, keys: tuple[int, ...] | None) -> list[int]:
    """Return the keys of a layer to show; without a choice those with the largest coefficients."""
    if keys is None:
        return layer.coefficients[:, 0].argsort(dim=0, descending=True, stable=True)[:SHOWN].tolist()
    unknown = [key for key in keys if key >= len(layer.coefficients)]
    if unknown:
        raise UserError(
            f"keys={','.join(map(str, unknown))}: no such key; {layer.name} has {len(layer.coefficients)}, counted "
            "from 0"
        )
    return list(keys)


def _sequences(loaded: Loaded, sample: Sample, layers: tuple[int, ...] | None) -> dict[str, LayerSequence]:
    """Return the sequence of a sample in each layer."""
    results = {}
    for path, (m, seq) in coefficients(loaded.model, sample.batch, key_mixers(loaded.model, layers)).items():
        real = int(torch.isfinite(m[0, :, 0]).sum())
        labels = token_labels(sample.text_at(path), loaded.model, seq)[seq.num_prefix :][:real]
        results[path] = LayerSequence(m[0, :real], labels, seq.grid)
    return results


def _shown(
    layer: LayerKeys,
    key: int,
    samples: dict[int, Sample],
    sequences: dict[int, dict[str, LayerSequence]],
) -> ShownKey:
    """Return a key and its examples from samples and their sequences by layer, both by the sample's number."""
    examples = []
    for number, token in zip(layer.samples[key].tolist(), layer.tokens[key].tolist(), strict=True):
        m, labels, grid = sequences[number][layer.path]
        image = None
        if grid is not None and len(grid) == 2 and grid[0] * grid[1] == len(m):
            sample = samples[number]
            image = sample.source_image if "encoder" in layer.path.split(".") else sample.image
        examples.append(Example(number, token, m[:, key], labels, image, grid))
    return ShownKey(layer, key, examples)


def window(example: Example, before: int, *, causal: bool) -> range:
    """Return the tokens that are shown around an example."""
    stop = example.token + 1
    if not causal:
        stop += before
    return range(max(0, example.token - before), min(stop, len(example.labels)))


def pages(shown: list[ShownKey], *, causal: bool) -> Iterator[Page]:
    """Yield memory.png: a row of images for each key, or a strip of tokens for each example."""
    with_images = []
    others = []
    for key in shown:
        if all(example.image is not None for example in key.examples):
            with_images.append(key)
        else:
            others.append(key)
    for keys in split_pages(with_images, _KEYS):
        panels = [_image_row(key) for key in keys]
        title = "Training patches with the largest coefficient of each key, the strongest first"
        yield Page("memory", title, panels, (1.5, 1.5))
    for keys in split_pages(others, _KEYS):
        yield _strip_page(keys, causal)


def _image_row(key: ShownKey) -> list[Panel]:
    """Return the images of the examples of a key, with a frame around the patch of each."""
    panels = []
    for example in key.examples[:_COLUMNS]:
        assert example.image is not None
        assert example.grid is not None
        height = example.image.shape[0] / example.grid[0]  # of a patch, in pixels
        width = example.image.shape[1] / example.grid[1]
        row, column = divmod(example.token, example.grid[1])
        frame = box(row * height, column * width, height, width, line=1.5)
        title = f"{float(example.coefficients[example.token]):.3g}"
        panels.append(Panel([picture(example.image), frame], title))
    panels[0].ylabel = f"{key.layer.name}\nkey {key.key}"
    return panels


def _strip_page(keys: Sequence[ShownKey], causal: bool) -> Page:
    """Return a strip of tokens for each key; all strips have one scale, and their examples in one column."""
    before = 0  # tokens in front of the examples
    after = 0
    limit = 0.0
    longest = 0  # characters of a label
    for key in keys:
        for example in key.examples:
            part = window(example, BEFORE, causal=causal)
            before = max(before, example.token - part.start)
            after = max(after, part.stop - example.token)
            limit = max(limit, float(example.coefficients[part.start : part.stop].abs().max()))
            longest = max(longest, max(len(example.labels[index]) for index in part))
    rows = [[_strip(key, before, after, limit or 1.0, causal)] for key in keys]
    cell = 0.12 + 0.07 * min(12, longest)
    size = (cell * (before + after) + 1.6, 0.22 * max(len(key.examples) for key in keys) + 0.35)
    title = "Training tokens with the largest coefficient of each key (framed), and the key's coefficient around them"
    return Page("memory", title, rows, size, bar="coefficient")


def _strip(key: ShownKey, before: int, after: int, limit: float, causal: bool) -> Panel:
    """Return a row of tokens for each example, with the example in column `before`; colours from -limit to limit."""
    table = torch.full((len(key.examples), before + after), torch.nan)
    marks: list[Mark] = []
    for row, example in enumerate(key.examples):
        part = window(example, BEFORE, causal=causal)
        first = before - (example.token - part.start)
        table[row, first : first + len(part)] = example.coefficients[part.start : part.stop]
        for column, index in enumerate(part, first):
            share = abs(float(example.coefficients[index])) / limit
            colour = "white" if share > 0.6 else INK  # the cell of a large share is dark
            marks.append(text(column, row, printable(example.labels[index]), 6, colour))
        marks.append(box(row, before, line=1.2))
    return Panel(
        [signed(table, limit, stretched=True), *marks],
        f"{key.layer.name}, key {key.key}",
        left=True,
        y_names=[f"sample {example.sample}" for example in key.examples],
        names_size=6,
    )


def _numbers(layer: LayerKeys) -> dict[str, object]:
    return {
        "path": layer.path,
        "coefficients": to_json(layer.coefficients),
        "samples": layer.samples.tolist(),
        "tokens": layer.tokens.tolist(),
    }


def _example_numbers(shown: ShownKey, causal: bool) -> dict[str, object]:
    examples = []
    for example in shown.examples:
        part = window(example, BEFORE, causal=causal)
        examples.append(
            {
                "sample": example.sample,
                "token": example.token,
                "context": example.labels[part.start : part.stop],
                "context_start": part.start,
                "coefficients": to_json(example.coefficients[part.start : part.stop]),
            }
        )
    return {"path": shown.layer.path, "key": shown.key, "examples": examples}


def _row(key: ShownKey) -> dict[str, str]:
    values = key.layer.coefficients[key.key]
    return {
        "layer": key.layer.name,
        "key": str(key.key),
        "coefficients": f"{float(values[0]):.3g} to {float(values[-1]):.3g}",
        "strongest training tokens": "  ".join(_text(example) for example in key.examples),
    }


def _text(example: Example) -> str:
    """Return the token in brackets after its context, or its position in its sample."""
    label = example.labels[example.token]
    if example.grid is not None and len(example.grid) == 2:
        return f"sample {example.sample} at {label}"
    if label == str(example.token):  # not a text
        return f"sample {example.sample} token {label}"
    before = example.labels[max(0, example.token - _CONTEXT) : example.token]
    joint = "" if all(len(token) == 1 for token in (*before, label)) else " "
    return joint.join([*before, f"[{label}]"])


@dataclass
class LayerKeys(InLayer):
    """The strongest tokens for each key of one layer, the strongest first, all (E, n).

    coefficients: m_i; samples: the sample of each, a number in its split; tokens: its index after the prefix
    """

    path: str
    coefficients: Tensor
    samples: Tensor
    tokens: Tensor


def key_mixers(model: nn.Module, layers: tuple[int, ...] | None = None) -> dict[str, tuple[str, Any]]:
    """Return the mixers that have keys by their path, with the path of their block.

    Raises UserError if no layer has keys, and for layers that do not exist.
    """
    memories: dict[str, tuple[str, Any]] = {}
    for path, block in model.named_modules():
        mixer = getattr(block, "channel_mixer", None)
        if isinstance(block, Block) and isinstance(mixer, ChannelMixer) and _has_keys(mixer):
            memories[f"{path}.channel_mixer"] = (path, mixer)
    if not memories:
        raise UserError("memory: no layer of this model has keys; use a run with channel_mixer=mlp or memory")
    return {path: memories[path] for path in select_layers(memories, layers)}


def _has_keys(mixer: Any) -> bool:
    """Return whether each row of the first projection, or of `keys`, is a key: a column of the last one is its value.

    A gated mixer has two rows a channel, and is left out.
    """
    if not isinstance(getattr(mixer, "proj_in", None), nn.Module) or not hasattr(mixer, "mix"):
        return False
    keys = getattr(mixer, "keys", None)  # of a memory that first maps the token to a query
    if keys is None:
        keys = mixer.proj_in
    return bool(keys.weight.shape[0] == mixer.proj_out.weight.shape[1])


@torch.no_grad()
def coefficients(model: nn.Module, batch: Batch, mixers: dict[str, tuple[str, Any]]) -> dict[str, tuple[Tensor, Seq]]:
    """Return m (B, N, E) without the prefix by path, -inf at padding, and the facts of the sequence."""
    inputs: dict[str, Tensor] = {}
    facts: dict[str, Seq] = {}
    handles = []
    for path, (of_block, mixer) in mixers.items():

        def keep(_: nn.Module, args: tuple[Any, ...], path: str = path) -> None:
            inputs[path] = args[0]

        def keep_facts(_: nn.Module, args: tuple[Any, ...], path: str = path) -> None:
            facts[path] = args[1]

        handles.append(mixer.register_forward_pre_hook(keep))
        # A channel mixer is not given the facts of the sequence, so they are taken from its block.
        handles.append(model.get_submodule(of_block).register_forward_pre_hook(keep_facts))
    forward_once(model, batch, handles)
    results = {}
    for path, (_, mixer) in mixers.items():
        seq = facts[path]
        m = mixer.mix(mixer.proj_in(inputs[path])).float()
        if seq.valid is not None:
            m = m.masked_fill(~seq.valid[..., None], -torch.inf)
        results[path] = (m[:, seq.num_prefix :], seq)
    return results


def strongest(
    model: nn.Module, batches: Iterable[Batch], count: int, layers: tuple[int, ...] | None = None
) -> list[LayerKeys]:
    """Return the `count` strongest tokens for every key of each selected layer, each of another sample.

    batches: with `Batch.sample`. Raises UserError if no layer has keys, and for layers that do not exist.
    """
    mixers = key_mixers(model, layers)
    best: dict[str, LayerKeys] = {}
    for batch in batches:
        assert batch.sample is not None
        for path, (m, _) in coefficients(model, batch, mixers).items():
            values, tokens = m.max(1)  # (B, E)
            samples = batch.sample[:, None].expand_as(tokens)
            # Merged batch by batch, so that memory does not grow with the number of samples.
            new = LayerKeys(path, values.T, samples.T, tokens.T)
            best[path] = _merged(best.get(path), new, count)
    return list(best.values())


def _merged(old: LayerKeys | None, new: LayerKeys, count: int) -> LayerKeys:
    """Return the `count` strongest tokens of each key among old and new ones."""
    parts = [new]
    if old is not None:
        parts = [old, new]
    values = torch.cat([part.coefficients for part in parts], 1)
    order = values.argsort(dim=1, descending=True, stable=True)[:, :count]  # of equal ones the earlier sample
    samples = torch.cat([part.samples for part in parts], 1)
    tokens = torch.cat([part.tokens for part in parts], 1)
    return LayerKeys(new.path, values.gather(1, order), samples.gather(1, order), tokens.gather(1, order))
