"""`blockyard generate`: write texts, images and sounds with a run's model."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Le

from blockyard.commands._signature import command
from blockyard.commands._types import (
    OUTPUTS,
    REPEATED,
    Allow,
    Outputs,
    Run,
    Switch,
    Text,
    Value,
    Which,
    find_run,
    run_names,
)
from blockyard.errors import UserError, printable

if TYPE_CHECKING:
    from pathlib import Path

    from blockyard.runs.folder import RunFolder

Texts = Annotated[Sequence[str], Value("TEXT"), REPEATED]
Count = Annotated[int, Ge(1)]


@command()
def generate(
    *,
    run: Run,
    prompt: Texts | None = None,
    prompts: Annotated[str, Value("FILE")] | None = None,
    source: Texts | None = None,
    sources: Annotated[str, Value("FILE")] | None = None,
    max_tokens: Count | None = None,
    temperature: Annotated[float, Ge(0)] | None = None,
    top_k: Annotated[int, Ge(0)] | None = None,
    top_p: Annotated[float, Gt(0), Le(1)] | None = None,
    seed: Annotated[int, Ge(0)] | None = None,
    beam: Count | None = None,
    length_penalty: Annotated[float, Ge(0)] | None = None,
    draft: Annotated[Text, Value("RUN|ngram", values=lambda *typed: [*run_names(*typed), "ngram"])] | None = None,
    draft_tokens: Annotated[int, Ge(1), Le(64)] | None = None,
    suffix: Text | None = None,
    steps: Count | None = None,
    order: Annotated[Text, Value("random|confidence")] | None = None,
    cache: Switch | None = None,
    compile_: Switch | None = None,
    device: Annotated[Text, Value("DEVICE")] | None = None,
    which: Which | None = None,
    images: Annotated[int, Ge(1), Le(1024)] | None = None,
    class_: Annotated[int, Ge(0)] | None = None,
    given: Count | None = None,
    judge: Annotated[Run, Value(help="a run that reads the outputs")] | None = None,
    nearest: Switch | None = None,
    out: Annotated[Text, Value("FILE")] | None = None,
    outputs: Outputs = OUTPUTS,
    allow: Allow = (),
) -> None:
    """Generate text with a run's model: what follows a prompt, or the answer to a source where it has an encoder.

    prompt= and source= may be repeated and a file of prompts or sources holds one a line; all sequences are then
    generated as one batch. Text streams to standard output; speed and cache size go to standard error.

    With images, draws images with a run on tokens of images and writes them as one PNG file. Temperature is then 1, and
    all tokens may be drawn, unless top_k or top_p say otherwise. A run that draws what a source asks for takes source=
    or sources= and draws a row of images for each, by default one; what the judge of its data reads in them is printed.
    A run that writes sounds writes one for each source, as out=FILE.wav, of several FILE-1.wav and so on, or as
    samples.wav in its folder.

    Options:
        prompt: what the text begins with
        prompts: a file of prompts
        source: a text, or the name of an image or a sound where the run reads those: source=FILE.png, source=FILE.wav
        sources: a file of sources
        max_tokens: tokens to generate at most
        temperature: 0 takes the most likely token each time
        top_k: sample from the k most likely tokens; 0 from all
        top_p: sample from the most likely tokens with this total probability
        seed: of the sampling
        beam: beam search with so many hypotheses
        length_penalty: of the beam search, by default 1.0
        draft: speculative decoding: a smaller run of the same tokenizer proposes tokens, of which each pass of the
            model accepts a beginning; the distribution of the text stays the same. ngram proposes what followed the
            last tokens earlier in the text
        draft_tokens: proposed in each pass
        suffix: what stands behind the text that is written, with a run of objective=masked_diffusion
        steps: passes in which such a run fills in the text; by default one for each token
        order: in which such a run fills it in: the most likely tokens first, or by default random
        cache: false runs the whole sequence again for each token
        compile: compile the step that reads one token: takes seconds to minutes, then each token is faster
        device: where the model runs, by default cpu
        images: draw so many images
        class: draw images of one class; otherwise all classes in turn (tokenizer.condition=class)
        given: complete test images from their first so many rows of tokens
        judge: a run of objective=classify: print the share of images that it reads as the class asked for; or a run of
            objective=ctc: print what is heard in sounds
        nearest: print how near the images are to the nearest training image
        out: instead of samples.png or samples.wav in the run's folder, which the page of compare shows

    Examples:
        blockyard generate run=last prompt="def " max_tokens=200 temperature=0.8 top_k=40
        blockyard generate run=last images=20 seed=1
        blockyard generate run=canvas_drawings source="a red 3 left of a blue 7" images=4
        blockyard generate run=tones_speak source=123A out=dial.wav
    """
    prompt_texts, source_texts = _texts("prompt", prompt, prompts), _texts("source", source, sources)
    text_only = {
        "compile": compile_,
        "max_tokens": max_tokens,
        "beam": beam,
        "length_penalty": length_penalty,
        "draft": draft,
        "draft_tokens": draft_tokens,
        "suffix": suffix,
        "steps": steps,
        "order": order,
    }
    settings = {
        **text_only,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "cache": cache,
        "device": device,
        "which": which,
    }
    settings["compiled"] = settings.pop("compile")
    settings = {name: value for name, value in settings.items() if value is not None}
    of_images = {"images": images, "class": class_, "given": given, "judge": judge, "nearest": nearest, "out": out}
    drawing = {name: value for name, value in of_images.items() if value is not None}
    if source_texts is not None:
        from blockyard.generate.codes import writes_codes

        folder = find_run(run, outputs)
        suffix_of_codes = writes_codes(folder, allow)
        if suffix_of_codes is not None:
            writes_images = suffix_of_codes == ".png"
            unused = ("class", "given", "nearest", "judge" if writes_images else "images")
            others = {**{name: of_images[name] for name in unused}, "prompt": prompt_texts, **text_only}
            reason = f"of {folder.name}, which {'draws' if writes_images else 'writes sounds'}"
            refuse_with("source", others, reason=reason)
            draw_sources(folder, source_texts, suffix_of_codes, drawing, **settings, outputs=outputs, allow=allow)
            return
    if images is not None:
        refuse_with("images", {"prompt": prompt_texts, "source": source_texts, **text_only})
        draw(find_run(run, outputs), drawing, **settings, outputs=outputs, allow=allow)
        return
    refuse_with("images", drawing, needed=True)
    if prompt_texts is None and source_texts is None:
        raise UserError(
            'generate needs prompt=TEXT, such as prompt="def ", source=TEXT|FILE for a run with a source, or images=16 '
            "for a run on images"
        )
    if source_texts is None:
        folder = find_run(run, outputs)
    from blockyard.generate.api import stream_to_terminal

    stream_to_terminal(folder, prompt_texts or [""], sources=source_texts, **settings, outputs=outputs, allow=allow)


def _texts(key: str, texts: Sequence[str] | None, path: str | None) -> list[str] | None:
    """Return every `key=TEXT`, or the lines of `keys=FILE`; None where neither is given."""
    if path is None:
        return list(texts) if texts else None
    if texts:
        raise UserError(f"{key}= and {key}s= exclude each other; leave one of them out")
    from blockyard.generate.request import read_lines

    return read_lines(f"{key}s", path)


def draw(run: RunFolder, images: dict[str, Any], **settings: Any) -> None:
    """Draw images, write them, and print where they are, what they cost, and what was asked about them."""
    from blockyard.generate.images import generate_images, write_grid
    from blockyard.generate.judge import distances, read_by
    from blockyard.runs.load import load

    out = out_path(images, ".png")
    judge = None
    if "judge" in images:
        judge = load(images["judge"], outputs=settings["outputs"], allow=settings["allow"])
    result = generate_images(run, images["images"], label=images.get("class"), given=images.get("given", 0), **settings)
    lines = [] if judge is None else [str(read_by(judge, result))]
    lines += [str(distances(result))] if images.get("nearest") else []
    path = result.loaded.folder.path / "samples.png" if out is None else out
    try:
        write_grid(result, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; out=FILE.png sets another file") from error
    sys.stderr.write(f"{result.stats}\n")
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, path]))


def draw_sources(run: RunFolder, sources: Sequence[str], suffix: str, images: dict[str, Any], **settings: Any) -> None:
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
