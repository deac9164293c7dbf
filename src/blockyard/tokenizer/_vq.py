"""The network of `vq`: patches to vectors, vectors to the nearest of a codebook, and back to pixels.

image -> convolution -> patches -> vectors (n, F) -> nearest code, straight through -> patches -> convolution -> image
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.ops.linear import Linear

MAPS = 8  # channels of the convolutions at the resolution of the image, M
RESTART = 1.0  # a code with fewer vectors of a batch than this, on average, is replaced
_CHUNK = 65_536  # points with distances in memory at a time


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the nearest centre (K, F) of each point (n, F): (n,) int64, the first of equal ones."""
    # |p - c|^2 without |p|^2: that is the same for all centres.
    offset = centres.square().sum(1)
    return torch.cat([(offset - 2 * part @ centres.T).argmin(1) for part in points.split(_CHUNK)])


def kmeans(points: Tensor, count: int, generator: torch.Generator, rounds: int = 30) -> Tensor:
    """Return `count` centres (K, F) of points (n, F) float by k-means, each the mean of its nearest points.

    A centre without points moves to a point far from its own centre, drawn by `generator`. With fewer different points
    than centres, some centres are equal, and no point is nearest to the later ones.

    Source: Lloyd 1982, Least Squares Quantization in PCM; Arthur and Vassilvitskii 2007, k-means++, for the start
    Reference: sklearn.cluster.KMeans
    """
    centres = _start(points, count, generator)
    for _ in range(rounds):
        owner = nearest(points, centres)
        sizes = torch.bincount(owner, minlength=count)  # (K,)
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        moved = torch.where(sizes[:, None] > 0, sums / sizes.clamp_min(1)[:, None], centres)
        # An empty centre would stay empty, as the mean of no points.
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):
            moved[empty] = _far(points, (points - moved[owner]).square().sum(1), len(empty), generator)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _start(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return points far from each other (K, F), drawn by their squared distance to the nearest one so far."""
    first = int(torch.randint(len(points), (), generator=generator))
    chosen = [points[first]]
    distance = (points - points[first]).square().sum(1)  # (n,)
    for _ in range(count - 1):
        point = _far(points, distance, 1, generator)[0]
        chosen.append(point)
        distance = torch.minimum(distance, (points - point).square().sum(1))
    return torch.stack(chosen)


def _far(points: Tensor, distance: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` points, drawn by their squared distance (n,); any points if all distances are zero."""
    cumulative = distance.double().cumsum(0)  # torch.multinomial takes no more than 2^24 points
    total = cumulative[-1]
    draws = torch.rand(count, generator=generator, dtype=torch.float64)
    if not total > 0:
        return points[(draws * len(points)).long()]
    return points[torch.searchsorted(cumulative, draws * total, right=True).clamp_max(len(points) - 1)]


class Quantizer(nn.Module):
    """Replaces vectors by the nearest of K codes. A code follows the mean of its vectors.

    Source: van den Oord et al. 2017, Neural Discrete Representation Learning (arXiv 1711.00937), eq. 1 to 3 and
        appendix A.1, the moving averages; Dhariwal et al. 2020, Jukebox (arXiv 2005.00341), section 3.1, the restart
        of codes without vectors
    Reference: the same formula by loops, in the tests

    auxiliary: the commitment loss of the last training batch; it keeps vectors near their codes
    """

    codes: Tensor
    sizes: Tensor
    sums: Tensor

    def __init__(self, count: int, width: int, *, commitment: float, decay: float) -> None:
        super().__init__()
        self.commitment = commitment
        self.decay = decay
        self.auxiliary: Tensor | None = None
        self.register_buffer("codes", torch.zeros(count, width))
        self.register_buffer("sizes", torch.ones(count))
        self.register_buffer("sums", torch.zeros(count, width))

    @torch.no_grad()
    def start(self, vectors: Tensor, generator: torch.Generator) -> None:
        """Take the centres of k-means over vectors (n, F) as codes."""
        self.codes.copy_(kmeans(vectors, len(self.codes), generator, rounds=10))
        self.sizes.fill_(len(vectors) / len(self.codes))
        self.sums.copy_(self.codes * self.sizes[:, None])

    def forward(self, vectors: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Vectors (n, F) -> their codes (n, F), with the gradient of the vectors themselves.

        In training codes follow their vectors, and codes with hardly any become vectors drawn by `generator`.
        """
        owner = nearest(vectors.detach(), self.codes)
        quantized = self.codes[owner]
        if self.training:
            self.auxiliary = self.commitment * F.mse_loss(vectors, quantized)
            self.follow(vectors.detach(), owner, generator)
        return vectors + (quantized - vectors).detach()  # straight through: argmin has no gradient

    @torch.no_grad()
    def follow(self, vectors: Tensor, owner: Tensor, generator: torch.Generator | None) -> None:
        """Move each code to the moving average of its vectors. owner: (n,) int64, the code of each vector."""
        counts = torch.bincount(owner, minlength=len(self.codes)).to(vectors.dtype)
        self.sizes.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(torch.zeros_like(self.sums).index_add_(0, owner, vectors), 1 - self.decay)
        self.codes.copy_(self.sums / self.sizes.clamp_min(1e-9)[:, None])
        # A code far from all vectors never gets one again: it restarts at a vector of the batch.
        unused = (self.sizes < RESTART).nonzero()[:, 0]
        if len(unused) and generator is not None:
            drawn = torch.randint(len(vectors), (len(unused),), generator=generator)
            self.codes[unused] = vectors[drawn]
            self.sizes[unused] = RESTART
            self.sums[unused] = vectors[drawn] * RESTART


class PatchAutoencoder(nn.Module):
    """Encodes images as vectors, one for each patch, and decodes images from them. Pixels are from 0 to 1."""

    def __init__(self, channels: int, size: int, *, width: int, latent: int) -> None:
        super().__init__()
        self.size = size
        values = MAPS * size * size
        self.conv_in = nn.Conv2d(channels, MAPS, 3, padding=1)
        self.to_hidden = Linear(values, width, bias=True, std=values**-0.5, role="fixed")
        self.to_latent = Linear(width, latent, bias=True, std=width**-0.5, role="fixed")
        self.from_latent = Linear(latent, width, bias=True, std=latent**-0.5, role="fixed")
        self.from_hidden = Linear(width, values, bias=True, std=width**-0.5, role="fixed")
        self.conv_out = nn.Conv2d(MAPS, channels, 3, padding=1)

    def encode(self, images: Tensor) -> Tensor:
        """Images (B, C, height, width) -> vectors (B, rows, columns, F)."""
        pixels = F.gelu(self.conv_in(images))
        cut = pixels.unflatten(3, (-1, self.size)).unflatten(2, (-1, self.size))  # (B, M, rows, size, columns, size)
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, rows, columns, M size size)
        return self.to_latent(F.gelu(self.to_hidden(patches)))  # (B, rows, columns, F)

    def decode(self, vectors: Tensor) -> Tensor:
        """Vectors (B, rows, columns, F) -> images (B, C, height, width)."""
        patches = F.gelu(self.from_hidden(F.gelu(self.from_latent(vectors))))
        cut = patches.unflatten(3, (-1, self.size, self.size))  # (B, rows, columns, M, size, size)
        maps = cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)  # (B, M, height, width)
        return self.conv_out(maps)
