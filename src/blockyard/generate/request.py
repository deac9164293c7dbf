"""Encodes the prompts and sources that `blockyard generate` is called with, for the model of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from blockyard.contracts import Batch, EncodesSource, ImageTokenizer, Memory, SourceFiles, TextTokenizer, Tokenizer
from blockyard.errors import UserError
from blockyard.generate.stepper import max_context, max_length
from blockyard.runs.folder import TOKENIZER
from blockyard.runs.load import Loaded

log = logging.getLogger("blockyard")

MOST_DRAFT_TOKENS = 64
COLDEST, HOTTEST = 1e-6, 1e6  # temperatures by which single precision can divide scores


@dataclass
class GeneratedText:
    """A prompt, its source if there is one, the token ids and text generated so far, and the suffix behind them."""

    prompt: str
    prompt_ids: list[int]
    source: str | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    suffix: str = ""


def prepare_texts(loaded: Loaded, prompts: Sequence[str], sources: Sequence[str] | None) -> list[GeneratedText]:
    """Return one entry for each prompt and source. Raises UserError if the run cannot continue them."""
    name = loaded.folder.name
    ctx = loaded.model.ctx
    if loaded.objective.target == "symbols":
        raise UserError(
            f"{name} predicts the answers in a sequence of {loaded.data.spec.things} and does not generate one; "
            "`blockyard eval` scores its answers. generate needs model=decoder with objective=next_token on text"
        )
    check_tokenizer(loaded)
    if not ctx.causal or loaded.objective.takes != "token":
        raise UserError(f"{name} is not a decoder; generate needs model=decoder with objective=next_token")
    if loaded.objective.own_position:
        raise UserError(
            f"{name} predicts each token at its own position (objective.shift=0), and generate reads what follows the "
            "last one; use a run of objective.shift=1"
        )
    joined = ctx.data.joined
    has_source = ctx.data.source is not None or joined
    if has_source and sources is None:
        example = 'source="..."'
        reads_text = isinstance(loaded.components.source_tokenizer, TextTokenizer)
        if not reads_text and ctx.data.source is not None:
            example = f"source=FILE of one of its {ctx.data.source.things}"
        raise UserError(f"{name} writes what belongs to a source: it needs one, such as {example}")
    if not has_source and sources is not None:
        raise UserError(f"{name} takes no source; give prompt=TEXT instead")
    if sources is not None and len(prompts) == 1:
        prompts = list(prompts) * len(sources)
    if sources is not None and len(prompts) != len(sources):
        raise UserError(f"got {len(prompts)} prompts and {len(sources)} sources; give one prompt for all, or one each")
    texts = []
    for index, prompt in enumerate(prompts):
        source = None if sources is None else sources[index]
        prompt_ids: list[int] = []
        if joined and source is not None:  # it stands in front of its text
            prompt_ids += encode_text(loaded, "source", source)
            if not prompt_ids:
                raise UserError("a source is empty: give at least one character")
        if ctx.tokens.start is not None:
            prompt_ids.append(ctx.tokens.start)
        prompt_ids += encode_text(loaded, "prompt", prompt)
        if not prompt_ids:
            raise UserError('the prompt is empty: give at least one character, such as prompt="The"')
        texts.append(GeneratedText(prompt, _fit(loaded, prompt_ids), source))
    return texts


def check_tokenizer(loaded: Loaded) -> None:
    """Raise UserError for a run of anything else than text, and for one that has lost its vocabulary."""
    name = loaded.folder.name
    if not isinstance(loaded.tokenizer, TextTokenizer):
        problem = f"{name} is a model of {loaded.data.spec.things}; generate needs a model of text"
        if isinstance(loaded.tokenizer, ImageTokenizer):
            problem += "; images=16 draws some"
        raise UserError(problem)
    check_learned(loaded, partial(loaded.tokenizer.encode, ""))


def check_learned(loaded: Loaded, use: Callable[[], object]) -> None:
    """Raise UserError if a run has lost the state that its tokenizer learned. use: needs it, and raises ValueError"""
    try:
        use()
    except ValueError as error:
        raise UserError(f"{loaded.folder.path} has lost its {TOKENIZER}: {error}") from error


def check_has_end(loaded: Loaded, length_penalty: float) -> None:
    """Raise UserError for a penalty of the length if all hypotheses have the same length."""
    if loaded.model.ctx.tokens.end is None:
        raise UserError(
            f"length_penalty={length_penalty:g} has no effect: the data of {loaded.folder.name} has no end token, so "
            "all hypotheses have the same length; leave it out"
        )


def _fit(loaded: Loaded, prompt_ids: list[int]) -> list[int]:
    """Return the prompt, or its end if the model sees less. Raises UserError if a cut would lose the start token."""
    if loaded.model.ctx.tokens.end is not None:
        longest = max_length(loaded.model)
        if len(prompt_ids) > longest:
            raise UserError(
                f"the prompt has {len(prompt_ids)} tokens with its start token; {loaded.folder.name} takes at most "
                f"{longest}"
            )
        return prompt_ids
    limit = max_context(loaded.model)
    if limit is not None and len(prompt_ids) > limit:
        log.warning("the prompt has %d tokens; the model sees the last %d", len(prompt_ids), limit)
        return prompt_ids[-limit:]
    return prompt_ids


def encode_sources(loaded: Loaded, sources: list[str]) -> Memory:
    """Return the encoder's output for the sources: texts, or names of files. Raises UserError for an unreadable one."""
    batch = source_batch(loaded, sources)
    longest, lengths = batch.inputs.shape[1], batch.lengths
    limit = loaded.model.ctx.source_tokens.max_len
    is_text = isinstance(loaded.components.source_tokenizer, TextTokenizer)
    if is_text and longest > limit and getattr(loaded.model, "encoder", loaded.model).position.bounded:
        raise UserError(f"a source has {longest} tokens; the model takes at most {limit}")
    device = next(loaded.model.parameters()).device
    source, model = batch.inputs, loaded.model
    assert isinstance(model, EncodesSource)
    if lengths is not None:
        lengths = None if bool((lengths == longest).all()) else lengths.to(device)
    with torch.inference_mode():
        try:
            return model.encode(source.to(device), lengths)
        except ValueError as error:
            raise UserError(f"the sources cannot be encoded in one batch: {error}") from error


def source_batch(loaded: Loaded, sources: Sequence[str]) -> Batch:
    """Return the sources as inputs, with their lengths if these differ.

    sources: texts if the run's sources are texts, or else names of files. Raises UserError for a source that is empty,
    cannot be read, or is longer than the run's sources.
    """
    tokenizer = loaded.components.source_tokenizer
    if isinstance(tokenizer, TextTokenizer):
        sequences = [torch.tensor([encode_text(loaded, "source", source, tokenizer)]) for source in sources]
        if not min(sequence.shape[1] for sequence in sequences):
            raise UserError("a source is empty: give at least one character")
    elif isinstance(loaded.data, SourceFiles):
        sequences = [loaded.data.read_source(source) for source in sources]
    else:
        raise UserError(f"{loaded.folder.name}: {type(loaded.data).__name__} reads no source from a file")
    lengths = torch.tensor([sequence.shape[1] for sequence in sequences])
    if bool((lengths == lengths[0]).all()):
        return Batch(torch.cat(sequences))
    longest = int(lengths.max())
    padded = []
    for sequence in sequences:  # (1, T) or (1, T, C)
        of_channels = (0, 0) * (sequence.ndim - 2)
        padded.append(F.pad(sequence, (*of_channels, 0, longest - sequence.shape[1])))
    return Batch(torch.cat(padded), lengths=lengths)


def encode_text(loaded: Loaded, name: str, text: str, tokenizer: Tokenizer | None = None) -> list[int]:
    """Return the token ids of a prompt or source; warn if the tokenizer does not know a character."""
    tokenizer = tokenizer or loaded.tokenizer
    assert isinstance(tokenizer, TextTokenizer)
    try:
        token_ids = tokenizer.encode(text)
        decoded = tokenizer.decode(token_ids)
    except UnicodeEncodeError as error:
        raise UserError(f"the {name} is not valid text: {error}") from error
    if getattr(tokenizer, "reads_ids", False):  # numbers, which may stand apart by any white space
        most = loaded.components.tokens().vocabulary or 0
        for token_id in token_ids:
            if not 0 <= token_id < most:
                raise UserError(f"the {name} has token id {token_id}; the model reads ids from 0 to {most - 1}")
        return token_ids
    if decoded != text:
        unknown = []
        for character in sorted(set(text)):
            if tokenizer.decode(tokenizer.encode(character)) != character:
                unknown.append(repr(character))
        listed = ""
        if unknown:
            listed = f" ({' '.join(unknown[:8])})"
        log.warning("the tokenizer does not know all of the %s%s; the model reads %r", name, listed, decoded[-80:])
    return token_ids


def read_lines(option: str, path: str) -> list[str]:
    """Return the non-empty lines of a file. Raises UserError with the name of the option if there are none."""
    try:
        lines = [line for line in Path(path).read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option}={path}: cannot read the file ({error})") from error
    if not lines:
        raise UserError(f"{option}={path}: the file has no text")
    return lines


def check_options(max_tokens: int, beam: int | None, length_penalty: float | None, sampling: dict[str, Any]) -> None:
    """Raise UserError for a value out of range, and for a value without effect beside the others."""
    options = {name: value for name, value in sampling.items() if value is not None}
    ranges = {
        "temperature": (
            lambda v: v == 0 or COLDEST <= v <= HOTTEST,
            f"0, which takes the most likely token, or a number from {COLDEST:g} to {HOTTEST:g}",
        ),
        "top_k": (lambda v: v >= 0, "an integer >= 0 (0 keeps all tokens)"),
        "top_p": (lambda v: 0 < v <= 1, "a number in (0, 1]"),
        "seed": (lambda v: 0 <= v < 2**62, "an integer >= 0"),
    }
    if max_tokens < 1:
        raise UserError(f"max_tokens={max_tokens}: expected an integer >= 1")
    for name, value in options.items():
        is_valid, expected = ranges[name]
        if not is_valid(value):
            raise UserError(f"{name}={value}: expected {expected}")
    if beam is not None and beam < 1:
        raise UserError(f"beam={beam}: expected an integer >= 1")
    if length_penalty is not None and not 0 <= length_penalty < float("inf"):
        raise UserError(f"length_penalty={length_penalty}: expected a number >= 0")
    if length_penalty is not None and beam is None:
        raise UserError(f"length_penalty={length_penalty} has an effect in beam search only; add beam=4 to use it")
    for name, value in options.items():
        if beam is not None:
            raise UserError(
                f"{name}={value} has no effect with beam={beam}: beam search does not sample; leave one out"
            )
        if options.get("temperature") == 0 and name != "temperature":
            raise UserError(f"{name}={value} has no effect with temperature=0, which does not sample; leave one out")


def check_draft_options(draft: bool, draft_tokens: int | None, beam: int | None) -> None:
    """Raise UserError for options of speculative decoding that have no effect, or are out of range."""
    if draft_tokens is not None and not draft:
        raise UserError(f"draft_tokens={draft_tokens} has no effect without draft=RUN or draft=ngram")
    if draft_tokens is not None and not 1 <= draft_tokens <= MOST_DRAFT_TOKENS:
        raise UserError(f"draft_tokens={draft_tokens}: expected an integer from 1 to {MOST_DRAFT_TOKENS}")
    if draft and beam is not None:
        raise UserError(f"beam={beam} and draft= exclude each other: a beam search does not sample; leave one out")


def check_compiled(compiled: bool, others: Mapping[str, object], cache: bool) -> None:
    """Raise UserError for compile=true with options that read more than one token in a pass, or keep no cache.

    others: options that exclude it, by name; None where not given
    """
    if not compiled:
        return
    for name, value in others.items():
        if value is not None:
            reasons = {"beam": "reorders the caches", "sources": "keeps the keys of its source outside the caches"}
            reason = reasons.get(name, "reads more than one token in a pass")
            raise UserError(f"compile=true and {name}= exclude each other: {name} {reason}; leave one out")
    if not cache:
        raise UserError("compile=true and cache=false exclude each other: a step without a cache grows; leave one out")


def check_device(device: str) -> None:
    """Raise UserError for a device that this machine does not have."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (":" in device and not number.isdecimal()):
        raise UserError(f"device={device}: expected cpu, cuda, or one of several such as cuda:1")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if int(number or 0) >= count:
        if not count:
            available = "no CUDA device"
        elif count == 1:
            available = f"1 {kind} device"
        else:
            available = f"{count} {kind} devices"
        raise UserError(f"device={device}: this machine has {available}; use device=cpu")
