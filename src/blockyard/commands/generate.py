"""blockyard generate run=RUN prompt=TEXT | prompts=FILE | source=TEXT | sources=FILE [key=value ...]

Generate text with a run's model: what follows a prompt, or the answer to a source where the run has an encoder.
prompt= and source= may be repeated and a FILE holds one a line; all sequences are then generated as one batch.
Text streams to standard output; speed and cache size go to standard error.

  max_tokens=200      tokens to generate at most
  temperature=0.8     0 takes the most likely token each time
  top_k=40            sample from the k most likely tokens; 0: from all
  top_p=0.9           sample from the most likely tokens with this total probability
  seed=0              of the sampling
  beam=4              beam search with so many hypotheses; length_penalty=1.0
  cache=false         run the whole sequence again for each token
  device=cuda         default: cpu
  which=last          the checkpoint: best, last or previous
  outputs=FOLDER      where runs lie
  allow=[PACKAGE]     trust a package of your own that the run uses

Example:
  blockyard generate run=last prompt="def " max_tokens=200 temperature=0.8 top_k=40
"""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.commands._args import CHECKPOINTS, Args, read, require_run
from blockyard.config.option_text import Reader, boolean, integer, non_empty, number, one_of
from blockyard.errors import UserError

OPTIONS: dict[str, Reader] = {
    "max_tokens": integer(1),
    "temperature": number(),
    "top_k": integer(),
    "top_p": number(0, 1, exclusive=True),
    "seed": integer(),
    "beam": integer(1),
    "length_penalty": number(),
    "cache": boolean,
    "device": non_empty,
    "which": one_of(*CHECKPOINTS),
}
TEXTS = ("prompt", "prompts", "source", "sources")


def run(arguments: Sequence[str]) -> int:
    """Stream the text to standard output, statistics to standard error."""
    args = read("generate", arguments)
    name, prompts, sources = args.pop("run"), _texts(args, "prompt"), _texts(args, "source")
    settings = {key: args.pop(key, None, reader) for key, reader in OPTIONS.items()}
    outputs, allow = args.pop("outputs", "outputs"), args.pop_allow()
    args.check_empty("generate", ("run", *TEXTS, *OPTIONS, "outputs", "allow"))
    name = require_run(name, "generate")
    if prompts is None and sources is None:
        raise UserError('generate needs prompt=TEXT, such as prompt="def ", or source=TEXT for a run with an encoder')
    chosen = {key: value for key, value in settings.items() if value is not None}
    from blockyard.generate.api import stream_to_terminal

    stream_to_terminal(name, prompts or [""], sources=sources, **chosen, outputs=outputs, allow=allow)
    return 0


def _texts(args: Args, key: str) -> list[str] | None:
    """Every `key=TEXT`, or the lines of `keys=FILE`; None where neither is there."""
    texts, path = args.pop_all(key), args.pop(f"{key}s")
    if path is None:
        return texts or None
    if texts:
        raise UserError(f"{key}= and {key}s= exclude each other; leave one of them out")
    from blockyard.generate.request import read_lines

    return read_lines(f"{key}s", path)
