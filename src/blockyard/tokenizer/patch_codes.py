"""Patches of an image as codes: each is replaced by the nearest of a fixed number of patches.

Source: Chen et al. 2020, Generative Pretraining from Pixels (iGPT), section 4.3, whose colors are k-means centres; of
    patches Gray 1984, Vector Quantization
Reference: sklearn.cluster.KMeans
Equation: code_n = argmin over k of |patch_n - c_k|^2
Cost: that of a model over (height / size) x (width / size) tokens

The centres are found on the training split only, by k-means over at most 100,000 of its patches, and cached in
BLOCKYARD_CACHE (or the platform's cache folder) under a hash of the images and the options. The metric
`reconstruction_mse` is the error between an image and its codes. Bits per code of different codes do not compare.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import TokenizerState
from blockyard.data.splits.order import mix
from blockyard.tokenizer._cache import fit_once
from blockyard.tokenizer._image_tokens import PatchTokens
from blockyard.tokenizer._vq import kmeans, nearest

LARGEST = 100_000  # patches that the centres are found on, at most


class PatchCodes(PatchTokens):
    """One token per square patch, the start token before them.

    Options:

        fit_seed: seed of the first patches and centres of k-means, so that runs of any seed have the same codes; null
            is the run's seed, so that each seed has its own codes
    """

    _centres: Tensor | None = None  # (K, C size size), from 0 to 1

    def fit(self, images: Tensor) -> None:
        """Find the centres by k-means, or load them from the cache."""
        options = f"{self.size} {self.count} {self.codes_seed}"
        fit_once(self, "patch_codes", [images, options], lambda: self._learn(images))

    def _learn(self, images: Tensor) -> None:
        patches = self._patches(images)
        generator = torch.Generator().manual_seed(mix("patch codes", self.count, self.codes_seed))
        if len(patches) > LARGEST:  # k-means costs the product of patches and codes in every round
            patches = patches[torch.randperm(len(patches), generator=generator)[:LARGEST]]
        centres = kmeans(patches, self.count, generator)
        self._centres = centres[centres.mean(1).argsort(stable=True)]  # from dark to bright

    def _patches(self, images: Tensor) -> Tensor:
        """Return the patches (n rows columns, C size size), from 0 to 1, of images (n, C, height, width) uint8."""
        channels = self.shape[0]
        size = self.size
        cut = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # (n, C, rows, size, columns, size)
        flat = cut.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels * size * size)
        return flat.float() / (self.levels - 1)

    def encode_cells(self, images: Tensor) -> Tensor:
        """Return the nearest centre of each patch: (B, N)."""
        centres = self._fitted().to(images.device)
        return nearest(self._patches(images), centres).view(len(images), -1)

    def decode_cells(self, token_ids: Tensor) -> Tensor:
        """Return the centres side by side, in gray levels of the data: (B, C, height, width)."""
        channels = self.shape[0]
        size = self.size
        patches = self._fitted().to(token_ids.device)[token_ids]  # (B, N, C size size)
        cells = patches.view(len(token_ids), self.rows, -1, channels, size, size)
        images = cells.permute(0, 3, 1, 4, 2, 5).reshape(-1, *self.shape)  # (B, C, height, width)
        return (images * (self.levels - 1)).round().clamp(0, self.levels - 1).to(torch.uint8)

    def state(self) -> TokenizerState:
        """Return the centres, one list of values from 0 to 1 for each."""
        if self._centres is None:
            return {}
        return {"codes": self._centres.double().tolist()}

    def load_state(self, state: TokenizerState) -> None:
        """Restore a `state`. Raises ValueError if it is damaged, or of other options."""
        self._centres = None
        if not state:
            return
        try:
            centres = torch.tensor(state["codes"], dtype=torch.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the saved state of a patch_codes tokenizer: {error}") from error
        if centres.ndim != 2 or len(centres) != self.count or centres.shape[1] % self.size**2:
            raise ValueError(f"not the saved state of {self.count} codes of {self.size} x {self.size} pixels")
        if not bool(centres.isfinite().all()):
            raise ValueError("not the saved state of a patch_codes tokenizer: a value is not finite")
        self._centres = centres

    def _fitted(self) -> Tensor:
        if self._centres is None:
            raise ValueError("this patch_codes tokenizer is not fitted to data")
        return self._centres
