"""The page of vectors: a projection into two dimensions and, for the picked input, its nearest neighbours.

One HTML file, built as the page of a comparison is: names and values are text in it, and it loads nothing.
"""

from __future__ import annotations

import base64
import html
import io
import os
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from blockyard.atomic_files import write_text
from blockyard.evaluate.embed import Embeddings, Projection
from blockyard.report.page.document import content_policy, encode, joined_script, joined_style, read_part

STYLES = ("style", "vectors")
SCRIPTS = ("dom", "vectors", "theme")
MOST_SHOWN = 2000  # points, evenly spaced ones of more
_THUMBNAIL = 32  # pixels of the shorter side of a picture, at most


def write(embeddings: Embeddings, path: str | os.PathLike[str], *, neighbours: int, projection: Projection) -> Path:
    """Write the page. Raises OSError, and UserError for too few vectors."""
    write_text(Path(path), render(embeddings, neighbours=neighbours, projection=projection))
    return Path(path)


def render(embeddings: Embeddings, *, neighbours: int, projection: Projection) -> str:
    """Return the page. neighbours: of each vector, fewer where there are not as many."""
    content = content_of(embeddings, neighbours=neighbours, projection=projection)
    style, script = joined_style(STYLES), joined_script(SCRIPTS)
    return Template(read_part("vectors.html")).substitute(
        title=html.escape(content["title"]),
        policy=html.escape(content_policy(style, script)),
        style=style,
        script=script,
        data=encode(content),
        plain="".join(f"<p>{html.escape(line)}</p>" for line in content["facts"]),
    )


def content_of(embeddings: Embeddings, *, neighbours: int, projection: Projection) -> dict[str, Any]:
    """Return what the page shows, as plain data."""
    meta, total = embeddings.meta, len(embeddings)
    neighbours = min(neighbours, total - 1)
    points = embeddings.project(projection)
    index, cosine = embeddings.neighbours(neighbours)
    shown = np.unique(np.linspace(0, total - 1, min(total, MOST_SHOWN)).round().astype(int))
    kept = np.unique(np.concatenate([shown, index[shown].ravel()]))  # neighbours have names too
    number = {int(old): new for new, old in enumerate(kept)}
    names = [embeddings.names[i] for i in kept]
    if embeddings.tokens is not None:
        names = [f"{embeddings.tokens[i]} in {embeddings.names[i]}" for i in kept]
    facts = [
        f"{total:,} vectors of {embeddings.vectors.shape[1]} numbers: layer {meta['layer']}, pool {meta['pool']}, "
        f"of {meta['run']} ({meta['weights']})"
    ]
    shares = embeddings.agreement(neighbours)
    if shares is not None:
        own, by_chance = shares
        facts.append(
            f"Of the {neighbours} nearest neighbours, {own:.3f} have the class of their sample; by chance, "
            f"{by_chance:.3f}."
        )
    if len(shown) < total:
        facts.append(f"{len(shown):,} of them are drawn, evenly spaced; neighbours are searched among all.")
    classes = embeddings.classes
    pictures = _pictures(embeddings, kept)
    return {
        "title": f"vectors of {meta['run']}",
        "facts": facts,
        "projection": {"pca": "first two principal components", "tsne": "t-SNE"}[projection],
        "names": names,
        "shown": [number[int(i)] for i in shown],
        "x": _rounded(points[kept, 0]),
        "y": _rounded(points[kept, 1]),
        "classes": None if classes is None else classes[kept].tolist(),
        "class_names": _class_names(embeddings),
        "neighbours": [[number[int(i)] for i in index[old]] for old in shown],
        "cosines": [_rounded(cosine[old]) for old in shown],
        "pictures": pictures,
    }


def _class_names(embeddings: Embeddings) -> list[str]:
    classes = embeddings.classes
    if classes is None or not len(classes):
        return []
    most = int(classes.max()) + 1
    names = embeddings.class_names
    return [str(names[i]) if i < len(names) else str(i) for i in range(most)]


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _pictures(embeddings: Embeddings, kept: np.ndarray) -> list[str] | None:
    """PNGs of the inputs as addresses of data, each in its own range of values; None where inputs are not images."""
    if embeddings.pictures is None:
        return None
    from PIL import Image

    addresses = []
    for pixels in embeddings.pictures[embeddings.index[kept]]:
        low, high = pixels.min(), pixels.max()
        values = ((pixels - low) / (high - low).clamp_min(1e-12) * 255).round().byte().permute(1, 2, 0).numpy()
        image = Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)
        image.thumbnail((_THUMBNAIL, _THUMBNAIL))
        stream = io.BytesIO()
        image.save(stream, "PNG")
        addresses.append(f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}")
    return addresses
