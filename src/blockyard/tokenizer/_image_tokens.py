"""Shared parts of tokenizers of images that are written: the order of the tokens, start tokens, the table.

A sequence begins with a start token, and each token lies at the coordinates of the one that it predicts:

    image     a b     inputs   S    a    b    c
              c d     at       0,0  0,1  1,0  1,1
                      target   a    b    c    d
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from blockyard.contracts import Because, Context, DataSpec, Embedder, ImageTokenizer, Seq, Side, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.data.splits.order import mix
from blockyard.tokenizer._grid import grid_coordinates, patch_grid

Order: TypeAlias = Literal["row", "column", "snake", "random"]
Codes = Annotated[int, Ge(2), Le(8192), Because("each is a row of the table and an output of the head")]
FitSeed = Annotated[int, Ge(0), Le(2**32 - 1), Because("it seeds a generator")]
MOST = 4096  # tokens of an image: attention over more compares 17 million pairs of them


class ImageTokens(ImageTokenizer):
    """Token ids on a grid, in one of several orders.

    column is row of the transposed image, coordinates included; snake goes through every other row from right to
    left; random is one permutation, the same for all images, runs and machines.

    Options:
        order: order of the tokens on the grid: row by row, column by column, row by row with every other row from
            right to left (snake), or one random order
        condition: the start token is the class of the image, so that images of a class can be drawn; null: one for all
    """

    item: tuple[int, ...] = ()
    _size: tuple[int, int] | None = None  # rows and columns of the grid

    def __init__(self, *, order: Order = "row", condition: Literal["class"] | None = None) -> None:
        self.order = order
        self.condition = condition

    def layout(self, data: DataSpec, grid: tuple[int, int], codes: int) -> TokenSpec:
        """Return the tokens of a grid of `codes` ids.

        Raises ValueError for too many tokens, and for a condition on classes that the data does not have.
        """
        assert data.levels is not None
        rows, columns = grid
        if rows * columns > MOST:
            raise ValueError(
                f"this tokenizer makes {rows} x {columns} = {rows * columns:,} tokens of an image of {data.shape[1]} x "
                f"{data.shape[2]} pixels, more than {MOST:,}; use smaller images (data.size) or "
                "tokenizer=patch_codes with larger patches"
            )
        if self.condition == "class" and data.classes is None:
            raise ValueError("tokenizer.condition=class needs images with classes; use tokenizer.condition=null")
        self.codes = codes
        self.levels = data.levels
        self._size = grid
        classes = data.classes if self.condition == "class" else 1
        assert classes is not None
        return TokenSpec(
            (columns, rows) if self.order == "column" else grid,
            vocabulary=codes + classes,
            predicted=codes,
            start=None if data.source is None else codes,
            ahead=True,
            raster=self.order in ("row", "column"),
        )

    @abstractmethod
    def encode_cells(self, images: Tensor) -> Tensor:
        """Return the token ids (B, N, *item) int64 of images (B, C, height, width) uint8, cell by cell of the grid."""

    @abstractmethod
    def decode_cells(self, token_ids: Tensor) -> Tensor:
        """Return the images (B, C, height, width) uint8 of token ids (B, N, *item), cell by cell."""

    @property
    def cells(self) -> Tensor:
        """The cell of each token, (N,) int64."""
        assert self._size is not None, "spec() comes before the tokens"
        return _cells_in_order(self.order, *self._size)

    def encode(self, images: Tensor) -> Tensor:
        """Return the token ids (B, N, *item) of images in their order."""
        return self.encode_cells(images)[:, self.cells.to(images.device)]

    def decode(self, token_ids: Tensor) -> Tensor:
        """Return the images of token ids (B, N, *item)."""
        return self.decode_cells(token_ids[:, self.cells.argsort().to(token_ids.device)])

    def start(self, classes: Tensor) -> Tensor:
        """Return the start tokens (B, *item) of images of these classes: one of each class, or one for all."""
        ids = self.codes + (classes if self.condition == "class" else torch.zeros_like(classes))
        return ids.view(-1, *[1] * len(self.item)).expand(-1, *self.item)

    def token_name(self, token_id: int) -> str:
        """Return the number of a code, or the class of a start token."""
        if self._size is None or token_id < self.codes:
            return str(token_id)
        if self.condition == "class":
            return f"class {token_id - self.codes}"
        return "START"

    def embedder(self, ctx: Context) -> StartedEmbedder:
        """Build the embedding table."""
        return ImageTokenEmbedder(ctx, self.cells)


class PatchTokens(ImageTokens):
    """One learned code per square patch.

    Options:
        size: side of a patch in pixels; must divide height and width
        codes: number of codes
    """

    unit: ClassVar[str] = "code"

    @with_options_of(ImageTokens)
    def __init__(self, *, size: Side = 4, codes: Codes = 64, fit_seed: FitSeed | None = 0, **options: Any) -> None:
        super().__init__(**options)
        self.size = size
        self.count = codes
        self.fit_seed = fit_seed

    @property
    def codes_seed(self) -> int:
        """The seed of random numbers in `fit`: `fit_seed`, or the seed of the run."""
        if self.fit_seed is None:
            return self.run_seed
        return self.fit_seed

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per patch, on a grid with two axes. Raises ValueError unless `size` divides both sides."""
        if data.levels is None:
            name = type(self).__module__.rpartition(".")[2]
            raise ValueError(f"tokenizer={name} reads gray levels, and this data gives images without them")
        rows, columns = patch_grid(data, self.size, "tokenizer.size").grid
        self.shape = data.shape
        self.rows = rows
        return self.layout(data, (rows, columns), self.count)


class StartedEmbedder(Embedder):
    """Tokens of an image behind a start token. Each has the coordinates of the token that follows it.

    Subclasses compute the vectors.

    item: the shape of a token in the inputs, () for an id
    """

    index: Tensor
    coords: Tensor

    def __init__(self, ctx: Context, cells: Tensor, item: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.grid = ctx.tokens.grid
        self.raster = ctx.tokens.raster
        self.item = item
        index, coords = grid_coordinates(self.grid)
        if not self.raster:
            coords = coords[:, cells.to(coords.device)]
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("coords", coords, persistent=False)

    def vectors(self, inputs: Tensor) -> Tensor:
        """Inputs (B, N, *item) int64 -> (B, N, D)."""
        raise NotImplementedError

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, N, *item) -> x (B, N, D), Seq. Fewer than a whole image, from index `start` on, fill no grid.

        Raises ValueError for more tokens than an image has, and for arguments that only text has.
        """
        if lengths is not None or segment is not None:
            raise ValueError("an image is one sequence of tokens; omit lengths and segment")
        end = start + inputs.shape[1]
        whole = math.prod(self.grid)
        if inputs.shape[2:] != self.item or end > whole:
            raise ValueError(f"inputs of shape {tuple(inputs.shape)}: an image has at most {whole} tokens")
        grid = self.grid if self.raster and inputs.shape[1] == whole else None
        ids = None if self.item else inputs  # (B, N)
        return self.vectors(inputs), Seq(self.index[start:end], self.coords[:, start:end], grid=grid, ids=ids)


class ImageTokenEmbedder(StartedEmbedder):
    """Looks token ids up in a (V, D) table."""

    def __init__(self, ctx: Context, cells: Tensor) -> None:
        super().__init__(ctx, cells)
        assert ctx.tokens.vocabulary is not None
        self.symbols = nn.Embedding(ctx.tokens.vocabulary, ctx.dim)

    @property
    def table(self) -> nn.Parameter:  # type: ignore[override]
        """The (V, D) embeddings, start tokens last."""
        return cast(nn.Parameter, self.symbols.weight)

    def vectors(self, inputs: Tensor) -> Tensor:
        """Token ids (B, N) -> (B, N, D)."""
        return self.symbols(inputs)


@lru_cache(maxsize=8)
def _cells_in_order(order: Order, rows: int, columns: int) -> Tensor:
    """Return the cell of a grid at each token, (N,) int64, counted row by row."""
    cells = torch.arange(rows * columns, device="cpu").view(rows, columns)
    if order == "column":
        cells = cells.T
    elif order == "snake":
        cells = torch.where(torch.arange(rows, device="cpu")[:, None] % 2 == 1, cells.flip(1), cells)
    elif order == "random":
        generator = torch.Generator().manual_seed(mix("token order", rows, columns))
        cells = cells.flatten()[torch.randperm(rows * columns, generator=generator, device="cpu")]
    return cells.flatten()
