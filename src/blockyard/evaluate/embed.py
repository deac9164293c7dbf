"""Vectors of a trained model for inputs: the stream after a layer, pooled over the tokens of each input.

Source: of pooling Reimers and Gurevych 2019, Sentence-BERT (arXiv 1908.10084), section 3; of the class token Devlin et
    al. 2019, BERT (arXiv 1810.04805), section 3.1; of neighbours by cosine Mikolov et al. 2013 (arXiv 1301.3781)
Reference: sentence_transformers.models.Pooling; sklearn.neighbors.NearestNeighbors

    inputs --> blocks --> stream (B, prefix + N, D) after `layer` --> pool --> (n, D)
               mean     the mean of the real tokens, without class and register tokens
               class    the class token
               last     the last real token, which has read all others in a causal model
               none     every real token: (n tokens, D)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from blockyard.atomic_files import replacing
from blockyard.contracts import Batch, EncodesSource, Seq, TextTokenizer
from blockyard.contracts.objective import source_as_input
from blockyard.data.splits.order import take
from blockyard.errors import UserError
from blockyard.evaluate.api import check_split
from blockyard.evaluate.predict import BATCH, read_new
from blockyard.runs.load import Loaded, load, splits_of

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder

Pool = Literal["mean", "class", "last", "none"]
Projection = Literal["pca", "tsne"]
POOLS: tuple[Pool, ...] = get_args(Pool)
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)
SUFFIXES = (".npz", ".parquet")
LAST, FIRST = "last", "embedded"  # layers: after the final norm, and in front of the first block
MOST_LETTERS = 200  # of a name
_PICTURES = (1, 3)  # channels of what can be shown


@dataclass(frozen=True)
class Embeddings:
    """Vectors of inputs.

    vectors: (n, D) float32, one for each input, or for each of its tokens with pool=none
    names: of each vector: the path or text of the input, or its number in the split
    index: (n,) int64, the number of the vector's input; tokens: the text, or the number, of its token, None where a
        vector stands for a whole input
    target: (n,) int64 classes, or (n, V) float values as the model is trained on them; None where there are none
    class_names: of the classes, in order
    pictures: (n, C, height, width) float of inputs that are images, None for others
    meta: run, weights, layer, pool, part
    """

    vectors: np.ndarray
    names: list[str]
    index: np.ndarray
    meta: dict[str, Any]
    tokens: list[str] | None = None
    target: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    pictures: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def classes(self) -> np.ndarray | None:
        """The class of each vector, (n,) int64; None where targets are no classes."""
        if self.target is None or self.target.dtype.kind != "i":
            return None
        return self.target

    def neighbours(self, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest other vectors of each vector by cosine, the nearest first: indices and cosines (n, count).

        Raises UserError for fewer vectors.
        """
        from sklearn.neighbors import NearestNeighbors

        if not 0 < count < len(self):
            raise UserError(f"neighbours={count}: there are {len(self)} vectors, so 1 to {len(self) - 1} others")
        distance, index = (
            NearestNeighbors(n_neighbors=count + 1, metric="cosine").fit(self.vectors).kneighbors(self.vectors)
        )
        itself = index == np.arange(len(self))[:, None]
        # Equal vectors may come first and leave a vector out of its own neighbours: then the last one is dropped.
        itself[:, -1] |= ~itself.any(1)
        shape = (len(self), count)
        return index[~itself].reshape(shape), 1 - distance[~itself].reshape(shape)

    def agreement(self, count: int = 5) -> tuple[float, float] | None:
        """Return the share of neighbours that have the class of their vector, and the share among random pairs.

        None without classes.
        """
        classes = self.classes
        if classes is None:
            return None
        index, _ = self.neighbours(count)
        sizes = np.unique(classes, return_counts=True)[1]
        by_chance = float((sizes * (sizes - 1)).sum() / (len(self) * (len(self) - 1)))
        return float((classes[index] == classes[:, None]).mean()), by_chance

    def project(self, method: Projection = "pca") -> np.ndarray:
        """Return the vectors in two dimensions, (n, 2) float64: their principal components, or t-SNE."""
        if len(self) < 3 or self.vectors.shape[1] < 2:
            raise UserError(f"{len(self)} vectors of {self.vectors.shape[1]} numbers have no projection; use more")
        if method == "pca":
            from sklearn.decomposition import PCA

            return np.asarray(PCA(2, svd_solver="full").fit_transform(self.vectors.astype(np.float64)))
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(self) - 1) / 3)
        return np.asarray(TSNE(2, init="pca", random_state=0, perplexity=perplexity).fit_transform(self.vectors))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write vectors, names, index, and tokens and target if there are any; meta and class_names as JSON.

        Raises UserError for another suffix than .npz and .parquet.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path}: vectors are written as {' or '.join(SUFFIXES)}")
        columns: dict[str, Any] = {"vectors": self.vectors, "names": np.array(self.names), "index": self.index}
        if self.tokens is not None:
            columns["tokens"] = np.array(self.tokens)
        if self.target is not None:
            columns["target"] = self.target
        meta = json.dumps({**self.meta, "class_names": list(self.class_names)}, sort_keys=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            if path.suffix == ".npz":
                np.savez_compressed(file, **columns, meta=np.array(meta))
            else:
                import pyarrow as pa
                import pyarrow.parquet as pq

                table = pa.table({name: pa.array(list(values)) for name, values in columns.items()})
                pq.write_table(table.replace_schema_metadata({"blockyard": meta}), file)


def embed(
    run: str | os.PathLike[str] | RunFolder,
    inputs: Sequence[str] = (),
    *,
    split: str | None = None,
    layer: int | str = LAST,
    pool: Pool | None = None,
    limit: int | None = None,
    column: str | None = None,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
) -> tuple[Embeddings, Loaded]:
    """Compute vectors of inputs, or of the samples of a split.

    Nothing is hidden from the model, whatever its objective hides in training. A model with an encoder and a decoder
    gives the encoder's vectors.

    inputs: as `predict` takes them, for a run of any objective; none for a split
    split: "test", "validation" or "train"; default: test where there are no inputs
    layer: "last" (after the final norm), the number of a visited block from 0, or "embedded" (before the first block)
    pool: default: "class" for a model with a class token, "last" for a causal one, else "mean"
    limit: the first so many samples of the split
    column: of a table, that of the texts

    Raises UserError for inputs and a split together, a layer that the model lacks, a token that it lacks, and where
    an input or the run's data cannot be read.
    """
    if isinstance(inputs, str):
        raise UserError(f"inputs is a list, such as [{inputs!r}]")
    if inputs and (split is not None or limit is not None):
        raise UserError("inputs and a split exclude each other; leave inputs, or split and limit, out")
    if pool is not None and pool not in POOLS:
        raise UserError(f"pool={pool!r}: expected one of {', '.join(POOLS)}")
    loaded = load(run, which=which, outputs=outputs, allow=allow)
    if not callable(getattr(loaded.model, "steps", None)):
        raise UserError(f"{loaded.folder.name}: {type(loaded.model).__name__} does not name what its layers give")
    reader = _Reader(loaded, str(layer), pool)
    if inputs:
        part = None
        names, batches = read_new(loaded, inputs, column)
        if reader.encodes:
            batches = map(_as_source, batches)
    else:
        if column is not None:
            raise UserError(f"column={column} is for tables; a split has its columns")
        part = split or "test"
        names, batches = _samples(loaded, part, limit)
    return reader.embeddings(names, batches, part), loaded


def _as_source(batch: Batch) -> Batch:
    return Batch(batch.inputs[:, :0], source=batch.inputs, source_lengths=batch.lengths)


def _samples(loaded: Loaded, split: str, limit: int | None) -> tuple[list[str], Iterator[Batch]]:
    """Return the samples of a split by number, and batches as a model reads them."""
    check_split(split)
    samples = getattr(splits_of(loaded), split)
    count = len(samples) if limit is None else min(limit, len(samples))
    names = [f"{split} {number}" for number in range(count)]
    size = min(BATCH, int(getattr(loaded.data, "eval_batch_size", BATCH)))

    def batches() -> Iterator[Batch]:
        for order in torch.arange(count).split(size):
            yield _shown(loaded, take(samples, order, None))

    return names, batches()


def _shown(loaded: Loaded, batch: Batch) -> Batch:
    """Return the prepared batch with nothing hidden. The objective may drop items, but only at the end."""
    ready = loaded.objective.ready(batch)
    whole = source_as_input(batch) if loaded.objective.reads == "source" else batch
    inputs = whole.inputs[:, : ready.inputs.shape[1]]  # tokens (B, N) or (B, N, V); images keep their channels
    return replace(ready, inputs=inputs, hidden=None, target=batch.target)


class _Reader:
    """Computes the pooled outputs of a model's layer for batches."""

    def __init__(self, loaded: Loaded, layer: str, pool: Pool | None) -> None:
        self.loaded = loaded
        self.model = loaded.model
        self.encodes = loaded.components.architecture.crosses and isinstance(self.model, EncodesSource)
        self.layer = layer
        options = getattr(self.model, "prefix_options", None)
        self.has_class = bool(options is not None and options.class_token) and not self.encodes
        causal = self.model.ctx.causal and not self.encodes
        if pool is None:
            pool = "mean"
            if self.has_class:
                pool = "class"
            elif causal:
                pool = "last"
        self.pool: Pool = pool
        if self.pool == "class" and not self.has_class:
            raise UserError(
                f"pool=class: {loaded.folder.name} has no class token (model.prefix.class_token); use mean or last"
            )

    def embeddings(self, names: list[str], batches: Iterator[Batch], part: str | None) -> Embeddings:
        """Return the vectors of all batches."""
        vectors, index, tokens, targets, pictures, texts = [], [], [], [], [], []
        start = 0
        for batch in batches:
            count = len(batch.inputs)
            x, real = self._stream(batch)
            pooled, samples = _pooled(x, real, self.pool)
            vectors.append(pooled.float())
            index.append(samples + start)
            texts += self._texts(batch)
            if self.pool == "none":
                tokens += self._tokens(batch, real)
            if isinstance(batch.target, Tensor) and batch.target.ndim <= 2 and self._of_sample:
                targets.append(batch.target[samples])
            shown = batch.source if self.encodes else batch.inputs
            if shown is not None and shown.ndim == 4 and shown.shape[1] in _PICTURES and self.pool != "none":
                pictures.append(shown.float())
            start += count
        where = torch.cat(index)
        if part is not None and texts:
            names = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
        names = [" ".join(name.split())[:MOST_LETTERS] for name in names]
        return Embeddings(
            vectors=torch.cat(vectors).numpy(),
            names=[names[i] for i in where.tolist()],
            index=where.numpy(),
            meta={
                "run": self.loaded.folder.name,
                "weights": self.loaded.weights,
                "layer": self.layer,
                "pool": self.pool,
                "part": part,
            },
            tokens=tokens if self.pool == "none" else None,
            target=torch.cat(targets).numpy() if targets else None,
            class_names=self.loaded.data.spec.class_names if targets else (),
            pictures=torch.cat(pictures) if pictures else None,
        )

    @property
    def _of_sample(self) -> bool:
        """Return whether there is one target for a whole sample."""
        return self.loaded.data.spec.target in ("class", "values", "labels")

    def _stream(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the stream after the layer (B, M, D), and a mask (B, M) of the positions that are pooled."""
        record: dict[str, Any] = {}
        try:
            with torch.no_grad():
                if self.encodes:
                    assert batch.source is not None
                    self.model.encode(batch.source, batch.source_lengths, record)  # type: ignore[operator]
                else:
                    self.model(batch, None, record)
        except ValueError as error:  # a model for sequences of one length
            raise UserError(f"{self.loaded.folder.name} does not read this: {error}") from error
        prefix = "source." if self.encodes else ""
        of_layer = {FIRST: "placed", LAST: "normed"}.get(self.layer, f"block.{self.layer}")
        if of_layer == "normed" and f"{prefix}normed" not in record:  # a model without blocks
            of_layer = "placed"
        x = record.get(prefix + of_layer)
        if x is None:
            blocks = sum(name.startswith(f"{prefix}block.") for name in record)
            numbers = f"0 to {blocks - 1}" if blocks else "no block"
            raise UserError(f"layer={self.layer}: {self.loaded.folder.name} has {numbers}, {FIRST} and {LAST}")
        seq: Seq = record[f"{prefix}seq"]
        if of_layer == "placed":
            if self.pool == "class":
                raise UserError(
                    f"pool=class: the class token enters behind layer={FIRST}; use pool=mean or a later layer"
                )
            valid = None if seq.valid is None else seq.valid[:, len(seq) - x.shape[1] :]
            return x, _all_or(valid, x)
        if f"{prefix}read" in record:  # latents, all of them real
            return x, _all_or(None, x)
        real = _all_or(seq.valid, x)
        positions = torch.arange(x.shape[1])
        return x, (positions == 0).expand_as(real) if self.pool == "class" else real & (positions >= seq.num_prefix)

    def _tokenizer(self) -> TextTokenizer | None:
        of_source = self.encodes or self.loaded.objective.reads == "source"
        tokenizer = self.loaded.components.source_tokenizer if of_source else self.loaded.tokenizer
        if isinstance(tokenizer, TextTokenizer):
            return tokenizer
        return None

    def _ids(self, batch: Batch) -> list[list[int]]:
        """Return the token ids of each text of a batch; none where inputs are not texts."""
        ids, lengths = (batch.source, batch.source_lengths) if self.encodes else (batch.inputs, batch.lengths)
        if self._tokenizer() is None or ids is None or ids.ndim != 2 or ids.is_floating_point():
            return []
        if lengths is None:
            return ids.tolist()
        return [row[:size] for row, size in zip(ids.tolist(), lengths.tolist(), strict=True)]

    def _texts(self, batch: Batch) -> list[str]:
        tokenizer = self._tokenizer()
        if tokenizer is None:
            return []
        tokens = self.model.ctx.tokens
        marks = {tokens.start, tokens.end, tokens.mask}
        return [tokenizer.decode([i for i in ids if i not in marks]) for ids in self._ids(batch)]

    def _tokens(self, batch: Batch, real: Tensor) -> list[str]:
        """Return the text of each pooled position, or its number in its sequence."""
        tokenizer, ids, spec = self._tokenizer(), self._ids(batch), self.model.ctx.tokens
        marks = {spec.start: "START", spec.end: "END", spec.mask: "MASK"}
        names = []
        for row, tokens in enumerate(real):
            count = int(tokens.sum())
            if tokenizer is not None and ids and len(ids[row]) == count:
                names += [marks.get(i) or tokenizer.token_name(i) or f"#{i}" for i in ids[row]]
            else:
                names += [str(number) for number in range(count)]
        return names


def _all_or(valid: Tensor | None, x: Tensor) -> Tensor:
    if valid is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    return valid


def _pooled(x: Tensor, real: Tensor, pool: Pool) -> tuple[Tensor, Tensor]:
    """Return vectors of a stream x (B, M, D), and the batch row of each vector. real: (B, M), the pooled positions."""
    index = torch.arange(len(x))
    if pool == "none":
        return x[real], index[:, None].expand_as(real)[real]
    if pool == "last":
        last = real.shape[1] - 1 - real.flip(1).int().argmax(1)
        return x[index, last], index
    weight = real.to(x.dtype)[..., None]
    return (x * weight).sum(1) / weight.sum(1).clamp_min(1), index
