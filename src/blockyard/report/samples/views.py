"""Pictures, texts and lines of single samples, read again from the data of a run."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.errors import UserError, first_line
from blockyard.report.load.document import GraphView, SampleView
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import components_of

if TYPE_CHECKING:
    from torch import Tensor

    from blockyard.config.build import Components
    from blockyard.contracts import Batch, DataSpec, Split, Tokenizer

MAX_SIDE = 96  # pixels of a picture
MAX_TEXT = 400  # characters
MAX_POINTS = 120  # of a line
MAX_LINES = 3
# Errors of a config from elsewhere, or of data that has changed since, when it is built or read.
_ERRORS = (UserError, ValueError, TypeError, LookupError, AttributeError, OSError, RuntimeError, AssertionError)


@dataclass(frozen=True)
class _Test:
    split: Split
    components: Components


def views(run: Path, fingerprint: str | None, samples: Sequence[int]) -> tuple[dict[str, SampleView], str | None]:
    """Return a view of each test sample by its index, and the reason where there are none.

    A view has one or more of image (a PNG as a data URL), text, lines (of numbers) and graph (nodes and edges).
    fingerprint: the fingerprint of the data that was predicted; samples of other data are not shown
    """
    if not samples:
        return {}, None
    try:
        test = _load(str(run), fingerprint)
        by_sample = {str(sample): _view(test, sample) for sample in samples}
        for sample, text in _original_texts(test, samples).items():
            view = by_sample[sample]
            if view is not None and view.text is not None:
                by_sample[sample] = replace(view, text=_cut(text))
    except ImportError as error:
        return {}, f"the samples are not shown: {error}"
    except _ERRORS as error:
        return {}, f"the samples are not shown: {first_line(error)}"
    shown = {sample: view for sample, view in by_sample.items() if view is not None}
    if not shown:
        return {}, f"the samples are not shown: no picture or text stands for {test.components.data.spec.things}"
    return shown, None


@lru_cache(maxsize=2)  # a live page asks again each time that a run ends
def _load(run: str, fingerprint: str | None) -> _Test:
    # Without the packages that the config allows: the folder may come from anywhere.
    components = components_of(RunFolder.open(Path(run)))
    missing = components.data.missing()
    if missing:
        raise UserError(missing)
    components.data.prepare()
    test = components.load().test
    if fingerprint and components.data.fingerprint() != fingerprint:
        raise UserError("the data is not the one that was predicted; it has changed since")
    return _Test(test, components)


def _original_texts(test: _Test, samples: Sequence[int]) -> dict[str, str]:
    """Return the texts of the samples before they became tokens; none for data without texts."""
    from blockyard.contracts import HasTexts, TextTokenizer

    data = test.components.data
    tokenizer = test.components.tokenizer
    if not isinstance(data, HasTexts) or not isinstance(tokenizer, TextTokenizer):
        return {}
    return dict(zip(map(str, samples), data.test_texts(samples, tokenizer), strict=True))


def _view(test: _Test, sample: int) -> SampleView | None:
    """Return the view of the model's inputs: a source, such as the image of a question, and the sequence."""
    import torch

    batch: Batch = test.split.batch(torch.tensor([sample]), None)
    components = test.components
    spec = components.data.spec
    part = _Part(spec, components.tokenizer, components)
    sequence = _view_of(part, batch.inputs[0], batch.lengths, batch.pairs)
    if batch.source is None or spec.source is None:
        return sequence
    part = _Part(spec.source, components.source_tokenizer, components)
    source = _view_of(part, batch.source[0], batch.source_lengths, None)
    if source is None or sequence is None:
        return source or sequence
    # Where both are of one kind, the sequence is shown.
    return SampleView(
        image=sequence.image or source.image,
        text=source.text if sequence.text is None else sequence.text,
        lines=sequence.lines or source.lines,
        graph=sequence.graph or source.graph,
    )


@dataclass(frozen=True)
class _Part:
    """One sequence of a sample: its specification, and the tokenizer that made its tokens."""

    spec: DataSpec
    tokenizer: Tokenizer
    components: Components


def _view_of(part: _Part, inputs: Tensor, lengths: Tensor | None, pairs: Tensor | None) -> SampleView | None:
    """Return the view of one sequence. inputs: without the batch's dimension; lengths, pairs: as in a batch of one"""
    if lengths is not None:
        inputs = inputs[: int(lengths[0])]  # without the padding
    modality = part.spec.modality
    if pairs is not None:
        return SampleView(graph=_graph(inputs, pairs[0, : len(inputs), : len(inputs), 0]))
    if modality == "views":
        inputs = inputs[0]
    if inputs.ndim == 3 and inputs.shape[0] in (1, 3):
        return SampleView(image=_picture(inputs))
    if inputs.ndim == 1 and modality == "audio":
        return SampleView(lines=[_thinned(inputs.float())])
    if inputs.ndim == 1 and not inputs.is_floating_point():
        return SampleView(text=_text(part, inputs.tolist()))
    if inputs.ndim == 2 and inputs.is_floating_point():
        return SampleView(lines=[_thinned(column) for column in inputs.T[:MAX_LINES]])
    return None


def _graph(nodes: Tensor, distance: Tensor) -> GraphView:
    """Return nodes, each with its place and the code of its first column, and edges. nodes: (N, C); distance: (N, N)"""
    import networkx

    edges: list[list[int]] = (distance == 1).triu().nonzero().tolist()
    drawn = networkx.empty_graph(len(nodes))
    drawn.add_edges_from(edges)
    layout = networkx.spring_layout(drawn, seed=0)
    marked = []
    for node, row in enumerate(nodes):
        x, y = layout[node]
        marked.append([float(f"{x:.3f}"), float(f"{y:.3f}"), int(row[0])])
    return GraphView(nodes=marked, edges=edges)


def _text(part: _Part, token_ids: list[int]) -> str:
    from blockyard.contracts import TextTokenizer

    if isinstance(part.tokenizer, TextTokenizer):
        text = part.tokenizer.decode(token_ids)
    else:
        names = []
        for token_id in token_ids:
            name = part.components.data.token_name(token_id) or part.tokenizer.token_name(token_id)
            names.append(name or f"#{token_id}")
        text = " ".join(names)
    return _cut(text)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}…"


def _picture(pixels: Tensor) -> str:
    """Return an image (C, height, width) of any range, from its darkest value to its brightest, as a data URL."""
    from PIL import Image

    pixels = pixels.float()
    low = pixels.min()
    high = pixels.max()
    gray = ((pixels - low) / (high - low).clamp_min(1e-12) * 255).round().byte().numpy()  # (C, height, width)
    image = Image.fromarray(gray[0] if len(gray) == 1 else gray.transpose(1, 2, 0))
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _thinned(values: Tensor) -> list[float | None]:
    """Return at most MAX_POINTS values, evenly spaced; None where one is missing."""
    count = min(MAX_POINTS, len(values))
    points: list[float | None] = []
    for k in range(count):
        # The first and the last value are always among the points.
        value = float(values[round(k * (len(values) - 1) / max(count - 1, 1))])
        points.append(None if math.isnan(value) else float(f"{value:.4g}"))
    return points
