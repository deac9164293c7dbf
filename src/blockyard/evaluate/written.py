"""What a model writes for every source of a split, scored against the split's targets.

source      Saturday, November 21, 2026     written token by token, without the target: greedy or by beam search
reference   21. November 2026
written     21. November 2025               exact 0, a CER of 1 edit over 17 characters
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Batch, Memory, Split, TextPairs, TextTokenizer, Transcriber
from blockyard.contracts.objective import source_as_input
from blockyard.data._order import eval_indices, eval_steps
from blockyard.evaluate.text_scores import DIRECTIONS, scores
from blockyard.generate.beam_search import beam_search_batch
from blockyard.generate.decode import decode_batch
from blockyard.generate.stats import Stats
from blockyard.generate.transcribe import transcribed
from blockyard.ops.autocast import autocast


@dataclass(frozen=True)
class Written:
    """The texts of one split and their scores.

    part: "test", "val" or "train"; beam: hypotheses of a beam search, or None for greedy decoding
    scores: exact, bleu, chrf, cer, wer and insertions over all texts, as fractions: 1 is 100 %
    texts: (source, reference, written) of each sample; whole: whether that is every sample of the split
    """

    part: str
    beam: int | None
    scores: dict[str, float]
    texts: list[tuple[str, str, str]]
    whole: bool = True

    def metrics(self) -> dict[str, float]:
        """Every score by its full name: "test/written_bleu", or "test/written_bleu@beam4"."""
        return {self.name(score): value for score, value in self.scores.items()}

    def directions(self) -> dict[str, str]:
        """Whether lower or higher is better, for each of `metrics`."""
        return {self.name(score): DIRECTIONS[score] for score in self.scores}

    def name(self, score: str) -> str:
        """The full name of a score."""
        return f"{self.part}/written_{score}" + ("" if self.beam is None else f"@beam{self.beam}")


def write_split(
    model: nn.Module,
    split: Split,
    tokenizer: TextTokenizer,
    *,
    part: str,
    batch_size: int,
    beam: int | None = None,
    objective: Transcriber | None = None,
    device: torch.device | str = "cpu",
    precision: str = "32",
    limit: int | None = None,
) -> Written:
    """Writes the target of every source and scores them.

    objective: one that writes all tokens together; None decodes token by token
    limit: batches to write, or None for all
    """
    assert isinstance(split, TextPairs)
    device, steps = torch.device(device), eval_steps(len(split), batch_size)
    texts: list[tuple[str, str, str]] = []
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), autocast(device, precision):
            for step in range(min(steps, limit) if limit else steps):
                order = eval_indices(step, num_samples=len(split), batch_size=batch_size)
                batch = split.batch(order, None).to(device)
                pairs = [split.pairs[i] for i in order.tolist()]
                if objective is None:
                    token_ids = decoded(model, batch, beam)
                else:
                    token_ids = transcribed(model, objective, source_as_input(batch), beam)
                written = [tokenizer.decode(each) for each in token_ids]
                texts += [(*pair, text) for pair, text in zip(pairs, written, strict=True)]
    finally:
        model.train(training)
    scored = scores([text for *_, text in texts], [reference for _, reference, _ in texts])
    return Written(part, beam, scored, texts, whole=len(texts) == len(split))


def decoded(model: Any, batch: Batch, beam: int | None) -> list[list[int]]:
    """The token ids that the model writes for each source of a batch, without start and end token."""
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
        greedy: Callable[[torch.Tensor], int] = lambda row: int(row.argmax())  # noqa: E731
        steps = decode_batch(model, prompts, [greedy] * len(batch), **settings)
    else:
        steps = beam_search_batch(model, prompts, width=beam, **settings)
    written: list[list[int]] = [[] for _ in prompts]
    for step in steps:
        for index, token_id in step:
            written[index].append(token_id)
    return written
