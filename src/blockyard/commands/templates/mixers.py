"""Templates of what mixes tokens and channels."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, Template

TOKEN_MIXER = Template(
    HEAD
    + '''import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual
from blockyard.weight_init import Init


class CLASS(TokenMixer):
    """The mean of the tokens that a token may see, with a gain for each channel, through a linear map.

    Options:
        bias: use a bias in the linear map
    """

    # What it declares here is what `check` refuses, and what `blockyard verify` holds it to.
    traits = Traits(causal=True, padding=True, equivariant=True)

    def __init__(self, ctx: Context, *, bias: bool = False) -> None:
        super().__init__()
        self.causal = ctx.causal
        self.gain = nn.Parameter(torch.empty(ctx.dim))
        self.proj = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Give the parameters of this module their initial values; a submodule has its own."""
        init.ones("gain")

    def forward(self, x: Tensor, seq: Seq, cache: object = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        real = torch.ones_like(x[..., :1]) if seq.valid is None else seq.valid[..., None].to(x.dtype)  # (B, N, 1)
        if self.causal:
            total, count = (x * real).cumsum(dim=1), real.cumsum(dim=1)
        else:
            total, count = (x * real).sum(dim=1, keepdim=True).expand_as(x), real.sum(dim=1, keepdim=True)
        mean = total / count.clamp(min=1)  # a sequence may be padding alone
        return self.proj(self.gain * mean)  # (B, N, D)
''',
    """def test_the_formula() -> None:
    x, seq = tokens()
    for causal in (False, True):
        mixer = component(causal)
        with torch.no_grad():
            mixer.gain.copy_(torch.arange(16.0))
        expected = [x[:, : i + 1] if causal else x for i in range(6)]
        expected = torch.stack([(mixer.gain * seen.mean(dim=1)) @ mixer.proj.weight.T for seen in expected], dim=1)
        assert_close(mixer(x, seq), expected)
""",
    bug=("self.proj(self.gain * mean)", "self.proj(mean)"),
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

CARRYING_MIXER = Template(
    HEAD
    + '''import torch
from torch import Tensor

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual

GIVEN = "NAME_means"  # in `Seq.carry`


class CLASS(TokenMixer):
    """The mean of the tokens that a token may see, plus what the first layer computed so, through a linear map.

    Options:
        bias: use a bias in the linear map
    """

    # What it declares here is what `check` refuses, and what `blockyard verify` holds it to.
    traits = Traits(causal=True, padding=True, equivariant=True, gives=frozenset({GIVEN}))

    def __init__(self, ctx: Context, *, bias: bool = False) -> None:
        super().__init__()
        self.causal = ctx.causal
        self.proj = residual(ctx, ctx.dim, ctx.dim, bias=bias)
        if GIVEN in ctx.given:  # an earlier layer gives it
            self.takes = frozenset({GIVEN})
        else:
            self.gives = {GIVEN: (ctx.dim,)}

    def forward(self, x: Tensor, seq: Seq, cache: object = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        real = torch.ones_like(x[..., :1]) if seq.valid is None else seq.valid[..., None].to(x.dtype)  # (B, N, 1)
        if self.causal:
            total, count = (x * real).cumsum(dim=1), real.cumsum(dim=1)
        else:
            total, count = (x * real).sum(dim=1, keepdim=True).expand_as(x), real.sum(dim=1, keepdim=True)
        mean = total / count.clamp(min=1)  # a sequence may be padding alone
        if self.takes:
            mean = mean + seq.carry[GIVEN]
        elif seq.given is not None:  # None where no layer takes anything
            seq.give(GIVEN, mean)
        return self.proj(mean)  # (B, N, D)
''',
    """def test_the_formula() -> None:
    x, seq = tokens()
    model = small_model(CHOICE, ["CONF"])
    first, second = (module for module in model.modules() if isinstance(module, CLASS))
    mean = x.mean(dim=1, keepdim=True).expand_as(x)
    assert_close(first(x, seq), mean @ first.proj.weight.T)
    seq.carry["NAME_means"] = 3 * x
    assert_close(second(x, seq), (mean + 3 * x) @ second.proj.weight.T)
""",
    bug=("mean + seq.carry[GIVEN]", "mean - seq.carry[GIVEN]"),
    verified=True,
)

ROUTING_MIXER = Template(
    HEAD
    + '''import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import ChannelMixer, Context, Count, NonNegative, Seq
from blockyard.ops.linear import linear, output, residual


class CLASS(ChannelMixer):
    """A router sends each token to one of several pairs of linear maps.

    auxiliary: the balance loss of the last forward pass in training, over all visits of the block

    Options:
        count: number of pairs of maps
        weight: of the balance loss
    """

    def __init__(self, ctx: Context, *, count: Count = 4, weight: NonNegative = 0.01) -> None:
        super().__init__()
        self.count, self.weight = count, weight
        self.router = output(ctx, ctx.dim, count)
        self.maps_in = nn.ModuleList(linear(ctx, ctx.dim, ctx.dim, content=0) for _ in range(count))
        self.maps_out = nn.ModuleList(residual(ctx, ctx.dim, ctx.dim) for _ in range(count))
        self.auxiliary: Tensor | None = None

    def active_parameters(self) -> int:
        """Those of the router and of one pair of maps."""
        idle = sum(p.numel() for maps in (self.maps_in, self.maps_out) for p in maps[1:].parameters())
        return super().active_parameters() - idle

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        scores = self.router(x).softmax(-1)  # (B, N, E)
        chosen = F.one_hot(scores.argmax(-1), self.count).to(x.dtype)  # (B, N, E)
        real = torch.ones_like(x[..., :1]) if seq is None or seq.valid is None else seq.valid[..., None].to(x.dtype)
        chosen = chosen * real  # padding is not routed
        if self.training:
            tokens = real.sum().clamp(min=1)
            loads, mean = chosen.sum((0, 1)) / tokens, (scores * real).sum((0, 1)) / tokens  # 2 x (E,)
            loss = self.weight * self.count * (loads * mean).sum()
            self.auxiliary = loss if self.auxiliary is None else self.auxiliary + loss
        weights, y = scores * chosen, torch.zeros_like(x)
        for number, (map_in, map_out) in enumerate(zip(self.maps_in, self.maps_out, strict=True)):
            y = y + weights[..., number, None] * map_out(F.relu(map_in(x)))
        return y
''',
    """def test_the_formula() -> None:
    x, seq = tokens()
    mixer = component()
    scores = torch.softmax(x @ mixer.router.weight.T, dim=-1)
    best, index = scores.max(dim=-1)
    for sample, token in [(0, 0), (0, 5), (1, 3)]:
        chosen = index[sample, token]
        hidden = (x[sample, token] @ mixer.maps_in[chosen].weight.T).clamp(min=0)
        expected = best[sample, token] * (hidden @ mixer.maps_out[chosen].weight.T)
        assert_close(mixer(x, seq)[sample, token], expected)
""",
    bug=("scores.argmax(-1)", "scores.argmin(-1)"),
    verified=True,
)
