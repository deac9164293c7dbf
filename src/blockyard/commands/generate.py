"""blockyard generate run=RUN prompt=TEXT | prompts=FILE | source=TEXT|FILE | sources=FILE | images=N [key=value ...]

Generate text with a run's model: what follows a prompt, or the answer to a source where the run has an encoder.
prompt= and source= may be repeated and a FILE holds one a line; all sequences are then generated as one batch.
A source is a text, or the name of an image or a sound where the run reads those: source=FILE.png, source=FILE.wav.
Text streams to standard output; speed and cache size go to standard error.

  max_tokens=200      tokens to generate at most
  temperature=0.8     0 takes the most likely token each time
  top_k=40            sample from the k most likely tokens; 0: from all
  top_p=0.9           sample from the most likely tokens with this total probability
  seed=0              of the sampling
  beam=4              beam search with so many hypotheses; length_penalty=1.0
  draft=RUN           speculative decoding: a smaller run of the same tokenizer proposes tokens, of which each pass of
                      the model accepts a beginning; the distribution of the text stays the same.
                      ngram: what followed the last tokens earlier in the text is proposed
  draft_tokens=4      proposed in each pass
  suffix=TEXT         of a run of objective=masked_diffusion: what stands behind the text that is written
  steps=20            of such a run: passes in which the text is filled in; default one for each token
  order=confidence    of such a run: the most likely tokens first; default random
  cache=false         run the whole sequence again for each token
  compile=true        compile the step that reads one token: takes seconds to minutes, then each token is faster
  device=cuda         default: cpu
  which=last          the checkpoint: best, last or previous; best@ema for an average
  outputs=FOLDER      where runs lie
  allow=[PACKAGE]     trust a package of your own that the run uses

images=N draws N images with a run on tokens of images and writes them as one PNG file. Temperature is then 1, and all
tokens may be drawn, unless top_k or top_p say otherwise. A run that draws what a source asks for takes source= or
sources= and draws a row of N images for each, by default one; what the judge of its data reads in them is printed.
A run that writes sounds writes one for each source, as out=FILE.wav, of several FILE-1.wav and so on, or as samples.wav
in its folder; judge=RUN, of objective=ctc, prints what is heard in them.

  class=3             draw images of one class; otherwise all classes in turn (tokenizer.condition=class)
  given=4             complete test images from their first 4 rows of tokens
  judge=RUN           print the share of images that this run of objective=classify reads as the class asked for
  nearest=true        print how near the images are to the nearest training image
  out=FILE.png        instead of samples.png in the run's folder, which the page of compare shows

Examples:
  blockyard generate run=last prompt="def " max_tokens=200 temperature=0.8 top_k=40
  blockyard generate run=last images=20 seed=1
  blockyard generate run=canvas_drawings source="a red 3 left of a blue 7" images=4
  blockyard generate run=tones_speak source=123A out=dial.wav
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blockyard.commands._args import Args, checkpoint, read, run_of
from blockyard.config.option_text import Reader, boolean, integer, non_empty, number
from blockyard.errors import UserError, printable

if TYPE_CHECKING:
    from pathlib import Path

    from blockyard.runs.folder import RunFolder

OPTIONS: dict[str, Reader] = {
    "max_tokens": integer(1),
    "temperature": number(),
    "top_k": integer(),
    "top_p": number(0, 1, exclusive=True),
    "seed": integer(),
    "beam": integer(1),
    "length_penalty": number(),
    "draft": non_empty,
    "draft_tokens": integer(1, 64),
    "suffix": non_empty,
    "steps": integer(1),
    "order": non_empty,
    "cache": boolean,
    "compile": boolean,
    "device": non_empty,
    "which": checkpoint,
}
IMAGES: dict[str, Reader] = {
    "images": integer(1, 1024),
    "class": integer(),
    "given": integer(1),
    "judge": non_empty,
    "nearest": boolean,
    "out": non_empty,
}
TEXT_ONLY = ("compile", "max_tokens", "beam", "length_penalty", "draft", "draft_tokens", "suffix", "steps", "order")
TEXTS = ("prompt", "prompts", "source", "sources")
KEYS = ("run", *TEXTS, *OPTIONS, *IMAGES, "outputs", "allow")


def run(arguments: Sequence[str]) -> int:
    """Stream the text to standard output, statistics to standard error."""
    args = read("generate", arguments)
    name, prompts, sources = args.pop("run"), _texts(args, "prompt"), _texts(args, "source")
    settings = {key: args.pop(key, None, reader) for key, reader in OPTIONS.items()}
    outputs, allow = args.pop("outputs", "outputs"), args.pop_allow()
    images = {key: args.pop(key, None, reader) for key, reader in IMAGES.items()}
    args.check_empty("generate", KEYS)
    chosen = {key: value for key, value in settings.items() if value is not None}
    if "compile" in chosen:
        chosen["compiled"] = chosen.pop("compile")
    chosen_images = {key: value for key, value in images.items() if value is not None}
    if sources is not None:
        from blockyard.generate.codes import writes_codes

        folder = run_of(name, "generate", outputs)
        suffix = writes_codes(folder, allow)
        if suffix is not None:
            unused = ("class", "given", "nearest", "judge" if suffix == ".png" else "images")
            others = {key: images[key] for key in unused}
            others |= {"prompt": prompts, **{key: settings[key] for key in TEXT_ONLY}}
            refuse_with(
                "source", others, reason=f"of {folder.name}, which {'draws' if suffix == '.png' else 'writes sounds'}"
            )
            return draw_sources(folder, sources, suffix, chosen_images, **chosen, outputs=outputs, allow=allow)
    if "images" in chosen_images:
        refuse_with("images", {"prompt": prompts, "source": sources, **{key: settings[key] for key in TEXT_ONLY}})
        return draw(run_of(name, "generate", outputs), chosen_images, **chosen, outputs=outputs, allow=allow)
    refuse_with("images", chosen_images, needed=True)
    if prompts is None and sources is None:
        raise UserError(
            'generate needs prompt=TEXT, such as prompt="def ", source=TEXT|FILE for a run with a source, or images=16 '
            "for a run on images"
        )
    run = folder if sources is not None else run_of(name, "generate", outputs)
    from blockyard.generate.api import stream_to_terminal

    stream_to_terminal(run, prompts or [""], sources=sources, **chosen, outputs=outputs, allow=allow)
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


def draw(name: str | RunFolder, images: dict[str, Any], **settings: Any) -> int:
    """Draw images, write them, and print where they are, what they cost, and what was asked about them."""
    from blockyard.generate.images import generate_images, write_grid
    from blockyard.generate.judge import distances, read_by
    from blockyard.runs.load import load

    out = out_path(images, ".png")
    judge = None
    if "judge" in images:
        judge = load(images["judge"], outputs=settings["outputs"], allow=settings["allow"])
    result = generate_images(
        name, images["images"], label=images.get("class"), given=images.get("given", 0), **settings
    )
    lines = [] if judge is None else [str(read_by(judge, result))]
    lines += [str(distances(result))] if images.get("nearest") else []
    path = result.loaded.folder.path / "samples.png" if out is None else out
    try:
        write_grid(result, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; out=FILE.png sets another file") from error
    sys.stderr.write(f"{result.stats}\n")
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, path]))
    return 0


def draw_sources(run: RunFolder, sources: Sequence[str], suffix: str, images: dict[str, Any], **settings: Any) -> int:
    """Write images, a row for each source, or sounds, and print what is read or heard in them."""
    from blockyard.generate.codes import generate_outputs, write_outputs

    out = out_path(images, suffix)
    result = generate_outputs(run, sources, images.get("images", 1), judge=images.get("judge"), **settings)
    path = run.path / f"samples{suffix}" if out is None else out
    try:
        paths = write_outputs(result, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; out=FILE{suffix} sets another file") from error
    sys.stderr.write(f"{result.stats}\n")
    for source, readings in zip(result.sources, result.readings or (), strict=False):
        sys.stdout.write(printable(f"{source}: read as {', '.join(readings)}\n"))
    sys.stdout.write("".join(f"{written}\n" for written in paths))
    return 0


def out_path(options: dict[str, Any], suffix: str) -> Path | None:
    """The file of `out`, None without one. Raises UserError for another kind of file."""
    from blockyard.config.untrusted.local_path import local_path

    out = None if "out" not in options else local_path(options["out"], "out")
    if out is not None and (out.suffix.lower() != suffix or out.is_dir()):
        kind = suffix[1:].upper()
        raise UserError(f"out={options['out']}: expected the name of a {kind} file, such as samples{suffix}")
    return out


def refuse_with(option: str, others: Mapping[str, object], *, needed: bool = False, reason: str = "") -> None:
    """Raise UserError for one of `others` that has a value, which has no effect with, or without, an option.

    reason: behind the option, where only some runs have no use for it
    """
    for name, value in others.items():
        if value is not None:
            where = f"{option}= {reason}" if reason else f"{option}="
            problem = f"needs {option}=16" if needed else f"has no effect with {where}; leave one of them out"
            raise UserError(f"{name}= {problem}")
