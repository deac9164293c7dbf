"""FlexAttention as it is compiled for a GPU, from as many keys on as `attend` takes it; skipped where there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.ops import flex
from blockyard.ops.attend import attend
from blockyard.ops.kernel import attention_kernel
from blockyard.ops.mask import Visibility
from blockyard.ops.reference import eager
from blockyard.ops.shaping import Forget, Shaping
from tests.ops.attention_inputs import FACTS, facts, qkv, scheme

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr(flex, "_shapes", set())
    yield
    torch._dynamo.reset()


def on_gpu(seq: Seq) -> Seq:
    """Facts of tokens on the GPU, with coordinates in float32."""
    moved = {
        field.name: value.to(DEVICE)
        for field in dataclasses.fields(seq)
        if isinstance(value := getattr(seq, field.name), Tensor)
    }
    position = None if seq.position is None else seq.position.float().to(DEVICE)
    return dataclasses.replace(seq, **moved | {"coords": moved["coords"].float()}, position=position, memo={})


def gradients(seq: Seq, visibility: Visibility, kernel: str, length: int) -> list[Tensor]:
    """The output, and the gradients of queries, keys, values and the scheme's numbers."""
    tensors = [t.to(DEVICE).requires_grad_() for t in qkv(torch.float32, 2, length, length, 32)]
    tables = [] if seq.position is None else list(seq.position.parameters())
    path = eager if kernel == "eager" else attend
    with attention_kernel("auto" if kernel == "eager" else kernel):
        out = path(*tensors, seq, seq, visibility)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [*tensors, *tables])]


@pytest.mark.parametrize("visibility", [Visibility(), Visibility(True), Visibility(True, window=48)], ids=str)
@pytest.mark.parametrize("position", ["no", "alibi", "t5_bias"])
@pytest.mark.parametrize("kind", FACTS)
def test_values_and_gradients(kind: str, position: str, visibility: Visibility) -> None:
    length = flex.FEWEST + 13
    seq = on_gpu(facts(kind, scheme(position), 2, length))
    wanted = gradients(seq, visibility, "eager", length)
    for kernel in ("auto", "sdpa"):
        seq.memo.clear()
        for ours, expected in zip(gradients(seq, visibility, kernel, length), wanted, strict=True):
            assert_close(ours, expected, rtol=2e-2, atol=2e-2)


def test_gradients_of_what_is_forgotten() -> None:
    """The sums of the forget gates are read at the query and at the key."""
    length = flex.FEWEST + 13
    seq = on_gpu(facts("plain", None, 0, length))
    results = []
    for kernel in ("eager", "auto"):
        tensors = [t.to(DEVICE).requires_grad_() for t in qkv(torch.float32, 2, length, length, 32)]
        gates = torch.linspace(-2, -0.1, length, device=DEVICE).expand(2, 4, -1).clone().requires_grad_()
        sums = gates.cumsum(-1)
        path = eager if kernel == "eager" else attend
        with attention_kernel("auto"):
            out = path(*tensors, seq, seq, Visibility(True), shaping=Shaping(forget=Forget(sums, sums)))
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), [*tensors, gates])])
    for ours, expected in zip(results[1], results[0], strict=True):
        assert_close(ours, expected, rtol=2e-2, atol=2e-2)


def test_more_shapes_than_are_compiled_take_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "SHAPES", 2)
    for length in range(flex.FEWEST, flex.FEWEST + 4):
        seq = on_gpu(facts("padded", None, 0, length))
        q, k, v = (t.to(DEVICE) for t in qkv(torch.float32, 4, length, length, 32))
        assert_close(
            attend(q, k, v, seq, seq, Visibility()), eager(q, k, v, seq, seq, Visibility()), rtol=1e-3, atol=1e-3
        )
    assert len(flex._shapes) == 2
