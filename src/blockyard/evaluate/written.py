"""The texts that a model writes for every source of a split, scored against the split's targets.

source      Saturday, November 21, 2026     written token by token, without the target: greedy or by beam search
reference   21. November 2026
written     21. November 2025               exact 0, a CER of 1 edit over 17 characters

Where codes of images or sounds are written, a judge of the data reads the outputs (`ReadsOutputs`), and its readings
are scored. They are drawn one by one at a temperature of 1, sample i of the split with seed i: of many right outputs
the most likely one is no sample.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blockyard.atomic_files import write_text
from blockyard.contracts import (
    Batch,
    CodeTokenizer,
    Memory,
    Model,
    ReadsOutputs,
    Split,
    TextPairs,
    TextTokenizer,
    Transcriber,
)
from blockyard.contracts.objective import source_as_input
from blockyard.data.splits.order import eval_indices, eval_steps
from blockyard.generate.beam_search import beam_search_batch
from blockyard.generate.codes import outputs_of, write_codes
from blockyard.generate.decode import collected, decode_batch
from blockyard.generate.judge import heard_by
from blockyard.generate.sampling import Sampler
from blockyard.generate.stats import Stats
from blockyard.generate.transcribe import transcribed
from blockyard.objective._baselines import judged
from blockyard.objective._text_scores import DIRECTIONS, scores
from blockyard.ops.autocast import autocast
from blockyard.runs.lock import exclusive
from blockyard.runs.metric_name import MetricName
from blockyard.runs.result_files import is_own, result_stem

if TYPE_CHECKING:
    from blockyard.runs.load import Loaded


SHOWN = 12  # outputs that are kept to be drawn or played


@dataclass(frozen=True)
class Written:
    """The texts of one split and their scores.

    part: "test", "val" or "train"; beam: hypotheses of a beam search; None is greedy decoding, or of codes a sample
    length_penalty: the power of the length by which their log probabilities are divided
    scores: by the names of `DIRECTIONS` over all texts, as fractions: 1 is 100 %; where a judge reads outputs, exact
        and the judge's scores, and the same of the true outputs (@truth) and of their codes (@codes)
    texts: (source, reference, written) of each sample; whole: whether it is every sample of the split
    outputs: (true, written) of the first samples, where they are no texts
    """

    part: str
    beam: int | None
    scores: dict[str, float]
    texts: list[tuple[str, str, str]]
    whole: bool = True
    outputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    length_penalty: float = 1.0

    @property
    def searched(self) -> str:
        """The beam search that wrote, "" for none: "beam4" with the power 1, "beam4_length0.5" with another."""
        if self.beam is None:
            return ""
        if self.length_penalty == 1:
            return f"beam{self.beam}"
        return f"beam{self.beam}_length{self.length_penalty:g}"

    def metrics(self) -> dict[str, float]:
        """Return every score by its full name: "test/written_bleu", or "test/written_bleu@beam4"."""
        return {self.name(score): value for score, value in self.scores.items()}

    def directions(self) -> dict[str, str]:
        """Return "min" or "max" for each of `metrics`, whichever is better."""
        return {self.name(score): DIRECTIONS.get(MetricName.parse(score).name, "max") for score in self.scores}

    def of_baselines(self, baselines: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
        """Return the same scores of a run's baselines: name -> "test/written_bleu" -> value.

        baselines: of the run's summary, which holds them for the test split
        """
        if self.part != "test" or not self.whole:
            return {}
        by_name: dict[str, dict[str, float]] = {}
        for name, values in baselines.items():
            for score in self.scores:
                value = values.get(f"written_{score}")
                if value is not None:
                    by_name.setdefault(name, {})[f"test/written_{score}"] = value
        return by_name

    def name(self, score: str) -> str:
        """Return the full name of a score."""
        if "@" in score or not self.searched:  # "@truth" is of no search
            return f"{self.part}/written_{score}"
        return f"{self.part}/written_{score}@{self.searched}"


def write_split(
    model: Model,
    split: Split,
    tokenizer: TextTokenizer | CodeTokenizer,
    *,
    part: str,
    batch_size: int,
    beam: int | None = None,
    length_penalty: float = 1.0,
    objective: Transcriber | None = None,
    device: torch.device | str = "cpu",
    precision: str = "32",
    limit: int | None = None,
    halt: Callable[[], None] | None = None,
) -> Written:
    """Write the target of every source and score the texts.

    split: `TextPairs`, or for a tokenizer of codes `ReadsOutputs`
    length_penalty: of a beam search over tokens, as in `generate`
    objective: one that writes all tokens together; None decodes token by token
    limit: batches to write, or None for all
    halt: called before each batch; an exception of it ends the writing
    """
    device = torch.device(device)
    steps = eval_steps(len(split), batch_size)
    if limit:
        steps = min(steps, limit)
    pairs: list[tuple[str, str]] = []
    written: list[str] = []
    judging = _Judging(split, tokenizer) if isinstance(tokenizer, CodeTokenizer) else None
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), autocast(device, precision):
            for step in range(steps):
                if halt is not None:
                    halt()
                order = eval_indices(step, num_samples=len(split), batch_size=batch_size)
                batch = split.batch(order, None).to(device)
                assert isinstance(split, TextPairs | ReadsOutputs)
                pairs += [split.pairs[i] for i in order.tolist()]
                if judging is not None:
                    written += judging.read(model, batch, order, beam, length_penalty)
                    continue
                assert isinstance(tokenizer, TextTokenizer)
                if objective is None:
                    token_ids = decoded(model, batch, beam, length_penalty)
                else:
                    token_ids = transcribed(model, objective, source_as_input(batch), beam)
                written += [tokenizer.decode(sequence) for sequence in token_ids]
    finally:
        model.train(training)
    references = [reference for _, reference in pairs]
    texts = [(*pair, text) for pair, text in zip(pairs, written, strict=True)]
    return Written(
        part=part,
        beam=beam,
        scores=scores(written, references) if judging is None else judging.scores(written, references),
        texts=texts,
        whole=len(texts) == len(split),
        outputs=[] if judging is None else judging.shown,
        length_penalty=length_penalty,
    )


class HeardSplit:
    """A split of sounds that are to be written from texts, with another run that transcribes the written sounds.

    split: of `data.writes=sound`; hears: a run that `generate.judge.check_hears` has passed
    """

    def __init__(self, split: Any, hears: Loaded) -> None:
        self.split, self.hears = split, hears
        self.pairs = [(text, text) for text in split.texts]

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the samples of the split."""
        return self.split.batch(order, key)

    def outputs(self, order: Tensor) -> list[Tensor]:
        """Return the true sounds."""
        return self.split.outputs(order)

    def coded(self, order: Tensor) -> list[Tensor]:
        """Return the true sounds as their codes have them."""
        return self.split.coded(order)

    def read(self, outputs: Sequence[Tensor]) -> list[str]:
        """Return the transcripts of the other run."""
        return heard_by(self.hears, outputs)

    def score(self, readings: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the error rate of characters."""
        return {"cer": scores(readings, references)["cer"]}


class _Judging:
    """The readings of a split's judge: of written outputs, and of the true ones, which bound a model's scores.

    shown: (true, written) outputs of the first samples
    """

    def __init__(self, split: Split, tokenizer: CodeTokenizer) -> None:
        assert isinstance(split, ReadsOutputs)
        self.split, self.tokenizer = split, tokenizer
        self.bounds: dict[str, list[str]] = {"truth": [], "codes": []}
        self.shown: list[tuple[Tensor, Tensor]] = []

    def read(self, model: Any, batch: Batch, order: Tensor, beam: int | None, length_penalty: float) -> list[str]:
        """Write an output for each source of a batch, the samples `order` (B,), and return the judge's readings."""
        if beam is None:
            assert batch.source is not None
            memory = model.encode(batch.source, batch.source_lengths)
            samplers = [Sampler(1.0, None, index) for index in order.tolist()]
            token_ids = write_codes(model, memory, samplers, stats=Stats())
        else:
            token_ids = decoded(model, batch, beam, length_penalty)
        outputs = outputs_of(self.tokenizer, token_ids)
        true = self.split.outputs(order)
        self.shown += list(zip(true, outputs, strict=True))[: SHOWN - len(self.shown)]
        self.bounds["truth"] += self.split.read(true)
        self.bounds["codes"] += self.split.read(self.split.coded(order))
        return self.split.read(outputs)

    def scores(self, readings: list[str], references: list[str]) -> dict[str, float]:
        """Return the scores of the readings, and of the true outputs that bound them."""
        values = judged(self.split, readings, references)
        for name, bound in self.bounds.items():
            values |= {f"{score}@{name}": value for score, value in judged(self.split, bound, references).items()}
        return values


def decoded(model: Any, batch: Batch, beam: int | None, length_penalty: float = 1.0) -> list[list[int]]:
    """Return the token ids that the model writes for each source of a batch, without start and end token."""
    tokens = model.ctx.tokens
    memory: Memory | None = None
    prompts = [[tokens.start]] * len(batch)
    if batch.source is None:  # it stands in front of the start token
        sequences = batch.inputs.tolist()
        prompts = [row[: row.index(tokens.start) + 1] for row in sequences]
    else:
        memory = model.encode(batch.source, batch.source_lengths)
    settings = {"max_tokens": tokens.max_len, "cache": True, "stats": Stats(), "memory": memory, "end": tokens.end}
    if beam is None:

        def greedy(logits: Tensor) -> int:
            return int(logits.argmax())

        steps = decode_batch(model, prompts, [greedy] * len(batch), **settings)
    else:
        steps = beam_search_batch(model, prompts, width=beam, length_penalty=length_penalty, **settings)
    return collected(steps, len(prompts))


def write(loaded: Loaded, written: Written) -> tuple[Path, bool]:
    """Write written-PART.jsonl into the run's folder. Return its path, and whether the summary has the scores.

    The summary is about one checkpoint, the run's data and a whole split: scores of other weights or data, or of some
    batches, are not added. Texts of other weights or data get a file of their own, see `runs.result_files`.
    """
    path = loaded.folder.path / f"{result_stem(loaded, 'written', written.part, written.searched)}.jsonl"
    write_texts(path, written, loaded.weights, loaded.step)
    if not written.whole or "weights" not in loaded.folder.summary() or not is_own(loaded):
        return path, False
    with exclusive(loaded.folder.path, ".summary.lock"):  # two commands may write scores of the same run
        summary = loaded.folder.summary()
        summary["metrics"] = {**summary["metrics"], **written.metrics()}
        summary["directions"] = {**summary.get("directions", {}), **written.directions()}
        loaded.folder.write_summary(summary)
    return path, True


def write_texts(path: Path, written: Written, weights: str, step: int) -> None:
    """Write a line of scores and one for each sample. weights, step: of the checkpoint. Raises OSError."""
    head = {
        "scores": written.scores,
        "beam": written.beam,
        "length_penalty": written.length_penalty,
        "weights": weights,
        "step": step,
    }
    samples = [
        {"source": source, "reference": reference, "written": text, "exact": text == reference}
        for source, reference, text in written.texts
    ]
    write_text(path, "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in (head, *samples)))
