"""Each way in which outputs of blocks are joined, against its equation or a library's module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

from blockyard.contracts import Inputs, Residual
from tests.support.helpers import LENGTH, context, factory, tiny, token_ids

DEPTH, D = 5, 16


def stirred(name: str, **options: Any) -> nn.Module:
    """A model of five blocks with a residual choice, and large weights."""
    return tiny(residual=name, sizes={"depth": DEPTH}, options={"residual": options})


def parts(model: nn.Module) -> tuple[Tensor, Any]:
    """The embedded tokens (B, N, D), and the blocks as functions of the stream."""
    x, seq = model.embed_tokens(Inputs(token_ids(2, LENGTH)))
    return x, [lambda stream, block=block: block(stream, seq, None, None) for block in model.blocks]


def finished(model: nn.Module, stream: Tensor) -> None:
    """Assert that the model's own pass ends in this stream."""
    record = model.steps(token_ids(2, LENGTH))
    assert_close(record["normed"], model.final_norm(stream))


def test_add_is_the_plain_chain_of_blocks() -> None:
    model = stirred("add")
    x, blocks = parts(model)
    for block in blocks:
        x = block(x)
    finished(model, x)


def test_x0() -> None:
    model = stirred("x0")
    x, blocks = parts(model)
    first = x
    for block, a, b in zip(blocks, model.residual.stream_weights, model.residual.token_weights, strict=True):
        x = block(a * x + b * first)
    finished(model, x)


def test_unet() -> None:
    """Of five visits, 3 reads what 1 gave, and 4 what 0 gave; 2 is the middle."""
    model = stirred("unet")
    x, blocks = parts(model)
    outputs = {}
    for visit, block in enumerate(blocks):
        mirror = {3: 1, 4: 0}.get(visit)
        x = x if mirror is None else x + model.residual.weights[visit - 3] * outputs[mirror]
        x = outputs[visit] = block(x)
    finished(model, x)


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_dense(dilation: int, period: int) -> None:
    """The weights of each average as a row of a matrix over all outputs."""
    model = stirred("dense", dilation=dilation, period=period)
    x, blocks = parts(model)
    flat, table = list(model.residual.weights), torch.zeros(DEPTH + 1, DEPTH + 1, dtype=torch.float64)
    for row in range(DEPTH + 1):
        if row == 0 or row % period:
            table[row, row] = 1.0
            continue
        for column in range(row, -1, -dilation):
            table[row, column] = flat.pop(0).detach()
    assert not flat
    outputs = [x]
    for row, block in enumerate(blocks):
        outputs.append(block(torch.einsum("j,jbnd->bnd", table[row, : row + 1], torch.stack(outputs))))
    finished(model, torch.einsum("j,jbnd->bnd", table[DEPTH], torch.stack(outputs)))


def test_depth_attention() -> None:
    """Torch's attention over depth, each token alone, with keys of unit RMS and no scale."""
    model = stirred("depth_attention")
    x, blocks = parts(model)
    additions = [x]

    def average(visit: int) -> Tensor:
        if visit == 0:
            return x
        values = torch.stack(additions, 2)  # (B, N, L, D)
        keys = values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        query = model.residual.queries[visit - 1].expand(*values.shape[:2], 1, -1)
        return F.scaled_dot_product_attention(query, keys, values, scale=1.0).squeeze(2)

    for visit, block in enumerate(blocks):
        y = average(visit)
        additions.append(block(y) - y)
    finished(model, average(DEPTH))


def test_hyper_free() -> None:
    """Each stream by itself, in loops; in the paper's order: weights to read, to write, to mix."""
    n = 3
    model = stirred("hyper", streams=n)
    x, blocks = parts(model)
    streams = [x] * n
    for visit, block in enumerate(blocks):
        bias, scale, maps = model.residual.bias[visit], model.residual.scale[visit], model.residual.maps[visit]
        rms = [stream / (stream.square().mean(-1, keepdim=True) + 1e-6).sqrt() for stream in streams]
        moves = [torch.tanh(torch.einsum("rd,bnd->bnr", maps, one)) for one in rms]
        read = [bias[s] + scale[0] * moves[s][..., 0] for s in range(n)]
        write = [bias[n + s] + scale[1] * moves[s][..., 1] for s in range(n)]
        mix = [[bias[2 * n + n * s + t] + scale[2] * moves[s][..., 2 + t] for t in range(n)] for s in range(n)]
        y = sum(read[s][..., None] * streams[s] for s in range(n))
        added = block(y) - y
        streams = [
            sum(mix[s][t][..., None] * streams[s] for s in range(n)) + write[t][..., None] * added for t in range(n)
        ]
    finished(model, sum(streams) / n)


class ForeignStreams:
    """A visit of a sinkhorn mixing by transformers' module, with the same weights."""

    def __init__(self, ours: Residual, visit: int) -> None:
        config = DeepseekV4Config(hidden_size=D, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=0.0, rms_norm_eps=1e-6)
        self.module = DeepseekV4HyperConnection(config).double()
        with torch.no_grad():
            self.module.fn.copy_(ours.maps[visit])
            self.module.base.copy_(ours.bias[visit])
            self.module.scale.copy_(ours.scale[visit])

    def step(self, streams: Tensor, block: Any) -> Tensor:
        """The streams (B, N, n, D) after a block, as DeepseekV4DecoderLayer joins them."""
        post, comb, y = self.module(streams)
        return post[..., None] * (block(y) - y)[..., None, :] + comb.transpose(-1, -2) @ streams


def test_hyper_sinkhorn_is_deepseeks() -> None:
    """Their norm and maps are always in float32: D * n terms of size 1 sum to 1e-5 of their own size."""
    model = stirred("hyper", mixing="sinkhorn")
    x, blocks = parts(model)
    streams = x.unsqueeze(2).repeat(1, 1, 4, 1)
    for visit, block in enumerate(blocks):
        streams = ForeignStreams(model.residual, visit).step(streams, block)
    record = model.steps(token_ids(2, LENGTH))
    assert_close(record["normed"], model.final_norm(streams.mean(2)), rtol=1e-4, atol=1e-4)


def test_sinkhorn_keeps_the_mean() -> None:
    """Rows and columns of the mixing sum to one, so that mixing alone changes no mean."""
    residual = factory("residual", "hyper", {"mixing": "sinkhorn", "iterations": 200})(context(depth=2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in residual.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    residual = residual.double()
    streams = torch.randn(2, LENGTH, 4, 16, dtype=torch.float64, generator=generator)
    _, state = residual.read(type(residual.open(streams[:, :, 0]))(streams), 1)
    assert_close(state.streams.mean(2), streams.mean(2))
    assert (state.streams - streams).abs().max() > 1e-2


@pytest.mark.parametrize("wrong", ["read", "write", "mix"])
def test_planted_exchange_of_streams_is_caught(wrong: str) -> None:
    """The reference sees each of the three parts: with two entries exchanged, it no longer agrees."""
    model = stirred("hyper", mixing="sinkhorn")
    start = {"read": 0, "write": 4, "mix": 8}[wrong]
    x, blocks = parts(model)
    streams = x.unsqueeze(2).repeat(1, 1, 4, 1)
    foreign = [ForeignStreams(model.residual, visit) for visit in range(DEPTH)]
    with torch.no_grad():
        model.residual.bias[:, [start, start + 1]] = model.residual.bias[:, [start + 1, start]]
    for block, one in zip(blocks, foreign, strict=True):
        streams = one.step(streams, block)
    record = model.steps(token_ids(2, LENGTH))
    assert (record["normed"] - model.final_norm(streams.mean(2))).abs().max() > 1e-2
