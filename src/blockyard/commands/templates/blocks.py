"""Templates of norms, blocks, and of how the outputs of blocks are joined."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, Template

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
    bug=("x.abs()", "x.square()"),
    verified=True,
)

BLOCK = Template(
    HEAD
    + '''from typing import Any

from torch import Tensor

from blockyard.block._base import BranchedBlock
from blockyard.contracts import Memory, Seq


class CLASS(BranchedBlock):
    """The channel mixer before the token mixer, each on a normalised copy of the stream.

    Options of its own go into a constructor under `blockyard.contracts.inherited_options.with_options_of`.
    """

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.channel_norm is not None:
            x = x + self.drop(self.channel_mixer(self.channel_norm(x), seq))
        if self.token_norm is not None:
            x = x + self.drop(self._token(self.token_norm(x), seq, cache, memory))
        if self.cross_norm is not None:
            x = x + self.drop(self._cross(self.cross_norm(x), seq, memory))
        return x
''',
    """def test_the_formula() -> None:
    x, seq = tokens()
    block = component()
    after = x + block.channel_mixer(block.channel_norm(x), seq)
    assert_close(block(x, seq), after + block.token_mixer(block.token_norm(after), seq))
""",
    bug=("self.channel_mixer(self.channel_norm(x), seq)", "self.channel_mixer(x, seq)"),
    verified=True,
)

RESIDUAL = Template(
    HEAD
    + '''from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Residual, Role
from blockyard.weight_init import Init

State = tuple[Tensor, Tensor]  # the stream, and the output before the last one, 2 x (B, N, D)


class CLASS(Residual):
    """Each block also reads what the block before the last one returned, with a learned weight.

    Options:
    """

    roles: ClassVar[dict[str, Role]] = {"weights": "fixed"}  # there are as many in a wider model

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.weights = nn.Parameter(torch.empty(ctx.visits))

    def init_weights(self, init: Init) -> None:
        """Zero, which adds as usual."""
        init.zeros("weights")

    def open(self, x: Tensor) -> State:
        """Return the embedded tokens, twice."""
        return x, x

    def read(self, state: State, visit: int) -> tuple[Tensor, State]:
        """Return the weighted sum that block number `visit` reads (B, N, D), and the state."""
        return state[0] + self.weights[visit] * state[1], state

    def write(self, state: State, visit: int, x: Tensor, output: Tensor) -> State:
        """Return the state after a block has returned `output`."""
        return output, state[0]

    def close(self, state: State) -> Tensor:
        """Return what the final norm reads (B, N, D)."""
        return state[0]
''',
    """def test_the_formula() -> None:
    x, _ = tokens()
    residual = component()
    read, state = residual.read(residual.open(x), 0)
    assert_close(read, x + residual.weights[0] * x)
    output = torch.tanh(read)
    read, _ = residual.read(residual.write(state, 0, read, output), 1)
    assert_close(read, output + residual.weights[1] * x)
""",
    bug=("return output, state[0]", "return output, output"),
    verified=True,
)
