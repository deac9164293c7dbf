"""The number of the layer that each parameter belongs to, from the input to the output.

Source: Bao et al. 2022, BEiT (arXiv 2106.08254), appendix; Clark et al. 2020, ELECTRA (arXiv 2003.10555), table 7
Reference: timm.optim.param_groups_layer_decay

0 is the part before the blocks (embedder with its norm, n-grams, smear, positions, class and register tokens, mask
token, types of a joined source, learned latents), n + 1 is block n, and one more than the last block is the part behind
the blocks (final norms, head).
"""

from __future__ import annotations

from torch import nn

from blockyard.contracts import Block, Embedder, Position, blocks_of_heads
from blockyard.model._embedding import MaskToken
from blockyard.model._ngrams import NgramEmbedding
from blockyard.model._prefix import PrefixTokens
from blockyard.model._smear import Smear
from blockyard.model.joint import Types
from blockyard.model.perceiver import Latents

_FIRST = (Embedder, NgramEmbedding, Smear, Position, PrefixTokens, MaskToken, Types, Latents)
_FIRST_NORMS = ("embed_norm", "input_norm")


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """Return the layer number of every parameter, by its name.

    Blocks count in the order in which a sample passes them: an encoder before its decoder. A parameter with several
    owners, such as a tied head, has the number of the first.
    """
    modules = dict(model.named_modules())
    head_blocks = set(blocks_of_heads(model))  # a prediction does not pass the blocks of a head
    blocks = [path for path, module in modules.items() if isinstance(module, Block) and module not in head_blocks]
    blocks.sort(key=lambda path: not path.startswith("encoder."))  # a decoder holds its encoder behind its own blocks
    last = len(blocks) + 1
    numbers = {}
    for name, _ in model.named_parameters():
        parts = name.split(".")
        around = [".".join(parts[:end]) for end in range(1, len(parts))]
        inside = next((blocks.index(path) for path in around if path in blocks), None)
        if inside is not None:
            numbers[name] = inside + 1
        else:
            first = any(isinstance(modules[path], _FIRST) for path in around) or not {*_FIRST_NORMS}.isdisjoint(parts)
            numbers[name] = 0 if first else last
    return numbers
