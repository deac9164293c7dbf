"""blockyard embed run=RUN [INPUT ...] [out=FILE.npz|FILE.parquet] [page=FILE.html] [layer=last|0|1|...|embedded]
       [pool=mean|class|last|none] [split=test|validation|train] [limit=1000] [neighbours=5] [projection=pca|tsne]
       [column=TEXT] [which=best|last|previous|best@ema] [outputs=FOLDER] [allow=[PACKAGE]] [data.root=FOLDER]
       [data.path=FILE]

Compute vectors of inputs from a trained model, whatever it was trained for: texts, images, tables of numbers, sounds,
graphs, series. Inputs are those of `blockyard predict`; without any, they are the samples of a split.

A vector is the stream after a layer, pooled over the tokens of an input: the mean of them, the class token, the last
one (which has read the others in a causal model), or each alone (none). Nothing is hidden from the model, and of an
encoder and a decoder it is the encoder's. By default the layer is the last, behind the final norm, and pool is class
where the model has a class token, last where it is causal, else mean.

With out, writes the vectors, the names of the inputs and what is known of their targets: numpy.load reads an .npz,
pandas a .parquet. With page, writes one HTML file with a projection into two dimensions and, for the picked input, its
nearest neighbours by cosine. Where the samples have classes, prints how many of the neighbours share theirs.

Examples:
  blockyard embed run=vit_digits out=vectors.npz page=digits.html
  blockyard embed run=last 'win a prize now' mails.csv column=body out=vectors.parquet
  blockyard embed run=gpt_code layer=1 pool=none limit=8 out=tokens.npz
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockyard.commands._args import checkpoint, read, run_of
from blockyard.config.option_text import integer, non_empty, one_of
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from blockyard.evaluate.embed import Embeddings

KEYS = (
    *("run", "out", "page", "layer", "pool", "split", "limit", "neighbours", "projection", "column", "which"),
    *("outputs", "allow", "data.root", "data.path", "data.splits"),
)
# Those of `evaluate.embed`, which imports torch, and of `evaluate.api`.
POOLS = ("mean", "class", "last", "none")
PROJECTIONS = ("pca", "tsne")
SPLITS = ("test", "validation", "train")
OUT = (".npz", ".parquet")
_NEIGHBOURS = 5


def run(arguments: Sequence[str]) -> int:
    """Write the vectors and the page."""
    args = read("embed", arguments)
    name = args.pop("run")
    out, page = _file(args.pop("out", None, non_empty), "out", OUT), _file(args.pop("page"), "page", (".html",))
    neighbours = args.pop("neighbours", None, integer(1))
    projection = args.pop("projection", None, one_of(*PROJECTIONS))
    settings = {
        "layer": args.pop("layer", "last", _layer),
        "pool": args.pop("pool", None, one_of(*POOLS)),
        "split": args.pop("split", None, one_of(*SPLITS)),
        "limit": args.pop("limit", None, integer(1)),
        "column": args.pop("column", None, non_empty),
        "which": args.pop("which", "best", checkpoint),
        "outputs": args.pop("outputs", "outputs"),
        "allow": args.pop_allow(),
    }
    moved = args.pop_moved()
    inputs = args.pop_inputs("embed", KEYS)
    if out is None and page is None:
        raise UserError("embed needs out=FILE.npz, out=FILE.parquet or page=FILE.html")
    if projection is not None and page is None:
        raise UserError(f"projection={projection} has an effect with page=FILE.html only; add it, or leave it out")
    run = run_of(name, "embed", settings["outputs"], moved)
    from blockyard.evaluate.embed import embed

    embeddings, _ = embed(run, inputs, **settings)
    try:
        if out is not None:
            embeddings.save(out)
            sys.stdout.write(f"{_described(embeddings)} in {out}\n")
        if page is not None:
            from blockyard.report.page.vectors import write

            write(embeddings, page, neighbours=neighbours or _NEIGHBOURS, projection=projection or "pca")
            sys.stdout.write(f"{_described(embeddings)} on {page}\n")
    except OSError as error:
        raise UserError(f"cannot write {error.filename or out or page}: {error.strerror or error}") from error
    _print_agreement(embeddings, neighbours)
    return 0


def _print_agreement(embeddings: Embeddings, neighbours: int | None) -> None:
    """Print how many neighbours have the class of their sample, where samples have classes."""
    count = neighbours or min(_NEIGHBOURS, len(embeddings) - 1)
    shares = embeddings.agreement(count) if count else None
    if shares is not None:
        own, by_chance = shares
        sys.stdout.write(f"of the {count} nearest neighbours {own:.3f} have the class of their sample, ")
        sys.stdout.write(f"by chance {by_chance:.3f}\n")


def _described(embeddings: Embeddings) -> str:
    count, width = embeddings.vectors.shape
    return f"{count:,} vectors of {width} numbers (layer {embeddings.meta['layer']}, pool {embeddings.meta['pool']})"


def _layer(text: str) -> str:
    if text in ("last", "embedded") or text.isdecimal():
        return text
    raise ValueError("last, embedded, or the number of a block from 0")


def _file(text: str | None, key: str, suffixes: tuple[str, ...]) -> Path | None:
    path = None if text is None else local_path(text, key)
    if path is not None and path.suffix not in suffixes:
        raise UserError(f"{key}={text}: expected a file {' or '.join(suffixes)}")
    return path
