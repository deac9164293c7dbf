"""`blockyard embed`: compute vectors of inputs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge

from blockyard.commands._signature import command
from blockyard.commands._types import (
    OUTPUTS,
    Allow,
    Input,
    Moved,
    Outputs,
    Run,
    Text,
    Value,
    Which,
    find_run,
    input_lines,
)
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from blockyard.evaluate.embed import Embeddings

OUT = (".npz", ".parquet")
_NEIGHBOURS = 5


def _layer(text: str) -> str:
    if text in ("last", "embedded") or text.isdecimal():
        return text
    raise ValueError("last, embedded, or the number of a block from 0")


@command()
def embed(
    *inputs: Input,
    run: Run,
    out: Annotated[Text, Value("FILE.npz|FILE.parquet")] | None = None,
    page: Annotated[str, Value("FILE.html")] | None = None,
    layer: Annotated[str, Value("last|0|1|...|embedded", _layer)] = "last",
    pool: Literal["mean", "class", "last", "none"] | None = None,
    split: Literal["test", "validation", "train"] | None = None,
    limit: Annotated[int, Ge(1)] | None = None,
    neighbours: Annotated[int, Ge(1)] | None = None,
    projection: Literal["pca", "tsne"] | None = None,
    column: Text | None = None,
    which: Which = "best",
    outputs: Outputs = OUTPUTS,
    allow: Allow = (),
    moved: Moved | None = None,
) -> None:
    """Compute vectors of inputs from a trained model, whatever it was trained for.

    Inputs are texts, images, tables of numbers, sounds, graphs, series, as `blockyard predict` takes them; without any,
    they are the samples of a split.

    A vector is the stream after a layer, pooled over the tokens of an input. Nothing is hidden from the model. Of a
    model with an encoder and a decoder it is the encoder's stream.

    With out, writes the vectors, the names of the inputs and what is known of their targets: numpy.load reads an .npz,
    pandas a .parquet. With page, writes one HTML file with a projection into two dimensions and, for the picked input,
    its nearest neighbours by cosine. Where the samples have classes, prints how many of the neighbours share theirs.

    Options:
        inputs: texts, files or folders
        out: the file of the vectors
        page: the page
        layer: the number of a block; last is behind the final norm, embedded before the first block
        pool: the mean of the tokens, the class token, the last one (which has read the others in a causal model), or
            each alone (none); by default class where the model has a class token, last where it is causal, else mean
        split: whose samples are taken without inputs
        limit: samples at most, by default 1000
        neighbours: of each input, by default 5
        projection: onto the page, by default pca
        column: the texts of a table

    Examples:
        blockyard embed run=vit_digits out=vectors.npz page=digits.html
        blockyard embed run=last 'win a prize now' mails.csv column=body out=vectors.parquet
        blockyard embed run=gpt_code layer=1 pool=none limit=8 out=tokens.npz
    """
    vectors_file, page_file = _file(out, "out", OUT), _file(page, "page", (".html",))
    if vectors_file is None and page_file is None:
        raise UserError("embed needs out=FILE.npz, out=FILE.parquet or page=FILE.html")
    if projection is not None and page_file is None:
        raise UserError(f"projection={projection} has an effect with page=FILE.html only; add it, or leave it out")
    texts = input_lines(inputs)
    folder = find_run(run, outputs, moved)
    from blockyard.evaluate import embed as embedding

    embeddings, _ = embedding.embed(
        folder,
        texts,
        split=split,
        layer=layer,
        pool=pool,
        limit=limit,
        column=column,
        which=which,
        outputs=outputs,
        allow=allow,
    )
    try:
        if vectors_file is not None:
            embeddings.save(vectors_file)
            sys.stdout.write(f"{_described(embeddings)} in {vectors_file}\n")
        if page_file is not None:
            from blockyard.report.page.vectors import write

            write(embeddings, page_file, neighbours=neighbours or _NEIGHBOURS, projection=projection or "pca")
            sys.stdout.write(f"{_described(embeddings)} on {page_file}\n")
    except OSError as error:
        path = error.filename or vectors_file or page_file
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    _print_agreement(embeddings, neighbours)


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


def _file(text: str | None, key: str, suffixes: tuple[str, ...]) -> Path | None:
    path = None if text is None else local_path(text, key)
    if path is not None and path.suffix not in suffixes:
        raise UserError(f"{key}={text}: expected a file {' or '.join(suffixes)}")
    return path
