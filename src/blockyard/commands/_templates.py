"""The files that `blockyard new` writes: for each family a component that works, and its test against a formula.

In each text FAMILY, NAME, CLASS, PACKAGE and CONF stand for what the user asked for.
"""

from __future__ import annotations

from blockyard.commands._template_heads import HEAD, Template

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
)

CHANNEL_MIXER = Template(
    HEAD
    + '''from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import ChannelMixer, Context, Expansion
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

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(F.relu(self.proj_in(x)).square())
''',
    """def test_the_formula() -> None:
    x, _ = tokens()
    mixer = component()
    hidden = (x @ mixer.proj_in.weight.T).clamp(min=0) ** 2
    assert_close(mixer(x), hidden @ mixer.proj_out.weight.T)
""",
)

NORM = Template(
    HEAD
    + '''import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Positive
from blockyard.weight_init import Init


class CLASS(nn.Module):
    """Each token divided by the mean size of its channels, with a learned gain.

    Options:
        eps: added to the mean size
    """

    def __init__(self, ctx: Context, *, eps: Positive = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(ctx.dim))

    def init_weights(self, init: Init) -> None:
        """Gain one."""
        init.ones("weight")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return x / (x.abs().mean(dim=-1, keepdim=True) + self.eps) * self.weight
''',
    """def test_the_formula() -> None:
    x, _ = tokens()
    norm = component()
    sizes = sum(x[..., channel].abs() for channel in range(16)) / 16
    assert_close(norm(x), x / (sizes[..., None] + norm.eps) * norm.weight)
""",
)

BLOCK = Template(
    HEAD
    + '''from typing import Any

from torch import Tensor

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Rate, Seq


class CLASS(BranchedBlock):
    """The channel mixer before the token mixer, each on a normalised copy of the stream.

    Options:
        dropout: dropout rate on the output of each mixer
        drop_path: stochastic depth: rate at which a sample skips a branch of the last block
    """

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        dropout: Rate = 0.0,
        drop_path: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, token_mixer, channel_mixer, norm, dropout, drop_path)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.channel_norm is not None:
            x = x + self.drop(self.channel_mixer(self.channel_norm(x)))
        if self.token_norm is not None:
            x = x + self.drop(self._token(self.token_norm(x), seq, cache, memory))
        if self.cross_norm is not None:
            x = x + self.drop(self._cross(self.cross_norm(x), seq, memory))
        return x
''',
    """def test_the_formula() -> None:
    x, seq = tokens()
    block = component()
    after = x + block.channel_mixer(block.channel_norm(x))
    assert_close(block(x, seq), after + block.token_mixer(block.token_norm(after), seq))
""",
)

TEMPLATES = {"token_mixer": TOKEN_MIXER, "channel_mixer": CHANNEL_MIXER, "norm": NORM, "block": BLOCK}
