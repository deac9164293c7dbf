"""blockyard tokenize PATH... out=FOLDER [tokenizer=NAME] [tokenizer.OPTION=VALUE ...] [like=FOLDER] [pattern=*.txt]
       [validation_fraction=0.1] [test_fraction=0.05] [split_by=range|document] [split_seed=0] [shard_mb=64]
       [workers=N] [column=NAME] [force=true] [allow=[PACKAGE]] [--config-dir DIR]

Encode text files into shards of token ids, which `data=tokens data.path=FOLDER` reads from the disk at any size.

A PATH is a UTF-8 file, or a folder whose files match pattern=, or a table (.csv, .tsv, .jsonl, also .gz, .parquet,
.arrow) whose texts are in column=, each of which then ends with a line break. The splits are those of data=text_file:
by range of the running text, or whole files with split_by=document. The tokenizer (by default bpe) learns from the
training texts; like=FOLDER takes the one of other shards, so that both can be sources of one run. A manifest records
counts and hashes of texts and shards, and the tokenizer.

Each of the workers= processes (by default one for each CPU core) encodes shard_mb= megabytes of text at a time. A file
appears when it is whole. Run the same command again after an interruption: finished shards are kept. force=true writes
all of them again.

Examples:
  blockyard tokenize corpus/ out=data/tokens tokenizer=bpe tokenizer.vocab_size=8192
  blockyard tokenize reviews.jsonl.gz column=text out=data/reviews
  blockyard tokenize more/ out=data/more like=data/tokens
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.commands._args import Args, read
from blockyard.config.option_text import boolean, integer, non_empty, number, one_of
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.contracts import TextTokenizer

KEYS = (
    *("out", "tokenizer", "like", "pattern", "validation_fraction", "test_fraction", "split_by", "split_seed"),
    *("shard_mb", "workers", "column", "force", "allow"),
)
_EVERY = 5.0  # seconds between two lines where standard error is no terminal


def run(arguments: Sequence[str]) -> int:
    """Write the shards and print what they hold."""
    args = read("tokenize", arguments)
    out, like = args.pop("out", None, non_empty), args.pop("like", None, non_empty)
    pattern = args.pop("pattern", "*.txt", non_empty)
    fraction = number(0.0, 0.999999, exclusive=True)
    cut = {
        "validation_fraction": args.pop("validation_fraction", 0.1, fraction),
        "test_fraction": args.pop("test_fraction", 0.05, fraction),
        "split_by": args.pop("split_by", "range", one_of("range", "document")),
        "split_seed": args.pop("split_seed", 0, integer(0)),
        "shard_mb": args.pop("shard_mb", 64, integer(1, 16_384)),
    }
    column = args.pop("column", None, non_empty)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers, force = args.pop("workers", cores, integer(1, 1024)), args.pop("force", False, boolean)
    own = ("tokenizer=", "tokenizer.", "allow=")
    chosen = [text for text in args.overrides if text.startswith(own)]
    args.overrides = [text for text in args.overrides if not text.startswith(own)]
    paths = args.pop_names()
    args.check_empty("tokenize", KEYS)
    if not paths or out is None:
        raise UserError("tokenize needs " + ("out=FOLDER" if paths else "a PATH: a text file, or a folder of them"))
    from blockyard.runs.lock import RunLock
    from blockyard.token_shards.plan import Cutting
    from blockyard.token_shards.text_files import find_files, remove_texts, without_tables
    from blockyard.token_shards.tokenize import clear, tokenize

    folder = local_path(out, "out")
    cutting = Cutting(**cut)
    files = find_files([Path(path).expanduser() for path in paths], pattern)
    source = None if like is None else local_path(like, "like")
    tokenizer, vocabulary = _tokenizer(args, chosen, source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder).acquire()
    try:
        if force and folder.exists():
            clear(folder)
        texts = without_tables(files, folder, column)
        manifest = tokenize(
            *(texts, folder, tokenizer, cutting),
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
    return 0


def _tokenizer(args: Args, chosen: list[str], like: Path | None) -> tuple[TextTokenizer, Callable[[], int]]:
    """The tokenizer of the command line, or that of other shards; and the number of its token ids, once it is known."""
    from blockyard.config.check import check
    from blockyard.config.compose import compose
    from blockyard.config.instantiate import instantiate
    from blockyard.config.override_grammar import to_override
    from blockyard.config.untrusted.targets import allow_of
    from blockyard.contracts import DataSpec, TextTokenizer
    from blockyard.data.files.token_shards import read_manifest

    allow = [text for text in chosen if text.startswith("allow=")]
    if like is not None:
        if len(chosen) > len(allow):
            raise UserError(f"like={like} brings its tokenizer; leave out {chosen[0]}")
        record = read_manifest(like).get("tokenizer")
        if not record:
            raise UserError(f"like={like} is not a folder that `blockyard tokenize` has finished")
        name = record["target"].split(".")[-2]
        own = [to_override(f"tokenizer.{key}", value) for key, value in record["options"].items()]
        chosen = [*allow, f"tokenizer={name}", *own]
    elif not any(text.startswith("tokenizer=") for text in chosen):
        chosen = ["tokenizer=bpe", *chosen]
    composed = compose(
        ["data=text_file", "model=decoder", "head=token", "objective=next_token", *chosen], args.config_dirs
    )
    problems = [str(issue) for issue in check(composed) if "tokenizer" in issue.key or "allow" in issue.key]
    if problems:
        raise UserError("\n  - ".join(problems))
    tokenizer = instantiate(composed.config["tokenizer"], allow_of(composed.config))
    if not isinstance(tokenizer, TextTokenizer) or tokenizer.reads_ids:
        raise UserError(f"tokenizer={composed.choices['tokenizer']} does not encode texts; `blockyard list tokenizer`")
    return tokenizer, lambda: tokenizer.spec(DataSpec("text", (1,))).vocabulary or 0


class _Progress:
    """Prints how far the shards are: on a terminal in one line, else a line every few seconds."""

    def __init__(self) -> None:
        self.start, self.last, self.before = time.monotonic(), -_EVERY, -1

    def __call__(self, shards: int, of_shards: int, written: int, total: int) -> None:
        """Print shards and bytes of text, how fast the latter were encoded, and the time left."""
        now, live = time.monotonic(), sys.stderr.isatty()
        self.before = written if self.before < 0 else self.before  # of an earlier start
        ended = shards == of_shards
        if not live and not ended and now - self.last < _EVERY:
            return
        self.last = now
        rate = (written - self.before) / max(now - self.start, 1e-6)
        left = f", {(total - written) / rate:,.0f} s left" if rate and not ended else ""
        text = (
            f"{shards}/{of_shards} shards, {written / 1e6:,.1f} of {total / 1e6:,.1f} MB, {rate / 1e6:,.1f} MB/s{left}"
        )
        sys.stderr.write(f"\r{text:<78}" + "\n" * ended if live else f"{text}\n")
        sys.stderr.flush()
