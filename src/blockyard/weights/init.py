"""Initial weights: drawn from the seed, or taken from a run or a file; and the parts that are trained.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), section 3.2, fine-tuning; Hu et al. 2022 (arXiv 2106.09685), LoRA;
    Howard and Ruder 2018 (arXiv 1801.06146), gradual unfreezing
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from torch import nn

from blockyard.config.build import Components
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import allow_of
from blockyard.contracts import Count, Issue, Seed, Text
from blockyard.errors import UserError
from blockyard.model._part_names import is_in, unknown_part
from blockyard.model._unit_weights import UnitWeights
from blockyard.schedule._warmup import Length, check_length, to_steps
from blockyard.weights.lora import Lora, add_lora, added_parameters, linear_layers, tied_layer
from blockyard.weights.parts import HEAD, NEVER, Thaw, thaw
from blockyard.weights.sources import (
    Source,
    SourceFacts,
    facts,
    facts_of_run,
    find_source,
    fit_tokenizers,
    outline,
    read_weights,
    tokenizer_problems,
)
from blockyard.weights.transfer import UNKNOWN, Transfer, compare, load

NO_LORA = Lora()


def check_options(init: Init) -> None:
    """Raise ValueError for options that have no effect together, or exclude each other."""
    if (init.parent is None) != (init.parent_sha256 is None):
        raise ValueError(
            "init.parent and init.parent_sha256 go together; `blockyard train resume=RUN trainer.max_steps=N` sets them"
        )
    if init.name is None:
        options = {
            "which": init.which != "best",
            "parts": init.parts is not None,
            "strict": not init.strict,
            "sha256": init.sha256,
        }
        idle = [f"init.{name}" for name, is_given in (options | {"lora.rank": init.lora.rank}).items() if is_given]
        if idle:
            raise ValueError(f"{', '.join(idle)}: nothing is taken without init.from; name a run or a file there")
    if init.lora.rank and (init.freeze or init.unfreeze_at is not None):
        raise ValueError("init.lora.rank freezes all but its additions and the head; leave init.freeze out")
    if not init.lora.rank and init.lora != NO_LORA:
        raise ValueError("init.lora.alpha and init.lora.layers have no effect with init.lora.rank=0; set a rank")
    if init.unfreeze_at is not None and not init.freeze:
        raise ValueError(f"init.unfreeze_at={init.unfreeze_at}: nothing is frozen; name parts in init.freeze")
    if init.unfreeze_every is not None and init.unfreeze_at is None:
        raise ValueError("init.unfreeze_every counts from init.unfreeze_at, which is not set")
    if init.unfreeze_at is not None:
        check_length("init.unfreeze_at", init.unfreeze_at)


def issues(init: Init, components: Components, model: nn.Module, *, starts: bool) -> Iterator[Issue]:
    """Yield each option about the source, the parts and the layers that does not fit a model; see `Init.issues`."""
    for key, parts in (("parts", init.parts or ()), ("freeze", init.freeze)):
        problem = unknown_part(model, parts)
        if problem:
            yield Issue(f"init.{key}", problem)
            return
    shared = tied_layer(model, init.lora.layers) if init.lora.rank else None
    if init.lora.rank and not linear_layers(model, init.lora.layers):
        yield Issue("init.lora.layers", f"no linear layer of the model is in {', '.join(init.lora.layers)}")
    elif shared:
        yield Issue(
            "init.lora.layers",
            f"{shared} shares its weight with another module (head.tied=true), and an addition would untie them; leave "
            "it out, or use head.tied=false",
        )
    elif not init.lora.rank and not init.trained(model):
        yield Issue("init.freeze", "leaves nothing to train; leave out a part, such as head")
    trainer = components.node("trainer")
    if init.lora.rank and components.parametrization.scales:
        yield Issue(
            "init.lora.rank",
            "the parametrization has no rates of additions; use parametrization=standard, or train all weights",
        )
    if init.lora.rank and any(isinstance(module, UnitWeights) for module in model.modules()):
        yield Issue("init.lora.rank", "model.unit_weights keeps weights at length one, and not their additions")
    if init.lora.rank and trainer.sharded:
        yield Issue("init.lora.rank", "additions are not sharded; use trainer.strategy=ddp or one device")
    if init.unfreeze_at is not None and trainer.world > 1:
        yield Issue("init.unfreeze_at", "several processes agree at the start on what is trained; use one device")
    if isinstance(init.unfreeze_at, float) and trainer.max_seconds is not None:
        yield Issue(
            "init.unfreeze_at",
            f"{init.unfreeze_at} is a share of the steps, whose number is not known with trainer.max_seconds; use a "
            "number of steps",
        )
    if starts and init.name is not None:
        try:
            source = init.source(components)
            problems = list(init.source_problems(components, model, source))
            yield from (Issue("init.from", text) for text in problems)
            draws = problems or init.lora.rank or not init.transfer_from(components, model, source).is_complete
            if init.seed is not None and not draws:
                yield Issue("init.seed", f"init.from={init.name} has all weights, and none is drawn; leave it out")
        except UserError as error:
            yield Issue("init.from", bare_reason(error))


def bare_reason(error: UserError) -> str:
    """Return the message of an error about a source without the key, which the issue names."""
    return str(error).removeprefix("init.from: ").removeprefix("init.from=")


def check_hash(source: Source, expected: str | None, actual: str) -> None:
    """Raise UserError if the weights of a source differ from the hash in the config."""
    if expected not in (None, actual):
        raise UserError(
            f"init.from={source}: its weights are not those that the config names (sha256 {actual[:12]}..., expected "
            f"{str(expected)[:12]}...); restore them, or start anew without init.sha256"
        )


class Init:
    """Initial weights. Nothing is set: they depend on the seed and on the path in the model.

    Options:
        seed: seed of the weights that are drawn; null is the run's seed
        from: a finished run, a safetensors file, a folder of them, or hf:NAME or timm:NAME in the local cache, whose
            weights the run starts from
        which: the checkpoint of a run: best by validation, or last
        parts: parts of the model that are taken, by the dotted paths of its modules; null takes all, the head only from
            a run that predicts the same
        strict: refuse where a tensor of these parts is missing, has another shape or is not used; false leaves it
        freeze: parts that are not trained
        unfreeze_at: step from which they are trained, an int, or a share of the run, a float below 1
        unfreeze_every: steps from one layer to the next, from the output to the input; null trains all at unfreeze_at
        lora: trains a low-rank addition to linear layers, and the head, instead of the weights that were taken
        sha256: of the content of `from`; filled in, and refused where the weights are others
        parent: the run whose training goes on here; `blockyard train resume=RUN trainer.max_steps=N` fills it in
        parent_sha256: of the state in which the parent ended
    """

    # Not in a run's identity: `sha256` and `parent_sha256` identify the weights, wherever they lie.
    incidental: ClassVar[frozenset[str]] = frozenset({"from", "which", "strict", "parent"})

    def __init__(
        self,
        *,
        seed: Seed | None = None,
        from_: Text | None = None,
        which: Literal["best", "last"] = "best",
        parts: tuple[Text, ...] | None = None,
        strict: bool = True,
        freeze: tuple[Text, ...] = (),
        unfreeze_at: Length | None = None,
        unfreeze_every: Count | None = None,
        lora: Lora = NO_LORA,
        sha256: Text | None = None,
        parent: Text | None = None,
        parent_sha256: Text | None = None,
    ) -> None:
        self.seed = seed
        self.name, self.which, self.parts, self.strict = from_, which, parts, strict
        self.freeze, self.unfreeze_at, self.unfreeze_every = freeze, unfreeze_at, unfreeze_every
        self.lora, self.sha256 = lora, sha256
        self.parent, self.parent_sha256 = parent, parent_sha256
        check_options(self)

    @classmethod
    def resolved(cls, node: Node, outputs: str) -> Node:
        """Return the node with the path of its source and the hash of its weights, as a run's config keeps it.

        Raises UserError if the source cannot be read, or its weights differ from `sha256`.
        """
        if node.get("from") is None:
            return node
        source = find_source(str(node["from"]), which=str(node.get("which", "best")), outputs=outputs)
        actual = outline(source).sha256
        check_hash(source, node.get("sha256"), actual)
        return node | {"from": source.library or str(source.path), "sha256": actual}

    def issues(self, components: Components, model: nn.Module, *, starts: bool) -> Iterator[Issue]:
        """Yield each option about the source, the parts and the layers that does not fit a model.

        model: on the meta device, before `adapt`; starts: whether the run begins, so that it needs its source
        """
        return issues(self, components, model, starts=starts)

    def prepare_tokenizers(self, components: Components) -> None:
        """Give tokenizers the token ids of the source, before data is read. Raises UserError."""
        if self.name is not None and self._takes_tokens(components):
            fit_tokenizers(components, self.source(components))

    def adapt(self, model: nn.Module, seed: int) -> None:
        """Add LoRA's parameters, and freeze parameters that are never trained. Keeps all values of the model."""
        if self.lora.rank:
            add_lora(model, self.lora, seed)
        if self.unfreeze_at is None:
            trained = {id(parameter) for parameter in self.trained(model)}
            for parameter in model.parameters():
                parameter.requires_grad_(id(parameter) in trained)

    def thaw(self, model: nn.Module, total: int) -> Thaw:
        """Return the steps at which frozen parts are trained again, in a run of `total` steps.

        Raises UserError if a part would never be trained.
        """
        if self.unfreeze_at is None:
            return NEVER
        first = to_steps(self.unfreeze_at, total)
        schedule = thaw(model, self.freeze, first, self.unfreeze_every)
        last = max(step for step, _ in schedule.starts)
        if last >= total:
            raise UserError(
                f"init.unfreeze_at={self.unfreeze_at}: the last frozen layer would be trained from step {last} on, and "
                f"the run has {total}; lower init.unfreeze_at or init.unfreeze_every"
            )
        return schedule

    def transfer(self, components: Components, model: nn.Module) -> Transfer | None:
        """Return the transfer from the source; None if the weights are drawn. Raises UserError."""
        if self.name is None:
            return None
        return self.transfer_from(components, model, self.source(components))

    def load(self, components: Components, model: nn.Module) -> Transfer | None:
        """Copy the weights of the source into a model, and return the transfer. Raises UserError."""
        if self.name is None:
            return None
        source = self.source(components)
        weights = read_weights(source)
        check_hash(source, self.sha256, weights.sha256)
        transfer = self.transfer_from(components, model, source)
        problems = list(transfer.problems(self.parts, strict=self.strict))
        if problems:
            raise UserError(f"init.from={source}: {'; '.join(problems)}")
        source_facts = self._facts(components, source)
        load(
            model,
            weights.tensors,
            transfer,
            source_layout=UNKNOWN if source_facts is None else source_facts.layout,
            target_layout=facts(components).layout,
        )
        return transfer

    def _takes_tokens(self, components: Components) -> bool:
        """Return whether weights with a row for each token id are taken: of an embedder, a head, values or n-grams."""
        names = {"embedder", "encoder", "source", "ngrams"}
        if components.data.spec.target in (None, "symbols"):
            names |= {"head"}
        if _reads_ids(components.config):
            names |= {"blocks", "token_mixer"}
        # A pattern with a star may match any of them.
        return self.parts is None or any("*" in part or names & {*part.split(".")} for part in self.parts)

    def source(self, components: Components) -> Source:
        """Return the source of the weights. Raises UserError if it is missing."""
        return find_source(str(self.name), which=self.which, outputs=str(components.config.get("outputs") or "outputs"))

    def source_problems(self, components: Components, model: nn.Module, source: Source) -> Iterator[str]:
        """Yield the reasons why a model cannot take its weights, a sentence each. Raises UserError."""
        check_hash(source, self.sha256, outline(source).sha256)
        if self._takes_tokens(components):
            problems = list(tokenizer_problems(components, source))
            if problems:
                # Other tokenizers have other vocabularies, so that shapes would be refused for the same reason.
                yield from problems
                return
        yield from self.transfer_from(components, model, source).problems(self.parts, strict=self.strict)

    def transfer_from(self, components: Components, model: nn.Module, source: Source) -> Transfer:
        """Return the transfer from a source. Raises UserError."""
        source_facts, target_facts, stored = self._facts(components, source), facts(components), outline(source)
        return compare(
            model,
            stored.shapes,
            self.parts,
            head=source_facts is not None and source_facts.task == target_facts.task,
            source_layout=UNKNOWN if source_facts is None else source_facts.layout,
            target_layout=target_facts.layout,
            dtypes=stored.dtypes,
        )

    def _facts(self, components: Components, source: Source) -> SourceFacts | None:
        """Return the facts of a source that is a run; None for a file."""
        if source.run is None:
            return None
        return facts_of_run(source.run, allow_of(components.config))

    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that are trained at some step."""
        if self.unfreeze_at is not None:
            return list(model.parameters())
        if not self.lora.rank:
            return [parameter for name, parameter in model.named_parameters() if not is_in(name, self.freeze)]
        added = {id(parameter) for parameter in added_parameters(model)}
        trained = []
        for name, parameter in model.named_parameters():
            is_taken = self.parts is None or is_in(name, self.parts)
            # LoRA freezes the weights that were taken; the head is trained whole.
            if id(parameter) in added or is_in(name, [HEAD]) or not is_taken:
                trained.append(parameter)
        return trained


def _reads_ids(node: Any) -> bool:
    """Return whether any token mixer of a config adds vectors of the token ids to its values."""
    if not isinstance(node, dict):
        return False
    return node.get("value_embedding", "none") != "none" or any(map(_reads_ids, node.values()))
