"""QK and OV circuits, computed from the weights: what a head's attention compares, and what it moves.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (transformer-circuits.pub), the
    section on QK and OV circuits
Equation: QK_h = W_Q^T W_K / sqrt(K), OV_h = W_O W_V

Both are D x D and of rank K at most. Modules before a head that are linear up to one positive factor a token are
folded in, and so are those that its output passes: the gain of a norm, the centering of a layer norm, a scale. Left
out: those factors, biases, positions, and for rotations all distances but zero.

Where norms lie in the stream itself (post-norm), a head reads the stream as it is, and nothing is folded in. Keys and
values of cross-attention read another sequence, after the norm at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from blockyard.block.layer_scale import Scale
from blockyard.block.rezero import Gate
from blockyard.contracts import Batch
from blockyard.errors import UserError
from blockyard.inspect.block_context import MixerContext, mixer_contexts
from blockyard.inspect.labels import layer_name
from blockyard.inspect.recorded_calls import mixing_modules
from blockyard.inspect.samples import select_heads, select_layers
from blockyard.norm.batch import Batch as BatchNorm
from blockyard.token_mixer.attention import Attention, HeadNorm
from blockyard.token_mixer.memory_attention import MemoryAttention
from blockyard.token_mixer.strict_attention import StrictAttention


@dataclass
class HeadCircuits:
    """One head in float64.

    q, k, v: (K, D), from the stream, with norms folded in and q / sqrt(K); o: (D, K), into the stream
    cross: k and v read another sequence, whose vectors are of a space of their own
    left_out: descriptions of what the circuits do not contain
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
        """The readable name of the head."""
        return f"{layer_name(self.path)} head {self.head}"

    @property
    def qk(self) -> Tensor:
        """(D, D): a query's vector on the left, a key's on the right."""
        return self.q.T @ self.k

    @property
    def ov(self) -> Tensor:
        """(D, D): from the vector of an attended token, on the right, to what is added to the stream, on the left."""
        return self.o @ self.v


def head_circuits(
    model: nn.Module,
    batch: Batch,
    *,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
) -> list[HeadCircuits]:
    """Returns every head of every attention layer. `batch` is run once, to find the norms before each mixer.

    Raises UserError where a selected layer, or every layer, has another token mixer than attention.
    """
    mixers = mixing_modules(model, "mixer")
    paths = select_layers(mixers, layers)
    other = {path: type(mixers[path]).__name__ for path in paths if not isinstance(mixers[path], Attention)}
    if other and (layers is not None or len(other) == len(paths)):
        names = ", ".join(sorted(set(other.values())))
        raise UserError(
            f"circuits need attention; the token mixer of {layer_name(next(iter(other)))} is {names}. "
            "`blockyard inspect mixing` works for any mixer"
        )
    paths = [path for path in paths if path not in other]
    contexts = mixer_contexts(model, {path: mixers[path] for path in paths}, batch)
    return [head for path in paths for head in _heads(path, mixers[path], contexts[path], heads, model)]


def fold_weights(module: nn.Module | None) -> tuple[Tensor | None, list[str]]:
    """Returns the linear part (D, D) of a norm or scale, and descriptions of what it leaves out.

    A norm is linear up to one positive factor a token. None where there is nothing to fold in.
    """
    if module is None or isinstance(module, nn.Identity):
        return None, []
    name = type(module).__name__
    weight = getattr(module, "weight", None)
    gain = None if weight is None else weight.detach().double().cpu()
    left_out = [f"the bias of {name}"] if getattr(module, "bias", None) is not None else []
    if isinstance(module, Scale | Gate):
        assert gain is not None
        return torch.diag(gain) if gain.numel() > 1 else gain, left_out
    if isinstance(module, BatchNorm):
        assert gain is not None
        return torch.diag(gain / (module.running_var.double().cpu() + module.eps).sqrt()), left_out
    if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return None, [f"{name}, which is not folded in"]
    matrix = torch.diag(torch.ones(module.normalized_shape[-1]).double() if gain is None else gain)
    if isinstance(module, nn.LayerNorm):
        matrix = matrix - matrix.mean(1, keepdim=True)  # the gain after centering
    return matrix, [f"the factor by which {name} divides each token", *left_out]


def _heads(
    path: str, mixer: Attention, context: MixerContext, heads: tuple[int, ...] | None, model: nn.Module
) -> list[HeadCircuits]:
    q, k, v = mixer.proj_in.weight.detach().double().cpu().split(mixer.widths)
    out = mixer.proj_out.weight.detach().double().cpu()  # (D, H values or output)
    if isinstance(mixer.join, nn.Linear):
        out = out @ mixer.join.weight.detach().double().cpu()  # (D, H values)
    fold, left_out = fold_weights(context.before)
    if fold is not None:
        q = q @ fold
        k, v = (k, v) if context.cross else (k @ fold, v @ fold)
    left_out += _left_out_of_context(context)
    for module in context.after:
        fold, more = fold_weights(module)
        left_out += more
        out = out if fold is None else fold * out if fold.ndim == 1 else fold @ out
    left_out += _left_out_of_mixer(mixer, model, cross=context.cross)
    q, k = q.unflatten(0, (mixer.heads, -1)), k.unflatten(0, (mixer.kv_heads, -1))  # (H, K, D), (H', K, D)
    v, out = v.unflatten(0, (mixer.kv_heads, -1)), out.unflatten(1, (mixer.heads, -1))
    q, k = _gain(mixer.q_norm) * q * mixer.head_dim**-0.5, _gain(mixer.k_norm) * k
    circuits = []
    for head in select_heads(mixer.heads, heads):
        group = head // (mixer.heads // mixer.kv_heads)
        circuits.append(
            HeadCircuits(path, head, group, q[head], k[group], v[group], out[:, head], context.cross, left_out)
        )
    return circuits


def _gain(norm: nn.Module) -> Tensor | float:
    """Returns the gain (K, 1) of a norm on queries or keys."""
    return norm.weight.detach().double().cpu()[:, None] if isinstance(norm, HeadNorm) else 1.0


def _left_out_of_context(context: MixerContext) -> list[str]:
    left_out = []
    if context.in_stream:
        left_out.append("the norms in the stream: a head reads it after them")
    if context.cross:
        norm = context.memory_norm
        after = "" if norm is None else f", after {type(norm).__name__}, which is not folded in"
        left_out.append(f"the layers of the other sequence: keys and values read its final vectors{after}")
    return left_out


def _left_out_of_mixer(mixer: Attention, model: nn.Module, *, cross: bool) -> list[str]:
    left_out = []
    if isinstance(mixer, MemoryAttention):
        left_out.append("trained keys and values")
    if isinstance(mixer, StrictAttention) and mixer.question is not None:
        left_out.append("the trained query vector shared by all tokens: QK uses each token's own vector as its query")
    if mixer.proj_in.bias is not None:
        left_out.append("biases of the projections")
    if isinstance(mixer.q_norm, HeadNorm):
        left_out.append("the factor by which the q/k norm divides (its gain is folded in)")
    acts_on: frozenset[str] = (
        frozenset() if cross else getattr(getattr(model, "position", None), "acts_on", frozenset())
    )
    if "rotate" in acts_on:
        left_out.append("rotation: QK is that of two tokens at the same position")
    if acts_on & {"bias", "relate"}:
        left_out.append("the position bias on the scores")
    return left_out
