"""Images or sounds that a model with a source writes as codes: the loop of texts, and the outputs of the codes.

source   a red 3 left of a blue 7
codes    START 4 4 17 ... 4        all tokens of an output, or those before an end token
output   an image
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import CodeTokenizer, ImageTokenizer, Memory, Model, ReadsOutputs, SoundTokenizer
from blockyard.data.files.sounds import write_wav
from blockyard.errors import UserError
from blockyard.generate.decode import collected, decode_batch
from blockyard.generate.draft import Run
from blockyard.generate.images import load_to_draw, write_rows
from blockyard.generate.judge import check_hears, heard_by
from blockyard.generate.request import check_learned, encode_sources
from blockyard.generate.sampling import samplers
from blockyard.generate.stats import Stats
from blockyard.model._cache import select_sequences
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, components_of, load, splits_of

PNG = ".png"
WAV = ".wav"


@dataclass(frozen=True)
class GeneratedOutputs:
    """The images or sounds that a run wrote for sources.

    outputs: several for each source: images uint8 (C, height, width), or sounds
    readings: a judge's reading of each; None without a judge
    """

    sources: list[str]
    outputs: list[list[Tensor]]
    readings: list[list[str]] | None
    stats: Stats
    loaded: Loaded


def writes_codes(folder: RunFolder, allow: tuple[str, ...] | list[str] = ()) -> str | None:
    """Return the suffix of files of the images or sounds that a run writes from a source; None if it writes neither.

    Raises UserError if its config cannot be read.
    """
    components = components_of(folder, allow)
    if not isinstance(components.tokenizer, CodeTokenizer) or components.data.spec.source is None:
        return None
    if isinstance(components.tokenizer, SoundTokenizer):
        return WAV
    return PNG


def generate_outputs(
    run: Run,
    sources: Sequence[str],
    count: int = 1,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    judge: str | None = None,
    cache: bool = True,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    device: str = "cpu",
) -> GeneratedOutputs:
    """Write `count` images or sounds for each source. Output i of all uses seed + i.

    sources: texts, or names of files if the run's encoder reads images or sounds
    temperature, top_k, top_p, seed, cache, device: as in `generate_all`; all tokens may be drawn by default
    judge: a run of objective=ctc that hears the sounds

    Raises UserError for a run that writes texts or takes no source, and for a source that it cannot read.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    loaded = load_to_draw(run, sampling, which=which, outputs=outputs, device=device, allow=allow)
    tokenizer = loaded.tokenizer
    tokens = loaded.model.ctx.tokens
    if not isinstance(tokenizer, CodeTokenizer) or loaded.data.spec.source is None:
        raise UserError(f"{loaded.folder.name} writes no images or sounds from a source")
    check_learned(loaded, partial(tokenizer.decode, torch.zeros(1, tokens.max_len, dtype=torch.int64)))
    hears = None
    if judge is not None:
        if not isinstance(tokenizer, SoundTokenizer):
            raise UserError(f"judge={judge} hears sounds, and {loaded.folder.name} writes images; leave it out")
        hears = load(judge, outputs=outputs, device=device, allow=allow)
        check_hears(hears, tokenizer.rate)
    # A source is encoded once for all of its outputs.
    source_of_output = torch.arange(len(sources)).repeat_interleave(count)
    memory = select_sequences(encode_sources(loaded, list(sources)), source_of_output)
    total = len(sources) * count
    choose = samplers(total, temperature, top_k, top_p, seed)
    stats = Stats(prompt_tokens=total)
    token_ids = write_codes(loaded.model, memory, choose, stats=stats, cache=cache)
    written = outputs_of(tokenizer, token_ids)
    readings = _readings(loaded, written) if hears is None else heard_by(hears, written)
    readings_of_sources = None
    if readings is not None:
        readings_of_sources = [readings[first : first + count] for first in range(0, total, count)]
    return GeneratedOutputs(
        sources=list(sources),
        outputs=[written[first : first + count] for first in range(0, total, count)],
        readings=readings_of_sources,
        stats=stats,
        loaded=loaded,
    )


def write_outputs(result: GeneratedOutputs, path: Path) -> list[Path]:
    """Write images as one PNG file, a row for each source, or each sound as a WAV file; return the paths.

    Several sounds have their numbers behind the name, x-1.wav and so on. Raises UserError for other outputs.
    """
    tokenizer = result.loaded.tokenizer
    if isinstance(tokenizer, ImageTokenizer):
        return [write_rows(result.outputs, tokenizer.levels, path)]
    if not isinstance(tokenizer, SoundTokenizer):
        raise UserError(f"{result.loaded.folder.name} writes {result.loaded.data.spec.things}, which no file can hold")
    sounds = list(chain.from_iterable(result.outputs))
    paths = [path]
    if len(sounds) > 1:
        paths = [path.with_stem(f"{path.stem}-{number}") for number in range(1, len(sounds) + 1)]
    for file, sound in zip(paths, sounds, strict=True):
        write_wav(file, sound, tokenizer.rate)
    return paths


def _readings(loaded: Loaded, written: Sequence[Tensor]) -> list[str] | None:
    """Return the readings of outputs by the judge of the run's data; None without a judge."""
    if loaded.data.missing():
        return None
    split = splits_of(loaded).test
    if isinstance(split, ReadsOutputs):
        return split.read(written)
    return None


def write_codes(
    model: Model,
    memory: Memory,
    choose: Sequence[Callable[[Tensor], int]],
    *,
    stats: Stats,
    cache: bool = True,
) -> list[list[int]]:
    """Return the token ids of an output for each sequence of `memory`, without start and end token.

    choose: from scores (V,) to a token id, one for each sequence
    """
    tokens = model.ctx.tokens
    assert tokens.start is not None, "a tokenizer of data with a source names its start token"
    steps = decode_batch(
        model,
        [[tokens.start]] * len(choose),
        choose,
        max_tokens=tokens.max_len,
        cache=cache,
        stats=stats,
        memory=memory,
        end=tokens.end,
    )
    return collected(steps, len(choose))


def outputs_of(tokenizer: CodeTokenizer, token_ids: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the image or sound of each sequence of token ids."""
    lengths = set(map(len, token_ids))
    # The sounds of a batch are as long as the longest, and a code that ends early would go on in silence.
    if len(lengths) == 1 and not isinstance(tokenizer, SoundTokenizer):
        return list(tokenizer.decode(torch.tensor(token_ids)))
    outputs = []
    for sequence in token_ids:
        decoded = tokenizer.decode(torch.tensor([sequence], dtype=torch.int64))  # a batch of one
        outputs.append(decoded[0])
    return outputs
