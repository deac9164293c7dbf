"""Mixers side by side: each layer has several token mixers, such as attention and a recurrence, and adds their outputs.

Source: Dong et al. 2024, Hymba (arXiv 2411.13676), section 2.1, eq. 3, for join=normed; Falcon-LLM Team 2025, Falcon-H1
    (arXiv 2507.22448), section 2.1, for join=sum
Reference: transformers models/falcon_h1, FalconH1DecoderLayer
Equation: y = sum_i m_i(x); normed y = mean_i b_i * m_i(x) / rms(m_i(x)) with a trained gain b_i for each channel
Cost: that of the mixers together, and of their caches

    token_mixer=beside 'token_mixer.mixers=[attention,mamba2]' token_mixer.members.mamba2.state=16

    x --+--> attention --> norm --+--> y
        +--> mamba2 -----> norm --+

Names are choices of token_mixer, with their options under members, or config nodes of your own there. Each has its own
projections. All must support the requirements of the model. A position scheme acts in the mixers that have queries and
keys or scores; if none has, it is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import ChoiceOptions, Context, Memory, Role, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual_gain
from blockyard.token_mixer._checks import check_call, check_context
from blockyard.token_mixer.cycle import FROM_THE_CHOICES, Cycle, Member
from blockyard.weight_init import Init

EPS = 1e-6


class JoinedCache:
    """The caches of mixers side by side. Tokens are taken back by `snapshot`, since not every cache can be cropped."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    @property
    def kind(self) -> str:
        """The kinds of the parts, as text."""
        return " and ".join(dict.fromkeys(part.kind for part in self.parts if part.kind))

    @property
    def bytes(self) -> int:
        """The size of all parts."""
        return sum(part.bytes for part in self.parts)

    def snapshot(self) -> JoinedCache:
        """Return the caches as they are now. Raises ValueError naming one that cannot be taken back."""
        without = [type(part).__name__ for part in self.parts if not hasattr(part, "snapshot")]
        if without:
            raise ValueError(f"{without[0]} has no `snapshot`, so no token can be taken back from it")
        return JoinedCache([part.snapshot() for part in self.parts])

    def reorder(self, order: Tensor) -> None:
        """Make sequence i the former sequence order[i]. order: (B',) int64; it may repeat sequences and drop some."""
        for part in self.parts:
            part.reorder(order)


class Beside(TokenMixer):
    """Members give tensors to later layers as they do alone, unless two would give one under the same name.

    Options:
        mixers: names of token mixers
        members: the mixers by name; filled in from the choices of token_mixer
        join: sum adds the outputs; normed is the mean of the outputs after an RMS norm of each, with a trained gain
    """

    nested_choices: ClassVar[dict[str, tuple[str, str]]] = {"members": ("token_mixer", "mixers")}
    holds: ClassVar[bool] = True
    roles: ClassVar[dict[str, Role]] = {"gains": "vector"}
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"gains"})

    def __init__(
        self,
        ctx: Context,
        *,
        mixers: tuple[str, ...] = ("attention", "mamba2"),
        members: dict[str, Member] = FROM_THE_CHOICES,  # type: ignore[assignment]
        join: Literal["sum", "normed"] = "normed",
    ) -> None:
        super().__init__()
        self.traits = self.traits_for({"mixers": mixers, "members": members})
        check_context(self, ctx)
        # Behind gains of zero, members that start at zero too would never be trained.
        inner = replace(ctx, zero_branches=False) if join == "normed" else ctx
        self.members = nn.ModuleDict({name: members[name](inner) for name in mixers})
        built = [mixer for mixer in self.members.values() if isinstance(mixer, TokenMixer)]
        givers = Counter(name for mixer in built for name in mixer.gives)
        for mixer in built:
            # Two tensors of one name would overwrite each other on their way to later layers.
            alone = {name: shape for name, shape in mixer.gives.items() if givers[name] == 1}
            self.gives = {**self.gives, **alone}
            self.takes = self.takes | mixer.takes
            self.takes_placed = self.takes_placed | mixer.takes_placed
            self.must_be_taken = self.must_be_taken | mixer.must_be_taken
        self.first_gain = residual_gain(ctx)
        self.gains = nn.Parameter(torch.empty(len(mixers), ctx.dim)) if join == "normed" else None

    def init_weights(self, init: Init) -> None:
        """Set gains so that the branch starts as small as other branches of the stream."""
        init.constant("gains", self.first_gain)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the abilities that all members have, and the requirements and ports that any of them has."""
        members = [factory.func.traits_for(factory.keywords) for factory in _factories(options)]
        joined: dict[str, Any] = {"axes": frozenset.intersection(*(traits.axes for traits in members))}
        for name in ("ports", "gives", "takes"):
            joined[name] = frozenset().union(*(getattr(traits, name) for traits in members))
        for name in ("reads_features", "reads_pairs", "reads_ids"):
            joined[name] = any(getattr(traits, name) for traits in members)
        for field in fields(Traits):
            if field.name not in joined:  # an ability
                joined[field.name] = all(getattr(traits, field.name) for traits in members)
        return replace(Traits(**joined), cross=False)

    @classmethod
    def has(cls, method: str, options: ChoiceOptions) -> bool:
        """Return whether every member can decode from a cache. There is no `mix`: each has its own projections."""
        if method != "init_cache":
            return super().has(method, options)
        return all(factory.func.has(method, factory.keywords) for factory in _factories(options))

    def forward(self, x: Tensor, seq: Seq, cache: JoinedCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        caches = [None] * len(self.members) if cache is None else cache.parts
        outputs = [mixer(x, seq, part) for mixer, part in zip(self.members.values(), caches, strict=True)]
        if self.gains is not None:
            gains = self.gains / len(outputs)  # the mean of the members, so that their number does not matter
            outputs = [F.rms_norm(y, gain.shape, gain.to(y.dtype), EPS) for y, gain in zip(outputs, gains, strict=True)]
        return torch.stack(outputs).sum(0)  # (B, N, D)

    def init_cache(self, batch_size: int) -> JoinedCache:
        """Return the caches of all members. Raises ValueError naming one that cannot decode from a cache."""
        caches = []
        for name, mixer in self.members.items():
            make: Any = getattr(mixer, "init_cache", None)
            if make is None:
                raise ValueError(f"token_mixer {name} cannot decode from a cache; use another one beside the others")
            caches.append(make(batch_size))
        return JoinedCache(caches)

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Prepare every member."""
        for mixer in self.members.values():
            assert isinstance(mixer, TokenMixer)
            mixer.prepare(x, seq)


def _factories(options: ChoiceOptions) -> list[Any]:
    """Return the factories of the members in order. Raises ValueError if an entry or a member would have no effect."""
    names: tuple[str, ...] = tuple(options["mixers"])
    members: Mapping[str, Any] = options["members"]
    listed = f"token_mixer.mixers=[{','.join(names)}]"
    if len({*names}) < max(2, len(names)):
        raise ValueError(
            f"{listed}: side by side are at least two mixers of different names; write members of your own under "
            "token_mixer.members for two of a kind"
        )
    missing = [name for name in names if name not in members]
    if missing:
        raise ValueError(
            f"{listed} names {missing[0]}, which is neither a token mixer nor one of token_mixer.members; see "
            "`blockyard list token_mixer`"
        )
    unused = [name for name in members if name not in names]
    if unused:
        raise ValueError(f"token_mixer.members.{unused[0]} is not in {listed}; add it there, or remove it")
    nested = [name for name in names if issubclass(members[name].func, Cycle | Beside)]
    if nested:
        raise ValueError(f"{listed}: {nested[0]} holds mixers itself; write its members into the outer one")
    return [members[name] for name in names]
