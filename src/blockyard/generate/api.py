"""`blockyard generate` from Python: a run and prompts in, a stream of text out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from blockyard.contracts import Memory, Transcriber
from blockyard.errors import UserError
from blockyard.generate.beam_search import beam_search_batch
from blockyard.generate.compiled_step import check_compiles
from blockyard.generate.decode import decode_batch
from blockyard.generate.draft import NGRAM, Drafting, Run, load_draft
from blockyard.generate.options import check_compiled, check_device, check_draft_options, check_options
from blockyard.generate.request import GeneratedText, encode_sources, prepare_texts
from blockyard.generate.sampling import Sampler
from blockyard.generate.speculative import SpeculativeStats
from blockyard.generate.stats import Stats
from blockyard.generate.text_stream import Generation, TextStream
from blockyard.generate.transcribe import transcription
from blockyard.runs.load import Loaded, load


def generate(run: Run, prompt: str = "", *, source: str | None = None, **settings: Any) -> Generation:
    """Continue `prompt`, or generate from `source`; settings as in `generate_all`."""
    return Generation(generate_all(run, [prompt], sources=None if source is None else [source], **settings))


def generate_all(
    run: Run,
    prompts: Sequence[str] = ("",),
    *,
    sources: Sequence[str] | None = None,
    max_tokens: int = 200,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    draft: Run | None = None,
    draft_tokens: int | None = None,
    cache: bool = True,
    compiled: bool = False,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    device: str = "cpu",
) -> TextStream:
    """Continue each of `prompts` in one batch. Nothing runs until the result is iterated over.

    sources: texts for the encoder, or names of files where it reads images or sounds, one for each prompt; a single
        prompt serves all
    temperature: None is 0.8; 0 takes the most likely token each time (greedy)
    top_k: sample among the k most likely tokens, 0 among all; None is 40, or all where top_p is given
    top_p: sample among the most likely tokens whose probabilities sum to this value
    seed: None is 0; text r uses seed + r, so that the first one is what it would be alone
    beam: beam search with this many hypotheses for each prompt
    length_penalty: divide a hypothesis' log probability by its length to this power; None is 1
    draft: speculative decoding with a smaller run of the same tokenizer, or with "ngram", the text so far: a pass reads
        the tokens that it proposes and accepts a beginning of them. The distribution of the text stays the same
    draft_tokens: proposed at most in each pass; None is 4
    cache: cache keys, values and states where the model can
    compiled: compile the step that reads one token; sampling and greedy decoding from key-value caches only
    device: cpu, cuda or cuda:1, where `run` is not loaded yet

    Raises UserError where the run is not a decoder of text, a prompt is empty, or options contradict each other.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    check_options(max_tokens, beam, length_penalty, sampling)
    check_draft_options(draft is not None, draft_tokens, beam)
    check_compiled(compiled, {"beam": beam, "draft": draft, "sources": sources}, cache)
    check_device(device)
    loaded = run if isinstance(run, Loaded) else load(run, which=which, outputs=outputs, device=device, allow=allow)
    if isinstance(loaded.objective, Transcriber):
        unused = sampling | {"length_penalty": length_penalty, "draft": draft}
        return TextStream(loaded, *transcription(loaded, prompts, sources, beam, unused))
    texts = prepare_texts(loaded, prompts, sources)
    if compiled:
        check_compiles(loaded.model)
    _check_has_end(loaded, length_penalty)
    settings: dict[str, Any] = {
        "max_tokens": max_tokens,
        "cache": cache,
        "memory": None if sources is None else _encoded_sources(loaded, texts),
        "end": loaded.model.ctx.tokens.end,
    }
    if beam is not None:
        penalty = 1.0 if length_penalty is None else length_penalty
        return _search(loaded, texts, width=beam, length_penalty=penalty, **settings)
    samplers = _samplers(len(texts), temperature, top_k, top_p, seed)
    if draft is not None:
        run = load_draft(loaded, draft, which=which, outputs=outputs, device=device, allow=allow)
        return _speculate(loaded, texts, Drafting(loaded, texts, run, draft_tokens or 4), samplers, settings)
    return _sample(loaded, texts, samplers, compiled=compiled, **settings)


def _check_has_end(loaded: Loaded, length_penalty: float | None) -> None:
    if length_penalty is not None and loaded.model.ctx.tokens.end is None:
        raise UserError(
            f"length_penalty={length_penalty} has no effect: the data of {loaded.folder.name} has no end token, so all "
            "hypotheses have the same length; leave it out"
        )


def _encoded_sources(loaded: Loaded, texts: list[GeneratedText]) -> Memory | None:
    """The encoder's output for the sources; None where the model reads each source in front of its prompt."""
    return None if loaded.model.ctx.data.joined else encode_sources(loaded, [text.source or "" for text in texts])


def _samplers(
    count: int, temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
) -> list[Sampler]:
    """A sampler for each text, with the defaults that `generate_all` documents."""
    temperature = 0.8 if temperature is None else temperature
    top_k = (40 if top_p is None else 0) if top_k is None else top_k
    return [Sampler(temperature, top_k, (seed or 0) + index, top_p) for index in range(count)]


def _sample(loaded: Loaded, texts: list[GeneratedText], samplers: list[Sampler], **settings: Any) -> TextStream:
    stats = Stats(_prompt_tokens(texts))
    steps = decode_batch(loaded.model, [text.prompt_ids for text in texts], samplers, stats=stats, **settings)
    return TextStream(loaded, texts, steps, stats)


def _search(loaded: Loaded, texts: list[GeneratedText], **settings: Any) -> TextStream:
    stats = Stats(_prompt_tokens(texts))
    steps = beam_search_batch(loaded.model, [text.prompt_ids for text in texts], stats=stats, **settings)
    return TextStream(loaded, texts, steps, stats)


def _speculate(
    loaded: Loaded, texts: list[GeneratedText], drafting: Drafting, samplers: list[Sampler], settings: dict[str, Any]
) -> TextStream:
    draft = NGRAM if drafting.run is None else drafting.run.folder.name
    stats = SpeculativeStats(_prompt_tokens(texts), draft=f"draft={draft}")
    return TextStream(loaded, texts, drafting.decode(samplers, stats=stats, **settings), stats)


def _prompt_tokens(texts: list[GeneratedText]) -> int:
    return sum(len(text.prompt_ids) for text in texts)


def stream_to_terminal(run: str, prompts: Sequence[str], **settings: Any) -> Stats:
    """Write the prompts and their continuations to standard output and the cost to standard error.

    The first text is written as it comes; the others follow, each under a line with its number.
    """
    stream = generate_all(run, prompts, **settings)
    texts = stream.texts
    parts = iter(stream)
    first = list(islice(parts, 1))  # warnings about the run come out before the text begins
    sys.stdout.write(_title(texts, 0) if len(texts) > 1 else "")
    sys.stdout.write(texts[0].prompt)
    for index, part in chain(first, parts):
        if index == 0:
            sys.stdout.write(part)
            sys.stdout.flush()
    sys.stdout.write("\n")
    for index, text in enumerate(texts[1:], start=1):
        sys.stdout.write(f"{_title(texts, index)}{text.prompt}{text.text}\n")
    sys.stdout.flush()
    sys.stderr.write(f"{stream.stats}\n")
    return stream.stats


def _title(texts: list[GeneratedText], index: int) -> str:
    source = texts[index].source
    return f"--- {index + 1} of {len(texts)}{'' if source is None else f': {source}'}\n"
