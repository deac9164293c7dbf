"""Class and register tokens: learned vectors in front of every sequence.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805); Darcet et al. 2024, Vision Transformers Need Registers
(arXiv 2309.16588)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, CountOrZero, Role, Seq
from blockyard.weight_init import Init


@dataclass(frozen=True)
class Prefix:
    """The learned tokens in front of every sequence, the class token first."""

    class_token: bool = False
    registers: CountOrZero = 0

    # Without it pydantic ignores a misspelt key.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __len__(self) -> int:
        return int(self.class_token) + self.registers

    def __bool__(self) -> bool:
        return len(self) > 0


NO_PREFIX = Prefix()


class PrefixTokens(nn.Module):
    """Puts the learned tokens in front of a sequence, and their facts in front of its facts."""

    roles: ClassVar[dict[str, Role]] = {"class_token": "input", "registers": "input"}

    def __init__(self, ctx: Context, prefix: Prefix) -> None:
        super().__init__()
        self.num = len(prefix)
        self.class_token = nn.Parameter(torch.empty(1, ctx.dim)) if prefix.class_token else None  # (1, D)
        self.registers = nn.Parameter(torch.empty(prefix.registers, ctx.dim)) if prefix.registers else None

    def init_weights(self, init: Init) -> None:
        """Draw normal vectors."""
        init.normal("class_token")
        init.normal("registers")

    def forward(self, x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """x (B, N, D) -> (B, prefix + N, D), and the facts of all tokens.

        Prefix tokens precede all others, are real, and belong to no document. No position scheme reads their
        coordinates, which are zero.
        """
        # A segment of -1 is of no document, and an id of -1 no token: mixers treat the prefix apart.
        learned = torch.cat([p for p in (self.class_token, self.registers) if p is not None])  # (prefix, D)
        x = torch.cat([learned.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)  # (B, prefix + N, D)
        first = torch.arange(self.num, device=seq.index.device)
        prefixed = Seq(
            index=torch.cat([first, seq.index + self.num]),
            coords=F.pad(seq.coords, (0, 0, self.num, 0)),
            unvaried=None if seq.unvaried is None else F.pad(seq.unvaried, (0, 0, self.num, 0)),
            valid=None if seq.valid is None else F.pad(seq.valid, (self.num, 0), value=True),
            segment=None if seq.segment is None else F.pad(seq.segment, (self.num, 0), value=-1),
            num_prefix=self.num + seq.num_prefix,
            ties=seq.ties,
            shown=None if seq.shown is None else F.pad(seq.shown, (self.num, 0), value=False),
            grid=seq.grid,
            position=seq.position,
            scale=seq.scale,
            ids=None if seq.ids is None else F.pad(seq.ids, (self.num, 0), value=-1),
            pairs=None if seq.pairs is None else tuple(F.pad(p, (self.num, 0, self.num, 0)) for p in seq.pairs),
            features=None if seq.features is None else F.pad(seq.features, (0, 0, self.num, 0)),
            embedded=seq.embedded,  # these two stay facts of the tokens without the prefix
            hidden=seq.hidden,
        )
        return x, prefixed
