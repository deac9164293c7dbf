"""QK and OV circuits: what a head's attention compares, and what it moves, both read off the weights.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (transformer-circuits.pub), the
    section on QK and OV circuits
Equation: QK_h = W_Q^T W_K / sqrt(K), OV_h = W_O W_V

Both are D x D and of rank K at most. What stands in front of a head and is linear up to one positive number a
token is folded in, and so is what its output goes through: the gain of a norm, a layer norm's taking off of
the mean, a scale. Left out: those numbers, biases, positions, and for rotations all distances but zero.

Where norms lie in the stream itself (post-norm), a head reads it as it is, and nothing is folded in. Keys and
values of cross-attention read another row, after the norm at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from blockyard.block.layer_scale import Scale
from blockyard.block.rezero import Gate
from blockyard.contracts import Batch
from blockyard.errors import UserError
from blockyard.inspect.block_context import Around, surroundings
from blockyard.inspect.recorded_calls import mixing_modules
from blockyard.inspect.samples import chosen, chosen_heads, title
from blockyard.norm.batch import Batch as BatchNorm
from blockyard.token_mixer.attention import Attention, HeadNorm
from blockyard.token_mixer.memory_attention import MemoryAttention
from blockyard.token_mixer.strict_attention import StrictAttention


@dataclass
class HeadCircuits:
    """One head in float64. q, k, v: (K, D) from the stream, norms folded in, q / sqrt(K); o: (D, K) into it.

    cross: k and v are from another row's vectors, of a space of their own
    """

    path: str
    head: int
    kv_head: int
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    cross: bool = False
    left_out: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The head in words."""
        return f"{title(self.path)} head {self.head}"

    @property
    def qk(self) -> Tensor:
        """(D, D): a query's vector on the left, a key's on the right."""
        return self.q.T @ self.k

    @property
    def ov(self) -> Tensor:
        """(D, D): from a token that is attended to, on the right, to what is added, on the left."""
        return self.o @ self.v


def circuits(
    model: nn.Module,
    batch: Batch,
    *,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
) -> list[HeadCircuits]:
    """Every head of every attention layer. `batch` is run once, to see what stands in front of each.

    Raises UserError where a chosen layer, or every layer, mixes tokens by something else.
    """
    mixers = mixing_modules(model, "mixer")
    wanted = chosen(mixers, layers)
    other = {path: type(mixers[path]).__name__ for path in wanted if not isinstance(mixers[path], Attention)}
    if other and (layers is not None or len(other) == len(wanted)):
        names = ", ".join(sorted(set(other.values())))
        raise UserError(f"circuits are of attention heads; {title(next(iter(other)))} mixes by {names}: try mixing")
    wanted = [path for path in wanted if path not in other]
    around = surroundings(model, {path: mixers[path] for path in wanted}, batch)
    found = []
    for path in wanted:
        found += _heads(path, mixers[path], around[path], heads, model)
    return found


def folded(module: nn.Module | None) -> tuple[Tensor | None, list[str]]:
    """What a norm or a scale does but for one positive number a token, (D, D), and what of it is left out.

    None where there is nothing to fold.
    """
    if module is None or isinstance(module, nn.Identity):
        return None, []
    name = type(module).__name__
    weight = getattr(module, "weight", None)
    gain = None if weight is None else weight.detach().double().cpu()
    said = [f"the bias of {name}"] if getattr(module, "bias", None) is not None else []
    if isinstance(module, Scale | Gate):
        assert gain is not None
        return torch.diag(gain) if gain.numel() > 1 else gain, said
    if isinstance(module, BatchNorm):
        assert gain is not None
        return torch.diag(gain / (module.running_var.double().cpu() + module.eps).sqrt()), said
    if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return None, [f"{name}, which is not folded in"]
    matrix = torch.diag(torch.ones(module.normalized_shape[-1]).double() if gain is None else gain)
    if isinstance(module, nn.LayerNorm):
        matrix = matrix - matrix.mean(1, keepdim=True)  # gain after the mean is taken off
    return matrix, [f"the size that {name} divides each token by", *said]


def _heads(
    path: str, mixer: Attention, around: Around, heads: tuple[int, ...] | None, model: nn.Module
) -> list[HeadCircuits]:
    q, k, v = mixer.proj_in.weight.detach().double().cpu().split(mixer.widths)
    out = mixer.proj_out.weight.detach().double().cpu()  # (D, H values or output)
    if isinstance(mixer.join, nn.Linear):
        out = out @ mixer.join.weight.detach().double().cpu()  # (D, H values)
    fold, said = folded(around.before)
    if fold is not None:
        q = q @ fold
        k, v = (k, v) if around.cross else (k @ fold, v @ fold)
    if around.in_stream:
        said.append("the norms in the stream: a head reads it after them")
    if around.cross:
        norm = "" if around.last is None else f", after {type(around.last).__name__}, which is not folded in"
        said.append(f"what makes the other row's vectors: keys and values read it as it ends{norm}")
    for module in around.after:
        fold, more = folded(module)
        said += more
        out = out if fold is None else fold * out if fold.ndim == 1 else fold @ out
    said += _also_left_out(mixer, model, cross=around.cross)
    q, k = q.unflatten(0, (mixer.heads, -1)), k.unflatten(0, (mixer.kv_heads, -1))  # (H, K, D), (H', K, D)
    v, out = v.unflatten(0, (mixer.kv_heads, -1)), out.unflatten(1, (mixer.heads, -1))
    q, k = _gain(mixer.q_norm) * q * mixer.head_dim**-0.5, _gain(mixer.k_norm) * k
    found = []
    for head in chosen_heads(mixer.heads, heads):
        group = head // (mixer.heads // mixer.kv_heads)
        found.append(HeadCircuits(path, head, group, q[head], k[group], v[group], out[:, head], around.cross, said))
    return found


def _gain(norm: nn.Module) -> Tensor | float:
    """The gain (K, 1) of a norm on queries or keys."""
    return norm.weight.detach().double().cpu()[:, None] if isinstance(norm, HeadNorm) else 1.0


def _also_left_out(mixer: Attention, model: nn.Module, *, cross: bool) -> list[str]:
    said = []
    if isinstance(mixer, MemoryAttention):
        said.append("trained keys and values")
    if isinstance(mixer, StrictAttention) and mixer.question is not None:
        said.append("the trained vector that asks for every token: QK is that of a token that asks for itself")
    if mixer.proj_in.bias is not None:
        said.append("biases of the projections")
    if isinstance(mixer.q_norm, HeadNorm):
        said.append("the size that the q/k norm divides by (its gain is folded in)")
    acts = frozenset() if cross else getattr(getattr(model, "position", None), "acts_on", frozenset())
    if "rotate" in acts:
        said.append("rotation: QK is that of two tokens at one place")
    if "bias" in acts:
        said.append("the position bias on the scores")
    return said
