"""Texts that a model without a decoder writes for sources: all tokens in one forward pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from blockyard.contracts import Batch, Model, TextTokenizer, Transcriber
from blockyard.errors import UserError
from blockyard.generate.decode import Steps
from blockyard.generate.request import GeneratedText, source_batch
from blockyard.generate.stats import Stats
from blockyard.runs.load import Loaded


def transcription(
    loaded: Loaded,
    prompts: Sequence[str],
    sources: Sequence[str] | None,
    beam: int | None,
    unused: Mapping[str, object],
) -> tuple[list[GeneratedText], Steps, Stats]:
    """Return the texts to be written, their token ids, which come in one step, and the cost.

    unused: options that have an effect on decoders only. Raises UserError for one that is set, for a prompt, and for
    sources that cannot be read.
    """
    name = loaded.folder.name
    assert isinstance(loaded.tokenizer, TextTokenizer)
    if sources is None or any(prompts):
        raise UserError(f"{name} writes down what is in a source and continues no prompt; give source=FILE")
    for option, value in unused.items():
        if value is not None:
            raise UserError(f"{option}={value} has no effect: {name} writes no token after the other; leave it out")
    batch = source_batch(loaded, sources)
    texts = [GeneratedText("", [], source) for source in sources]
    stats = Stats(steps=1, method="one forward pass")
    return texts, _steps(loaded, batch, beam, stats), stats


def _steps(loaded: Loaded, batch: Batch, beam: int | None, stats: Stats) -> Steps:
    assert isinstance(loaded.objective, Transcriber)
    start = time.perf_counter()
    device = next(loaded.model.parameters()).device
    with torch.inference_mode():
        try:
            written = transcribed(loaded.model, loaded.objective, batch.to(device), beam)
        except (ValueError, MemoryError) as error:
            raise UserError(f"the sources cannot be read in one batch: {error}") from error
    stats.count(sum(map(len, written)), time.perf_counter() - start)
    yield [(index, token_id) for index, token_ids in enumerate(written) for token_id in token_ids]


def transcribed(model: Model, objective: Transcriber, batch: Batch, beam: int | None) -> list[list[int]]:
    """Return the token ids that a model writes for a batch of sources, its inputs."""
    lengths = batch.lengths
    if lengths is None:
        lengths = torch.full((len(batch),), batch.inputs.shape[1], device=batch.inputs.device)
    tokens = model.ctx.tokens.tokens_of(lengths)
    return objective.transcribe(model(batch), tokens, beam)
