"""`blockyard tokenize`: encode texts into shards of token ids."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from blockyard.commands._signature import command
from blockyard.commands._types import Allow, ConfigDirs, Folder, Keys, Switch, Text, Value, of_choices
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.contracts import TextTokenizer

Fraction = Annotated[float, Gt(0), Le(0.999999)]
_EVERY = 5.0  # seconds between two lines where standard error is no terminal


@command()
def tokenize(
    *paths: Annotated[str, Value("PATH")],
    out: Folder | None = None,
    tokenizer: Annotated[str, Value("NAME", values=of_choices("tokenizer"))] | None = None,
    options: Annotated[Mapping[str, str], Keys("tokenizer.")] | None = None,
    like: Folder | None = None,
    pattern: Text = "*.txt",
    validation_fraction: Fraction = 0.1,
    test_fraction: Fraction = 0.05,
    split_by: Literal["range", "document"] = "range",
    split_seed: Annotated[int, Ge(0)] = 0,
    shard_mb: Annotated[int, Ge(1), Le(16_384)] = 64,
    workers: Annotated[int, Ge(1), Le(1024)] | None = None,
    column: Annotated[Text, Value("NAME")] | None = None,
    force: Switch = False,
    allow: Allow = (),
    config_dirs: ConfigDirs = (),
) -> None:
    """Encode text files into shards of token ids, which `data=tokens data.path=FOLDER` reads at any size.

    A manifest records counts and hashes of texts and shards, and the tokenizer. A file appears when it is whole. Run
    the same command again after an interruption: finished shards are kept.

    Options:
        paths: a UTF-8 file; a folder whose files match pattern; or a table (.csv, .tsv, .jsonl, also .gz, .parquet,
            .arrow) whose texts are in column, each of which then ends with a line break
        out: the folder of the shards
        tokenizer: it learns from the training texts; by default bpe
        options: of the tokenizer
        like: take the tokenizer of these shards, so that both can be sources of one run
        pattern: of the names of files in a folder
        validation_fraction: of the texts
        test_fraction: of the texts
        split_by: the splits are those of data=text_file, by range of the running text or by whole files
        split_seed: of whole files
        shard_mb: megabytes of text that a process encodes at a time
        workers: processes; by default one for each CPU core
        column: of texts, in a table
        force: write finished shards again, too
        allow: packages of your own that the tokenizer is from

    Examples:
        blockyard tokenize corpus/ out=data/tokens tokenizer=bpe tokenizer.vocab_size=8192
        blockyard tokenize reviews.jsonl.gz column=text out=data/reviews
        blockyard tokenize more/ out=data/more like=data/tokens
    """
    if not paths:
        raise UserError("tokenize needs a PATH: a text file, or a folder of them")
    if out is None:
        raise UserError("tokenize needs out=FOLDER")
    if workers is None and hasattr(os, "sched_getaffinity"):
        workers = len(os.sched_getaffinity(0))  # a cluster's job may use fewer cores than the machine has
    elif workers is None:
        workers = os.cpu_count() or 1
    from blockyard.runs.lock import RunLock
    from blockyard.token_shards import tokenize as shards
    from blockyard.token_shards.plan import Cutting
    from blockyard.token_shards.text_files import find_files, remove_texts, without_tables

    folder = local_path(out, "out")
    cutting = Cutting(
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        split_by=split_by,
        split_seed=split_seed,
        shard_mb=shard_mb,
    )
    files = find_files([Path(path).expanduser() for path in paths], pattern)
    source = None if like is None else local_path(like, "like")
    chosen = []
    if tokenizer is not None:
        chosen.append(f"tokenizer={tokenizer}")
    chosen += [f"tokenizer.{key}={value}" for key, value in (options or {}).items()]
    encoder, vocabulary = _tokenizer(chosen, allow, config_dirs, source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder).acquire()
    try:
        if force and folder.exists():
            shards.clear(folder)
        texts = without_tables(files, folder, column)
        manifest = shards.tokenize(
            *(texts, folder, encoder, cutting),
            vocabulary=vocabulary,
            workers=workers,
            like=source,
            progress=_Progress(),
        )
        remove_texts(folder)
    finally:
        lock.release()
    for split, part in manifest["splits"].items():
        per = part["bytes"] / max(part["tokens"], 1)
        sys.stdout.write(
            f"{split:<11}{part['tokens']:>15,} tokens {len(part['shards']):>6,} shards {per:>7.2f} bytes a token\n"
        )
    sys.stdout.write(f"{folder}: {manifest['vocabulary']:,} token ids as {manifest['dtype']}\n")


def _tokenizer(
    chosen: list[str], packages: Sequence[str], config_dirs: Sequence[str], like: Path | None
) -> tuple[TextTokenizer, Callable[[], int]]:
    """Return the tokenizer of overrides or of other shards, and a function that returns the number of its token ids."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose
    from blockyard.config.instantiate import instantiate
    from blockyard.config.override_grammar import to_override
    from blockyard.config.untrusted.targets import allow_of
    from blockyard.contracts import DataSpec, TextTokenizer
    from blockyard.data.files.token_shards import read_manifest

    if like is not None:
        if chosen:
            raise UserError(f"like={like} brings its tokenizer; leave out {chosen[0]}")
        record = read_manifest(like).get("tokenizer")
        if not record:
            raise UserError(f"like={like} is not a folder that `blockyard tokenize` has finished")
        name = record["target"].split(".")[-2]
        chosen = [f"tokenizer={name}"]
        for key, value in record["options"].items():
            chosen.append(to_override(f"tokenizer.{key}", value))
    elif not any(text.startswith("tokenizer=") for text in chosen):
        chosen = ["tokenizer=bpe", *chosen]
    overrides = ["data=text_file", "model=decoder", "head=token", "objective=next_token", *chosen]
    if packages:
        overrides.append(f"allow=[{','.join(packages)}]")
    composed = compose(overrides, config_dirs)
    problems = [str(issue) for issue in check(composed) if "tokenizer" in issue.key or "allow" in issue.key]
    if problems:
        raise UserError("\n  - ".join(problems))
    tokenizer = instantiate(composed.config["tokenizer"], allow_of(composed.config))
    if not isinstance(tokenizer, TextTokenizer) or tokenizer.reads_ids:
        raise UserError(f"tokenizer={composed.choices['tokenizer']} does not encode texts; `blockyard list tokenizer`")
    return tokenizer, lambda: tokenizer.spec(DataSpec("text", (1,))).vocabulary or 0


class _Progress:
    """Prints the progress of the shards: on a terminal in one line, else a line every few seconds."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.last = -_EVERY
        self.before = -1  # bytes that an earlier start wrote; -1 until the first call

    def __call__(self, shards: int, of_shards: int, written: int, total: int) -> None:
        """Print the shards, the bytes of text, the bytes a second and the time left."""
        now = time.monotonic()
        live = sys.stderr.isatty()
        if self.before < 0:
            self.before = written
        ended = shards == of_shards
        if not live and not ended and now - self.last < _EVERY:
            return
        self.last = now
        rate = (written - self.before) / max(now - self.start, 1e-6)
        size = f"{written / 1e6:,.1f} of {total / 1e6:,.1f} MB"
        text = f"{shards}/{of_shards} shards, {size}, {rate / 1e6:,.1f} MB/s"
        if rate and not ended:
            text += f", {(total - written) / rate:,.0f} s left"
        if live:
            text = f"\r{text:<78}"  # the spaces cover a longer line before it
        if ended or not live:
            text += "\n"
        sys.stderr.write(text)
        sys.stderr.flush()
