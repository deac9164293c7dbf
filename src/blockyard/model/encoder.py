"""Encoder: bidirectional blocks over a full sequence.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762); Dosovitskiy et al. 2021 (arXiv 2010.11929)
Reference: timm models/vision_transformer.py; transformers BertModel
Cost: that of its blocks, depth times
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.model._stack import Stack


class Encoder(Stack):
    """Every token may see every other token."""

    causal: ClassVar[bool] = False
