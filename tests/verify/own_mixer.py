"""A package with a mixer of one's own that can be broken in several ways, as a user's would lie on disk."""

from __future__ import annotations

import textwrap
from pathlib import Path

MIXER = '''
    import torch
    from torch import nn
    from torch.nn import functional as F

    from blockyard.contracts import TokenMixer, Traits
    from blockyard.ops.linear import Linear


    class Shift(TokenMixer):
        """A projection of the sum of each token and the one before it."""

        traits = Traits(causal=True, padding=True)

        def __init__(self, ctx, *, leak: bool = False, dead: bool = False, random: bool = False, average: bool = False):
            super().__init__()
            self.proj = Linear(ctx.dim, ctx.dim, bias=False, std=ctx.init_std)
            self.spare = Linear(ctx.dim, ctx.dim, bias=False, std=ctx.init_std) if dead else None
            self.leak, self.random, self.average = leak, random, average

        def forward(self, x, seq, cache=None, memory=None):
            """x (B, N, D) -> (B, N, D)."""
            beside = F.pad(x, (0, 0, 0, 1))[:, 1:] if self.leak else F.pad(x, (0, 0, 1, 0))[:, :-1]
            if self.average:  # over padding too
                beside = x.mean(1, keepdim=True)
            noise = 0.01 * torch.randn_like(x) if self.random else 0.0
            return self.proj(x + beside + noise)
'''


def write_package(folder: Path) -> None:
    """`mine/shift.py` and `myconf/token_mixer/mine.yaml`."""
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").touch()
    (folder / "mine" / "shift.py").write_text(textwrap.dedent(MIXER))
    choice = folder / "myconf" / "token_mixer" / "mine.yaml"
    choice.parent.mkdir(parents=True)
    options = "leak: false\ndead: false\nrandom: false\naverage: false\n"
    choice.write_text(f"# A token and the one before it.\n_target_: mine.shift.Shift\n_partial_: true\n{options}")
