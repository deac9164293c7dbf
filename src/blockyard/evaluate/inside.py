"""Numbers from inside a model over a split, by which runs can be judged.

    outliers   the share of tokens whose norm after the last block is more than twice the median
    asked      of the attention on a source's patches, the share on those that a question asks for: the mean over heads,
               layers and the questions that ask for a part

Source: Darcet et al. 2024, Vision Transformers Need Registers (arXiv 2309.16588), section 2.1: a few tokens of large
    norm carry facts of the whole image, and with registers they are gone; Torralba, Isola and Freeman 2024,
    Foundations of Computer Vision, section 26.6: an answer's token attends to the patches of the object in question
Equation: asked = sum_{j in the region} w_j / sum_{j of the source} w_j, where w are the attention weights of the class
    token, of the last token in a causal model without one, and otherwise the mean over all tokens

`blockyard inspect norms` and `blockyard inspect attention` show the same of a few samples, with figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import AsksForPart, Batch, Context, Objective, Seq, Split
from blockyard.data.splits.order import EvalOrder, take
from blockyard.ops import maps

DIRECTIONS: dict[str, str] = {"outliers": "min", "asked": "max"}
FACTOR = 2.0  # times the median from which on a norm stands out; Darcet et al. read theirs off a histogram


def inside(
    model: nn.Module,
    split: Split,
    objective: Objective,
    names: Sequence[str],
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
    limit: int | None = None,
    halt: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Return every measure of `names` over a split, in float32. The model is left in the mode that it was in.

    limit: batches to look at, or None for all
    halt: called before each batch; raises to interrupt the measurement

    Raises ValueError for a model or a split that has nothing to measure.
    """
    kinds: dict[str, type[_Outliers | _Asked]] = {"outliers": _Outliers, "asked": _Asked}
    measures = {name: kinds[name](model, split) for name in names}
    order = EvalOrder(split, batch_size)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for step in range(len(order))[: limit or None]:
                if halt is not None:
                    halt()
                samples = order(step)
                batch = objective.ready(take(split, samples, None).to(device), None)
                for measure in measures.values():
                    measure.update(batch, samples)
    finally:
        model.train(training)
    return {name: measure.value() for name, measure in measures.items()}


class _Outliers:
    """Counts the tokens that stand out after the last block."""

    def __init__(self, model: nn.Module, split: Split) -> None:
        self.model = model
        self.norms: list[Tensor] = []

    def update(self, batch: Batch, samples: Tensor) -> None:
        """Keep the norms of a batch."""
        by_name, real, prefix = token_norms(self.model, batch)
        last = next(reversed(by_name.values()))
        self.norms.append(last[:, prefix:][real[:, prefix:]].cpu())

    def value(self) -> float:
        """Return the share over all tokens."""
        return outlier_share(torch.cat(self.norms))


class _Asked:
    """Averages the attention on the parts of images that questions ask for."""

    def __init__(self, model: nn.Module, split: Split) -> None:
        if not isinstance(split, AsksForPart):
            raise ValueError(f"asked: {type(split).__name__} does not implement `AsksForPart`")
        self.model, self.split = model, split
        self.shares: list[Tensor] = []

    def update(self, batch: Batch, samples: Tensor) -> None:
        """Add the shares of the questions of a batch that ask for a part, in every layer that reads the source."""
        region = self.split.region(samples.cpu()).to(batch.inputs.device)  # (B, height, width)
        asks = region.flatten(1).any(1)
        calls = [(call, source_keys(self.model, call)) for call in maps.attention(self.model, batch)]
        if all(patch_keys is None for _, patch_keys in calls):
            raise ValueError("asked: this model does not attend to the patches of a source")
        for call, patch_keys in calls:
            if patch_keys is None:
                continue
            start, count, grid = patch_keys
            weights = _of_query(self.model, call)[asks, :, start : start + count]  # (b, H, M)
            patches = region_patches(self._padded(region[asks]), grid)  # (b, M)
            self.shares.append(region_share(weights, patches).flatten().cpu())

    def _padded(self, region: Tensor) -> Tensor:
        """Return the region with the pixels that the tokenizer of the source adds."""
        assert isinstance(self.model.ctx, Context)
        return F.pad(region, self.model.ctx.source_tokens.padding or (0, 0, 0, 0))

    def value(self) -> float:
        """Return the mean over all questions, layers and heads; NaN where no question asks for a part."""
        return float(torch.cat(self.shares).mean())


def token_norms(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], Tensor, int]:
    """Return the norms of a model's tokens before the first block (`stream`) and after each (`block.0`, ...).

    The result has the norms (B, P + N) by name, a mask (B, P + N) that is False at padding, and the number P of class
    and register tokens.

    Raises ValueError for a model whose blocks do not run over its tokens, and for one of several streams.
    """
    record = model.steps(batch)  # type: ignore[operator]  # every model of ours names its intermediates
    seq = record.get("seq")
    names = [name for name in record if name == "stream" or name.startswith("block.")]
    # The blocks of a perceiver have no `stream`: they run over latents, which may be as many as the tokens.
    if not isinstance(seq, Seq) or "stream" not in names or any(record[name].shape[1] != len(seq) for name in names):
        raise ValueError("the blocks of this model do not run over its tokens; use an encoder or a decoder")
    norms = {name: record[name].norm(dim=-1) for name in names}
    real = torch.ones_like(norms[names[0]], dtype=torch.bool) if seq.valid is None else seq.valid
    return norms, real, seq.num_prefix


def outlier_share(norms: Tensor) -> float:
    """Return the share of norms (n,) that are more than FACTOR times their median."""
    return float((norms > FACTOR * norms.median()).float().mean())


def source_keys(model: nn.Module, call: maps.Seen) -> tuple[int, int, tuple[int, ...]] | None:
    """Return the first key of a call that is a patch of the source, the number of patches, and their layout.

    Patches are all keys of cross attention, or stand in front of a sequence, behind its class and register tokens.
    None where no key is one.
    """
    ctx = getattr(model, "ctx", None)
    if not isinstance(ctx, Context) or ctx.data.source is None or len(ctx.source_tokens.grid) != 2:
        return None
    tokens, slots = ctx.source_tokens, trained_slots(call)
    if call.k_seq is not call.seq and not slots:
        return 0, tokens.max_len, tokens.grid
    learned = len(getattr(model, "prefix_options", ()))
    if call.seq.num_prefix != learned + tokens.max_len:
        return None  # an encoder of the source
    return slots + learned, tokens.max_len, tokens.grid


def trained_slots(call: maps.Seen) -> int:
    """Return the number of trained keys in front of the keys of the sequence. They belong to no token."""
    extra = len(call.k_seq) - len(call.seq)
    # In cross attention too there are more keys than queries, but not all of the surplus is prefix.
    if extra > 0 and call.k_seq.num_prefix - call.seq.num_prefix == extra:
        return extra
    return 0


def region_patches(region: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the patches of a grid that hold a pixel of a region: (..., height, width) bool -> (..., M) bool."""
    pooled = F.adaptive_max_pool2d(region.float().unflatten(0, (-1, 1)), (grid[0], grid[1]))
    return pooled.flatten(1) > 0


def region_share(weights: Tensor, patches: Tensor) -> Tensor:
    """Return the share of each head's attention on the source that is on `patches`.

    weights: (B, H, M), of one query over the patches of the source; patches: (B, M) bool -> (B, H)
    """
    on_source = weights.sum(-1).clamp_min(torch.finfo(weights.dtype).tiny)
    return (weights * patches[:, None]).sum(-1) / on_source


def _of_query(model: nn.Module, call: maps.Seen) -> Tensor:
    """Return the weights (B, H, M) of the class token, else of a causal model's last token, else the tokens' mean."""
    weights, valid = call.weights(), call.seq.valid  # (B, H, N, M), (B, N)
    if call.seq.num_prefix and has_class_token(model):
        return weights[:, :, 0]
    if valid is None:
        if call.causal:
            return weights[:, :, -1]
        return weights.mean(2)
    if call.causal:
        last = valid.sum(1) - 1  # (B,)
        return weights[torch.arange(len(last), device=last.device), :, last]
    real = valid[:, None, :, None]
    return (weights * real).sum(2) / real.sum(2)


def has_class_token(model: nn.Module) -> bool:
    """Return whether the first token of the model's prefix is a class token."""
    options = getattr(model, "prefix_options", None)
    return options is not None and bool(options.class_token)
