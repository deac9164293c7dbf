"""Caps on the scores and sinks, in every path of `ops.attend`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Seq
from blockyard.errors import UserError
from blockyard.ops import kernel, maps, mask, online
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import follow
from blockyard.ops.flex import flex, score_function
from blockyard.ops.kernel import attention_kernel
from blockyard.ops.mask import CAUSAL, FULL, Visibility
from blockyard.ops.reference import eager
from blockyard.ops.shaping import PLAIN, Forget, Shaping
from tests.ops.attention_inputs import FACTS, PREFIX, N, facts, qkv, scheme
from tests.support.every import every
from tests.support.pairwise import in_pairs
from tests.support.tolerances import FLOAT64

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")

Z = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
SHAPINGS = {"cap": Shaping(2.0), "zero": Shaping(sink=0.0), "sinks": Shaping(sink=Z), "both": Shaping(1.5, Z)}
HIDDEN = {"full": FULL, "causal": CAUSAL, "window": Visibility(True, 3), "strict": Visibility(True, None, True)}
CASES = list(product(SHAPINGS, FACTS, HIDDEN, ["no", "alibi"], [0, PREFIX], [4, 2]))


@pytest.fixture(autouse=True)
def _numbers_stay_numbers() -> Iterator[None]:
    """FlexAttention takes no input that is a number, as the compiler makes a cap from its second value on."""
    with torch._dynamo.config.patch(specialize_float=True):
        yield


def formula(q: Tensor, k: Tensor, v: Tensor, seq: Seq, visibility: Visibility, shaping: Shaping) -> Tensor:
    """Query by query and head by head, from sums of exponentials."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    sees = mask.table(seq, seq, visibility)
    bias = mask.bias_table(seq, seq, q.shape[1])
    for b, h, i in product(range(q.shape[0]), range(q.shape[1]), range(q.shape[2])):
        group = h // (q.shape[1] // k.shape[1])
        scores = k[b, group] @ q[b, h, i] / q.shape[-1] ** 0.5
        if shaping.cap is not None:
            scores = shaping.cap * torch.tanh(scores / shaping.cap)
        if bias is not None:
            scores = scores + bias.expand(2, -1, -1, -1)[b, h, i]
        exponentials = scores.exp()
        if sees is not None:
            exponentials = exponentials * sees.expand(2, -1, -1, -1)[b, 0, i]
        total = exponentials.sum()
        if shaping.sink is not None:
            total = total + (shaping.sink if isinstance(shaping.sink, Tensor) else torch.zeros(4))[h].exp()
        if total > 0:
            out[b, h, i] = exponentials @ v[b, group] / total
    return out


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("shape", "kind", "hidden", "position", "prefix", "kv_heads"), in_pairs(CASES))
def test_all_paths(shape: str, kind: str, hidden: str, position: str, prefix: int, kv_heads: int) -> None:
    seq, visibility, shaping = facts(kind, scheme(position), prefix), HIDDEN[hidden], SHAPINGS[shape]
    q, k, v = qkv(torch.float64, kv_heads)
    wanted = formula(q, k, v, seq, visibility, shaping)
    assert_close(eager(q, k, v, seq, seq, visibility, shaping=shaping), wanted)
    assert_close(attend(q, k, v, seq, seq, visibility, shaping=shaping), wanted)
    prepare(seq, visibility, 4, 8, q, shaping=shaping)
    assert_close(attend(q, k, v, seq, seq, visibility, shaping=shaping), wanted)
    assert_close(flex(q, k, v, seq, seq, visibility, compiled=False, shaping=shaping), wanted, **FLOAT64)
    assert (attend(q, k, v, seq, seq, visibility) - wanted).abs().max() > 1e-3


@pytest.mark.parametrize(("shape", "kind", "hidden", "position", "prefix", "kv_heads"), in_pairs(CASES))
def test_gradients(shape: str, kind: str, hidden: str, position: str, prefix: int, kv_heads: int) -> None:
    """Of queries, keys, values and the sinks, by the online softmax and by what `attend` takes."""
    seq, visibility = facts(kind, scheme(position), prefix), HIDDEN[hidden]

    def gradients(path: Any, **named: Any) -> list[Tensor]:
        tensors, sinks = [t.requires_grad_() for t in qkv(torch.float64, kv_heads)], Z.clone().requires_grad_()
        shaping = Shaping(SHAPINGS[shape].cap, sinks if shape in ("sinks", "both") else SHAPINGS[shape].sink)
        out = path(*tensors, seq, seq, visibility, shaping=shaping, **named)
        factor = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
        (out * factor).sum().backward()
        return [out, *(t.grad for t in tensors), torch.zeros(4) if sinks.grad is None else sinks.grad]

    wanted = gradients(eager)
    for ours in (gradients(online.online, chunk=2), gradients(attend)):
        assert every(torch.isfinite(each).all() for each in ours)
        assert_close(ours, wanted)


def test_values_of_another_width_and_scale() -> None:
    q, k, v = qkv(torch.float64, 2)
    seq = facts("plain")
    for shaping in SHAPINGS.values():
        wanted = eager(q, k, v[..., :5], seq, seq, CAUSAL, 0.3, shaping=shaping)
        assert_close(attend(q, k, v[..., :5], seq, seq, CAUSAL, scale=0.3, shaping=shaping), wanted)
        assert_close(online.online(q, k, v[..., :5], seq, seq, CAUSAL, 0.3, shaping=shaping), wanted)


def test_kernels_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink leaves the kernel as it is. A cap takes the formula where FlexAttention is not, and never sdpa."""
    noted: list[tuple[str, str]] = []
    monkeypatch.setattr(kernel, "recording", lambda: True)
    monkeypatch.setattr(kernel, "note", lambda name, reasons: noted.append((name, "; ".join(reasons))))
    q, k, v = qkv(torch.float32)
    seq = facts("plain")
    for shaping in (PLAIN, Shaping(sink=0.0), Shaping(sink=Z)):
        attend(q, k, v, seq, seq, CAUSAL, shaping=shaping)
    assert noted == [("flash", "")] * 3
    attend(q, k, v, seq, seq, CAUSAL, shaping=Shaping(2.0))
    assert noted[3][0] == "eager"
    assert "scores are capped; FlexAttention is used on CUDA only" in noted[3][1]
    with (
        attention_kernel("sdpa"),
        pytest.raises(UserError, match=r"trainer\.attention=sdpa cannot serve: scores are capped"),
    ):
        attend(q, k, v, seq, seq, CAUSAL, shaping=Shaping(2.0))
    for name in ("eager", "online"):
        with attention_kernel(name):
            out = attend(q, k, v, seq, seq, CAUSAL, shaping=SHAPINGS["both"])
        assert_close(out, eager(q, k, v, seq, seq, CAUSAL, shaping=SHAPINGS["both"]))


def test_a_sink_does_not_let_later_tokens_through() -> None:
    """Planted: a causal mask that begins at the sink would hide each token from itself."""
    q, k, v = qkv(torch.float64)
    seq = facts("plain")
    out = attend(q, k, v, seq, seq, CAUSAL, shaping=SHAPINGS["sinks"])
    changed = [t.clone() for t in (k, v)]
    for t in changed:
        t[:, :, -1] += 1.0
    after = attend(q, *changed, seq, seq, CAUSAL, shaping=SHAPINGS["sinks"])
    assert torch.equal(after[:, :, :-1], out[:, :, :-1])
    assert (after[:, :, -1] - out[:, :, -1]).abs().max() > 1e-3


def test_maps_lack_what_the_sink_takes() -> None:
    q, k, v = qkv(torch.float64)
    seq = facts("plain")
    with maps.listen(torch.nn.Identity()) as seen:
        attend(q, k, v, seq, seq, CAUSAL, shaping=SHAPINGS["both"])
    weights = seen[0].weights()
    assert seen[0].sink
    assert_close(
        (weights.double() @ v), eager(q, k, v, seq, seq, CAUSAL, shaping=SHAPINGS["both"]), rtol=1e-5, atol=1e-5
    )
    assert (weights.sum(-1) < 1).all()


def test_the_kernel_indexes_no_tensor_twice() -> None:
    """FlexAttention has no gradient of a tensor that a score reads at the query and at the key."""
    seq = facts("plain")
    sums = torch.zeros(2, 4, N, dtype=torch.float64, requires_grad=True).cumsum(-1)
    change = score_function(seq, seq, Shaping(forget=Forget(sums, sums)))
    assert change is not None
    read = [cell.cell_contents for cell in change.__closure__ or () if isinstance(cell.cell_contents, Tensor)]
    assert len({id(tensor) for tensor in read}) == len(read) == 2


def behind_a_source(first: int, last: int, source: int = 4) -> Seq:
    """Tokens of a source, which see each other and share an index, and a text behind them."""
    index = torch.cat([torch.zeros(source, dtype=torch.long), torch.arange(1, 10)])[first:last]
    return Seq(index, torch.zeros(1, last - first, 1), num_prefix=0 if first else source, ties=not first)


def test_the_index_of_tokens_behind_a_source_is_no_count() -> None:
    whole = behind_a_source(0, 13)
    sees = mask.table(whole, whole, CAUSAL)
    assert sees is not None
    past = behind_a_source(0, 5)
    for n in range(5, 13):
        new = behind_a_source(n, n + 1)
        past = follow(past, new, 1)
        assert mask.count(new, past, CAUSAL).item() == sees[0, 0, n].sum().item() == n + 1


def test_chunks_count_from_the_first_token_behind_a_source() -> None:
    seq = behind_a_source(0, 14, 5)
    (numbers, _) = mask.chunk_numbers(seq, seq, Visibility(True, chunk=3)) or (None, None)
    assert numbers is not None
    assert numbers[0, 5:].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("hidden", [*HIDDEN.values(), Visibility(False, 2)], ids=str)
@pytest.mark.parametrize("kind", FACTS)
def test_the_number_of_keys(kind: str, hidden: Visibility) -> None:
    seq = facts(kind, prefix=PREFIX)
    sees = mask.table(seq, seq, hidden)
    wanted = torch.full((1, 1, N, 1), N) if sees is None else sees.sum(-1, keepdim=True)
    assert torch.equal(mask.count(seq, seq, hidden).expand_as(wanted), wanted)
