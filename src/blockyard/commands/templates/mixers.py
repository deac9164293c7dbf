"""Templates of what mixes tokens and channels."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, Template

TOKEN_MIXER = Template(
    HEAD
    + '''import torch
from torch import Tensor

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual


class CLASS(TokenMixer):
    """The mean of the tokens that a token may see, through a linear map.

    Options:
        bias: use a bias in the linear map
    """

    # What it declares here is what `check` refuses, and what `blockyard verify` holds it to.
    traits = Traits(causal=True, padding=True, equivariant=True)

    def __init__(self, ctx: Context, *, bias: bool = False) -> None:
        super().__init__()
        self.causal = ctx.causal
        self.proj = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: object = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        real = torch.ones_like(x[..., :1]) if seq.valid is None else seq.valid[..., None].to(x.dtype)  # (B, N, 1)
        if self.causal:
            total, count = (x * real).cumsum(dim=1), real.cumsum(dim=1)
        else:
            total, count = (x * real).sum(dim=1, keepdim=True).expand_as(x), real.sum(dim=1, keepdim=True)
        mean = total / count.clamp(min=1)  # a sequence may be padding alone
        return self.proj(mean)  # (B, N, D)
''',
    """def test_the_formula() -> None:
    x, seq = tokens()
    for causal in (False, True):
        mixer = component(causal)
        expected = [x[:, : i + 1] if causal else x for i in range(6)]
        expected = torch.stack([seen.mean(dim=1) @ mixer.proj.weight.T for seen in expected], dim=1)
        assert_close(mixer(x, seq), expected)
""",
    bug=("return self.proj(mean)", "return 2 * self.proj(mean)"),
    verified=True,
)

CHANNEL_MIXER = Template(
    HEAD
    + '''from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import ChannelMixer, Context, Expansion, Seq
from blockyard.ops.linear import linear, residual


class CLASS(ChannelMixer):
    """Two linear maps with a squared ReLU between them; a token is read alone.

    Options:
        expansion: hidden width as a multiple of model.dim
    """

    def __init__(self, ctx: Context, *, expansion: Expansion = 4.0) -> None:
        super().__init__()
        hidden = max(1, round(expansion * ctx.dim))
        self.proj_in = linear(ctx, ctx.dim, hidden, content=0)
        self.proj_out = residual(ctx, hidden, ctx.dim)

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(F.relu(self.proj_in(x)).square())
''',
    """def test_the_formula() -> None:
    x, _ = tokens()
    mixer = component()
    hidden = (x @ mixer.proj_in.weight.T).clamp(min=0) ** 2
    assert_close(mixer(x), hidden @ mixer.proj_out.weight.T)
""",
    bug=(".square()", ""),
    verified=True,
)
