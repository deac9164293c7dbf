"""`blockyard generate` from Python: a run and prompts in, a stream of text out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from blockyard.contracts import TextTokenizer, Transcriber
from blockyard.generate.beam_search import beam_search_batch
from blockyard.generate.compiled_step import check_compiles
from blockyard.generate.decode import decode_batch
from blockyard.generate.diffusion import check_gap_options, check_only_gaps, fill_gaps
from blockyard.generate.draft import NGRAM, Drafting, Run, load_draft
from blockyard.generate.request import (
    GeneratedText,
    check_compiled,
    check_device,
    check_draft_options,
    check_has_end,
    check_options,
    check_tokenizer,
    encode_sources,
    prepare_texts,
)
from blockyard.generate.sampling import Sampler, samplers
from blockyard.generate.speculative import SpeculativeStats
from blockyard.generate.stats import Stats
from blockyard.generate.transcribe import transcription
from blockyard.runs.load import Loaded, load

MAX_TOKENS = 200
_MAX_HELD = 8  # tokens without a whole character after which one is given up; UTF-8 needs four bytes at most


class Detokenizer:
    """Decodes token ids as they arrive, and holds a character back until all of its tokens have arrived."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        # token_ids[start:stop] is the last piece that was returned. It is decoded again with the next one, for
        # tokenizers whose text depends on the token before.
        self._start = self._stop = 0

    def push(self, token_id: int) -> str:
        """Add a token and return the text that became whole, or "" while a character is incomplete."""
        self._token_ids.append(token_id)
        text = self._tokenizer.decode(self._token_ids[self._start :])
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._token_ids) - self._stop < _MAX_HELD:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """Return the text that is still held back, after the last token."""
        if self._stop == len(self._token_ids):
            return ""
        return self._emit(self._tokenizer.decode(self._token_ids[self._start :]))

    def _emit(self, text: str) -> str:
        previous = len(self._tokenizer.decode(self._token_ids[self._start : self._stop]))
        self._start, self._stop = self._stop, len(self._token_ids)
        return text[previous:]


class TextStream:
    """Several texts being generated: iterate over it for (index, new text), then read `texts` and `stats`."""

    def __init__(
        self, loaded: Loaded, texts: list[GeneratedText], steps: Iterator[list[tuple[int, int]]], stats: Stats
    ) -> None:
        self.loaded, self.texts, self.stats, self._steps = loaded, texts, stats, steps

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield new text in whole characters, as it comes; the parts of one index add up to its `text`."""
        assert isinstance(self.loaded.tokenizer, TextTokenizer)
        detokenizers = [Detokenizer(self.loaded.tokenizer) for _ in self.texts]
        for step in self._steps:
            for index, token_id in step:
                self.texts[index].token_ids.append(token_id)
                yield from self._emit(index, detokenizers[index].push(token_id))
        for index, detokenizer in enumerate(detokenizers):
            yield from self._emit(index, detokenizer.flush())

    def _emit(self, index: int, text: str) -> Iterator[tuple[int, str]]:
        if text:
            self.texts[index].text += text
            yield index, text


class Generation:
    """One text being generated: iterate over it for new text, then read `text`, `token_ids` and `stats`."""

    def __init__(self, stream: TextStream) -> None:
        self.stream, self.stats, self.loaded = stream, stream.stats, stream.loaded
        self.prompt, self.prompt_ids = stream.texts[0].prompt, stream.texts[0].prompt_ids
        self.token_ids = stream.texts[0].token_ids  # generated so far

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over new text in whole characters; the parts add up to `text`."""
        return (text for _, text in self.stream)

    @property
    def text(self) -> str:
        """The text generated so far."""
        return self.stream.texts[0].text


def generate(run: Run, prompt: str = "", *, source: str | None = None, **settings: Any) -> Generation:
    """Continue `prompt`, or generate from `source`; settings as in `generate_all`."""
    return Generation(generate_all(run, [prompt], sources=None if source is None else [source], **settings))


def generate_all(
    run: Run,
    prompts: Sequence[str] = ("",),
    *,
    sources: Sequence[str] | None = None,
    max_tokens: int = MAX_TOKENS,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    draft: Run | None = None,
    draft_tokens: int | None = None,
    suffix: str | None = None,
    steps: int | None = None,
    order: str | None = None,
    cache: bool = True,
    compiled: bool = False,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    device: str = "cpu",
) -> TextStream:
    """Continue each of `prompts` in one batch. Nothing runs until the result is iterated over.

    sources: texts for the encoder, or names of files if it reads images or sounds, one for each prompt; a single prompt
        serves all
    temperature: None is 0.8; 0 takes the most likely token each time (greedy)
    top_k: sample among the k most likely tokens, 0 among all; None is 40, or all if top_p is given
    top_p: sample among the most likely tokens, with probabilities that sum to this value
    seed: None is 0; text r uses seed + r, so that the first one is as if alone
    beam: beam search with this many hypotheses for each prompt
    length_penalty: divide a hypothesis' log probability by its length to this power; None is 1
    draft: speculative decoding with a smaller run of the same tokenizer, or with "ngram", the text so far: a pass reads
        the tokens that it proposes and accepts a beginning of them. The distribution of the text stays the same
    draft_tokens: the most proposed tokens of each pass; None is 4
    suffix: of a run of masked diffusion, the text behind the gap that `max_tokens` tokens fill
    steps: the number of steps in which the gap is filled; None is a token at a time
    order: random or confidence, see `generate.diffusion`; None is random
    cache: cache keys, values and states if the model can
    compiled: compile the step that reads one token; sampling and greedy decoding from key-value caches only
    device: cpu, cuda or cuda:1, if `run` is not loaded yet

    Raises UserError if the run is not a decoder of text, a prompt is empty, or options contradict each other.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    check_options(max_tokens, beam, length_penalty, sampling)
    check_draft_options(draft is not None, draft_tokens, beam)
    check_compiled(compiled, {"beam": beam, "draft": draft, "sources": sources}, cache)
    check_device(device)
    loaded = run if isinstance(run, Loaded) else load(run, which=which, outputs=outputs, device=device, allow=allow)
    check_gap_options(loaded, steps, order, suffix)
    if isinstance(loaded.objective, Transcriber):
        unused = sampling | {"length_penalty": length_penalty, "draft": draft, "draft_tokens": draft_tokens}
        unused |= {"max_tokens": None if max_tokens == MAX_TOKENS else max_tokens, "cache": None if cache else cache}
        return TextStream(loaded, *transcription(loaded, prompts, sources, beam, unused))
    if loaded.objective.fills_gaps:
        check_only_gaps({"source": sources, "beam": beam, "draft": draft, "compile": compiled or None, "cache": cache})
        return _fill(loaded, prompts, suffix or "", max_tokens, sampling, steps, order or "random")
    texts = prepare_texts(loaded, prompts, sources)
    if compiled:
        check_compiles(loaded.model)
    if length_penalty is not None:
        check_has_end(loaded, length_penalty)
    memory = None
    if sources is not None and not loaded.model.ctx.data.joined:  # a joined source stands in front of its prompt
        memory = encode_sources(loaded, [text.source or "" for text in texts])
    prompt_ids = [text.prompt_ids for text in texts]
    stats = Stats(sum(map(len, prompt_ids)))
    settings: dict[str, Any] = {
        "max_tokens": max_tokens,
        "cache": cache,
        "memory": memory,
        "end": loaded.model.ctx.tokens.end,
    }
    if beam is not None:
        penalty = 1.0 if length_penalty is None else length_penalty
        settings |= {"width": beam, "length_penalty": penalty}
        return TextStream(loaded, texts, beam_search_batch(loaded.model, prompt_ids, stats=stats, **settings), stats)
    choose = _samplers(len(texts), temperature, top_k, top_p, seed)
    if draft is not None:
        draft_run = load_draft(loaded, draft, which=which, outputs=outputs, device=device, allow=allow)
        name = NGRAM if draft_run is None else draft_run.folder.name
        stats_of_draft = SpeculativeStats(stats.prompt_tokens, draft=f"draft={name}")
        drafting = Drafting(loaded, texts, draft_run, draft_tokens or 4)
        return TextStream(loaded, texts, drafting.decode(choose, stats=stats_of_draft, **settings), stats_of_draft)
    written = decode_batch(loaded.model, prompt_ids, choose, stats=stats, compiled=compiled, **settings)
    return TextStream(loaded, texts, written, stats)


def _fill(
    loaded: Loaded,
    prompts: Sequence[str],
    suffix: str,
    max_tokens: int,
    sampling: dict[str, Any],
    steps: int | None,
    order: Any,
) -> TextStream:
    check_tokenizer(loaded)
    sampler = partial(_samplers, **sampling)
    texts, parts, stats = fill_gaps(loaded, prompts, suffix, max_tokens, sampler, steps, order)
    return TextStream(loaded, texts, parts, stats)


def _samplers(
    count: int, temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
) -> list[Sampler]:
    """Return a sampler for each text, with the defaults that `generate_all` documents."""
    temperature = 0.8 if temperature is None else temperature
    if top_k is None and top_p is None:
        top_k = 40
    return samplers(count, temperature, top_k, top_p, seed)


def stream_to_terminal(run: Run, prompts: Sequence[str], **settings: Any) -> Stats:
    """Write the prompts and their continuations to standard output and the cost to standard error.

    The first text is written as it comes; the others follow, each under a line with its number.
    """
    stream = generate_all(run, prompts, **settings)
    texts = stream.texts
    parts = iter(stream)
    first = list(islice(parts, 1))  # warnings about the run come out before the text begins
    if len(texts) > 1:
        sys.stdout.write(_title(texts, 0))
    sys.stdout.write(texts[0].prompt)
    for index, part in chain(first, parts):
        if index == 0:
            sys.stdout.write(part)
            sys.stdout.flush()
    sys.stdout.write(f"{texts[0].suffix}\n")
    for index, text in enumerate(texts[1:], start=1):
        sys.stdout.write(f"{_title(texts, index)}{text.prompt}{text.text}{text.suffix}\n")
    sys.stdout.flush()
    sys.stderr.write(f"{stream.stats}\n")
    return stream.stats


def _title(texts: list[GeneratedText], index: int) -> str:
    source = texts[index].source
    title = f"--- {index + 1} of {len(texts)}"
    if source is None:
        return f"{title}\n"
    return f"{title}: {source}\n"
