"""QK and OV circuits: what a head's attention compares, and what it moves, both read off the weights.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (transformer-circuits.pub), the
    sections on QK and OV circuits and on detecting copying behaviour by eigenvalues
Equation: QK_h = W_Q^T W_K / sqrt(K), OV_h = W_O W_V; copying score = sum of eigenvalues / sum of their sizes

Both are D x D and of rank K at most: spectra are worked out from K x K matrices with the same non-zero
eigenvalues and singular values. What stands in front of a head and is linear up to one positive number a
token is folded in: the gain of a norm, and a layer norm's taking off of the mean. Left out: those numbers,
biases, positions, and for rotations all distances but zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Block
from blockyard.errors import UserError
from blockyard.inspect.subject import chosen, chosen_heads, title
from blockyard.token_mixer.attention import Attention, HeadNorm


@dataclass
class HeadCircuits:
    """One head in float64. q, k, v: (K, D) from the stream, norms folded in, q / sqrt(K); o: (D, K) into it."""

    path: str
    head: int
    kv_head: int
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
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


@dataclass
class Spectrum:
    """Of a product left @ right of rank K: singular values (K,), falling; eigenvalues (K,) complex, by size."""

    singular: Tensor
    eigenvalues: Tensor

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        return float(self.singular.norm())

    @property
    def positive(self) -> float:
        """Sum of the eigenvalues over the sum of their sizes: 1 all positive, -1 all negative."""
        size = self.eigenvalues.abs().sum()
        return float(self.eigenvalues.sum().real / size) if size > 0 else 0.0

    @property
    def rank(self) -> float:
        """How many directions take part: (sum s^2)^2 / sum s^4 over singular values s."""
        power = self.singular.square()
        return float(power.sum().square() / power.square().sum().clamp_min(1e-300))


def spectrum(left: Tensor, right: Tensor) -> Spectrum:
    """The spectrum of left (D, K) @ right (K, D'); eigenvalues where D = D', else none."""
    inner = torch.linalg.qr(left, "r").R @ torch.linalg.qr(right.T, "r").R.T  # (K, K), or smaller where D < K
    singular = torch.linalg.svdvals(inner)
    values = torch.empty(0, dtype=torch.complex128)
    if left.shape[0] == right.shape[1]:
        small = right @ left if left.shape[0] >= left.shape[1] else left @ right
        values = torch.linalg.eigvals(small)
        values = values[values.abs().argsort(descending=True)]
    return Spectrum(singular, values)


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
    from blockyard.inspect.mixing import _modules

    mixers = _modules(model, "mixer")
    wanted = chosen(mixers, layers)
    other = {path: type(mixers[path]).__name__ for path in wanted if not isinstance(mixers[path], Attention)}
    if other and (layers is not None or len(other) == len(wanted)):
        names = ", ".join(sorted(set(other.values())))
        raise UserError(f"circuits are of attention heads; {title(next(iter(other)))} mixes by {names}: try mixing")
    wanted = [path for path in wanted if path not in other]
    before, after = _neighbours(model, {path: mixers[path] for path in wanted}, batch)
    found = []
    for path in wanted:
        fold, said = folded(before.get(path))
        said += [f"{name} after the head" for name in after.get(path, [])]
        found += _heads(path, mixers[path], fold, said, heads, model)
    return found


def folded(norm: nn.Module | None) -> tuple[Tensor | None, list[str]]:
    """What a norm does but for one positive number a token, (D, D), and what of it is left out.

    None where there is nothing to fold.
    """
    if norm is None or isinstance(norm, nn.Identity):
        return None, []
    name = type(norm).__name__
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None, [f"the norm {name}, which is not folded in"]
    width = norm.normalized_shape[-1]
    gain = torch.ones(width) if norm.weight is None else norm.weight.detach()
    matrix = torch.diag(gain.double().cpu())
    said = [f"the size that {name} divides each token by"]
    if isinstance(norm, nn.LayerNorm):
        matrix = matrix - matrix.mean(1, keepdim=True)  # gain after the mean is taken off
        if norm.bias is not None:
            said.append(f"the bias of {name}")
    return matrix, said


def _heads(
    path: str, mixer: Attention, fold: Tensor | None, said: list[str], heads: tuple[int, ...] | None, model: nn.Module
) -> list[HeadCircuits]:
    weight = mixer.proj_in.weight.detach().double().cpu()
    q, k, v = weight.split(mixer.widths)
    if fold is not None:
        q, k, v = q @ fold, k @ fold, v @ fold
    width, values = mixer.head_dim, mixer.value_dim
    said = [*said, *_also_left_out(mixer, model)]
    q_gain, k_gain = (_gain(norm) for norm in (mixer.q_norm, mixer.k_norm))
    out = mixer.proj_out.weight.detach().double().cpu()  # (D, H K)
    found = []
    for head in chosen_heads(mixer.heads, heads):
        group = head // (mixer.heads // mixer.kv_heads)
        found.append(
            HeadCircuits(
                path=path,
                head=head,
                kv_head=group,
                q=q_gain * q[head * width : (head + 1) * width] * width**-0.5,
                k=k_gain * k[group * width : (group + 1) * width],
                v=v[group * values : (group + 1) * values],
                o=out[:, head * values : (head + 1) * values],
                left_out=said,
            )
        )
    return found


def _gain(norm: nn.Module) -> Tensor | float:
    """The gain (K, 1) of a norm on queries or keys."""
    return norm.weight.detach().double().cpu()[:, None] if isinstance(norm, HeadNorm) else 1.0


def _also_left_out(mixer: Attention, model: nn.Module) -> list[str]:
    said = []
    if mixer.proj_in.bias is not None:
        said.append("biases of the projections")
    if isinstance(mixer.q_norm, HeadNorm):
        said.append("the size that the q/k norm divides by (its gain is folded in)")
    acts = getattr(getattr(model, "position", None), "acts_on", frozenset())
    if "rotate" in acts:
        said.append("rotation: QK is that of two tokens at one place")
    if "bias" in acts:
        said.append("the position bias on the scores")
    return said


def _neighbours(
    model: nn.Module, mixers: dict[str, nn.Module], batch: Batch
) -> tuple[dict[str, nn.Module], dict[str, list[str]]]:
    """What module made each mixer's input, and which ones but plain branches took its output, in one forward pass."""
    from blockyard.block._base import Branch
    from blockyard.inspect.mixing import _unfused

    made: dict[int, tuple[nn.Module, str]] = {}
    paths = {module: path for path, module in model.named_modules()}
    outputs: dict[int, str] = {}
    before: dict[str, nn.Module] = {}
    after: dict[str, list[str]] = {}
    kept = []  # tensors stay alive, so that no address is used twice
    names = {module: path for path, module in mixers.items()}

    def enters(module: nn.Module, arguments: tuple[object, ...]) -> None:
        x = next((a for a in arguments if isinstance(a, Tensor)), None)
        if x is None:
            return
        if module in names and id(x) in made:
            norm, path = made[id(x)]
            if path.startswith(names[module].rpartition(".")[0] + "."):  # what a block before made is the stream
                before[names[module]] = norm
        if id(x) in outputs and not isinstance(module, Branch | Block | nn.Dropout | nn.Identity):
            after.setdefault(outputs[id(x)], []).append(type(module).__name__)

    def leaves(module: nn.Module, arguments: tuple[object, ...], y: object) -> None:
        if not isinstance(y, Tensor):
            return
        kept.append(y)
        if module in names:
            outputs[id(y)] = names[module]
        elif isinstance(module, Branch | nn.Dropout) and arguments and id(arguments[0]) in outputs:
            outputs[id(y)] = outputs[id(arguments[0])]  # handed on as it is
        elif not isinstance(module, Block):
            made[id(y)] = (module, paths[module])

    handles = [m.register_forward_pre_hook(enters) for m in model.modules()]
    handles += [m.register_forward_hook(leaves) for m in model.modules()]
    training = model.training
    model.eval()
    try:
        with _unfused(model), torch.no_grad():
            model(**batch.arguments())
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return before, after
