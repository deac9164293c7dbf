"""Patches of an image as learned codes: a small autoencoder with a fixed number of vectors in its middle.

Source: van den Oord et al. 2017, Neural Discrete Representation Learning (VQ-VAE, arXiv 1711.00937); Chang et al. 2022,
    MaskGIT (arXiv 2202.04200), section 3.1, for tokens that a second model then learns
Reference: transformers ChameleonVQVAE, without its adversary
Equation: code_n = argmin over k of |e(image)_n - c_k|^2; image = d(c_code); loss |image - d(c + (e - sg e))|^2 plus
    `commitment` |e - sg c|^2, where sg stops gradients; c follows the moving average of its vectors
Cost: that of a model over (height / size) x (width / size) tokens; seconds for the autoencoder, once for each data set

Unlike patch_codes, the encoder and the decoder read a border of one pixel around each patch, so seams are smoother.
Both are trained on the training split only and cached in BLOCKYARD_CACHE (or the platform's cache folder)
under a hash of the images and the options.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

import torch
from annotated_types import Gt, Lt
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Count, NonNegative, TokenizerState, Width, auxiliary_loss
from blockyard.contracts.inherited_options import with_options_of
from blockyard.data.splits.order import mix
from blockyard.tokenizer._cache import fit_once
from blockyard.tokenizer._image_tokens import PatchTokens
from blockyard.tokenizer._vq import PatchAutoencoder, Quantizer, nearest
from blockyard.weight_init import initialise

_BATCH = 128
_RATE = 3e-3
_CHUNK = 1024


class VQ(PatchTokens):
    """One token per square patch, the start token before them.

    Options:

        width: channels of a patch inside the autoencoder
        latent: width of a code
        steps: batches of 128 images that the autoencoder is trained on; the first quarter passes vectors on as they
            are, and k-means over them gives the first codes
        commitment: weight of the distance between vectors and their codes in the loss of the autoencoder
        decay: decay rate of the moving averages that the codes follow
        fit_seed: seed of the autoencoder's first weights, batches and codes, as for patch_codes
    """

    @with_options_of(PatchTokens)
    def __init__(
        self,
        *,
        width: Width = 128,
        latent: Width = 16,
        steps: Count = 400,
        commitment: NonNegative = 0.25,
        decay: Annotated[float, Gt(0), Lt(1)] = 0.98,
        **options: Any,
    ) -> None:
        super().__init__(**options)

        self.width = width
        self.latent = latent
        self.steps = steps
        self.commitment = commitment
        self.decay = decay

        self._network: PatchAutoencoder | None = None
        self._quantizer: Quantizer | None = None

    def fit(self, images: Tensor) -> None:
        """Train the autoencoder, or load it from the cache."""
        options = (self.size, self.count, self.width, self.latent, self.steps, self.commitment, self.decay)
        fit_once(self, "vq", [images, f"{options} {self.codes_seed}", torch.__version__], lambda: self._learn(images))

    def _build(self, channels: int) -> tuple[PatchAutoencoder, Quantizer]:
        network = PatchAutoencoder(channels, self.size, width=self.width, latent=self.latent)
        return network, Quantizer(self.count, self.latent, commitment=self.commitment, decay=self.decay)

    @torch.enable_grad()
    def _learn(self, images: Tensor) -> None:
        generator = torch.Generator().manual_seed(mix("vq", self.count, self.codes_seed))
        network, quantizer = self._build(images.shape[1])
        initialise(network, self.codes_seed)
        optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=self.steps + 1)
        for step in range(self.steps):
            chosen = torch.randint(len(images), (_BATCH,), generator=generator)
            pixels = self._pixels(images[chosen])
            vectors = network.encode(pixels)  # (B, rows, columns, F)
            # Codes start once vectors differ: at first all of them are nearly equal.
            if step == self.steps // 4:
                quantizer.start(vectors.detach().flatten(0, 2), generator)
            if step >= self.steps // 4:
                vectors = quantizer(vectors.flatten(0, 2), generator).view_as(vectors)
            loss = F.mse_loss(network.decode(vectors), pixels)
            commitment = auxiliary_loss([quantizer])
            loss = loss if commitment is None else loss + commitment
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        self._keep(network, quantizer)

    def _keep(self, network: PatchAutoencoder, quantizer: Quantizer) -> None:
        self._network = network.eval().requires_grad_(False)
        self._quantizer = quantizer.eval()

    def _pixels(self, images: Tensor) -> Tensor:
        return images.float() / (self.levels - 1)

    @torch.no_grad()
    def encode_cells(self, images: Tensor) -> Tensor:
        """Return the nearest code of each patch: (B, N)."""
        network, quantizer = self._fitted()
        parts = [network.encode(self._pixels(part)).flatten(0, 2) for part in images.split(_CHUNK)]
        return nearest(torch.cat(parts), quantizer.codes).view(len(images), -1)

    @torch.no_grad()
    def decode_cells(self, token_ids: Tensor) -> Tensor:
        """Return the decoded codes in gray levels of the data: (B, C, height, width)."""
        network, quantizer = self._fitted()
        vectors = quantizer.codes[token_ids].unflatten(1, (self.rows, -1))  # (B, rows, columns, F)
        images = torch.cat([network.decode(part) for part in vectors.split(_CHUNK)])
        return (images * (self.levels - 1)).round().clamp(0, self.levels - 1).to(torch.uint8)

    def state(self) -> TokenizerState:
        """Return the weights and the codes as base64 of float32, by name."""
        if self._network is None or self._quantizer is None:
            return {}
        tensors = {**self._network.state_dict(), "codes": self._quantizer.codes}
        data = {name: base64.b64encode(tensor.numpy().tobytes()).decode() for name, tensor in tensors.items()}
        return {"channels": self._network.conv_in.in_channels, "float32": data}

    def load_state(self, state: TokenizerState) -> None:
        """Restore a `state`. Raises ValueError if it is damaged, or of other options."""
        self._network = self._quantizer = None
        if not state:
            return
        try:
            network, quantizer = self._build(int(state["channels"]))
            tensors = {**network.state_dict(), "codes": quantizer.codes}
            for name, tensor in tensors.items():
                data = torch.frombuffer(bytearray(base64.b64decode(state["float32"][name])), dtype=torch.float32)
                tensor.copy_(data.view_as(tensor))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"not the saved state of a vq tokenizer of these options: {error}") from error
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise ValueError("not the saved state of a vq tokenizer: a value is not finite")
        self._keep(network, quantizer)

    def _fitted(self) -> tuple[PatchAutoencoder, Quantizer]:
        if self._network is None or self._quantizer is None:
            raise ValueError("this vq tokenizer is not fitted to data")
        return self._network, self._quantizer
