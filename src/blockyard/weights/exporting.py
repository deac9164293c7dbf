"""`blockyard export format=safetensors|hf|timm`: a run's weights in a folder that others read. Nothing is pickled.

safetensors   model.safetensors under our names, config.yaml, run.json: `blockyard.load`, `init.from`
hf            config.json, model.safetensors, the tokenizer's two files: `from_pretrained` of transformers' classes
timm          config.json, model.safetensors: `timm.create_model(NAME, checkpoint_path=..., **model_args)`
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from blockyard.atomic_files import new_folder, write_json, write_text, write_yaml
from blockyard.config.untrusted.local_path import local_path
from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RUN, SOURCE_TOKENIZER, TOKENIZER
from blockyard.runs.identity import identity
from blockyard.runs.load import Loaded
from blockyard.runs.provenance import provenance
from blockyard.runs.redact import redact
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.graphs import write_onnx, write_pt2
from blockyard.weights.convert.importing import FACTS as IMPORT
from blockyard.weights.convert.matching import match
from blockyard.weights.convert.rules import convert_back
from blockyard.weights.convert.source import CONFIG as THEIR_CONFIG
from blockyard.weights.convert.source import plain
from blockyard.weights.convert.timm_models import arguments_of, describe
from blockyard.weights.lora import merge

# The class of transformers that finds the architecture in config.json, by the end of the architecture's name; the other
# architectures are loaded by their own name.
AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "WhisperForConditionalGeneration": "AutoModelForSpeechSeq2Seq",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForCTC": "AutoModelForCTC",
}
TOKENIZER_CONFIG, CARD = "tokenizer_config.json", "README.md"


@dataclass(frozen=True)
class Exported:
    """What an export wrote. lines: how it is read, and what is not in it."""

    folder: Path
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LibraryModel:
    """What was written as a model of transformers.

    auto: the Auto class that loads it with its head; the architecture itself where there is none
    remarks: what is not as a user of the library expects, a sentence each
    """

    model_type: str
    architecture: str
    auto: str
    has_tokenizer: bool
    remarks: tuple[str, ...] = ()


def export_weights(
    loaded: Loaded,
    to: str | Path,
    *,
    kind: str,
    preset: str | None = None,
    card: Callable[[Loaded, LibraryModel], str] | None = None,
) -> Exported:
    """Write a run's weights in one of the formats, whole or not at all.

    kind: safetensors, hf, timm, pt2 or onnx
    preset: the converter of format hf or timm; None takes the one that fits
    card: returns the content of README.md, of format hf

    Raises UserError for a folder that is not empty, and for a model that no class of the library is like.
    """
    writers: dict[str, Callable[[Loaded, Path], list[str]]] = {
        "safetensors": _safetensors,
        "hf": partial(_transformers, preset=preset, card=card),
        "timm": partial(_timm, preset=preset),
        "pt2": write_pt2,
        "onnx": write_onnx,
    }
    if merge(loaded.model):  # what LoRA added is put into the weights; the model is then one without additions
        loaded = replace(loaded, config={key: node for key, node in loaded.config.items() if key != "init"})
    folder = local_path(str(to), "to").absolute()
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"to={to}: it exists; choose another folder")
    with new_folder(folder) as temporary:
        lines = writers[kind](loaded, temporary)
    return Exported(folder, [line.replace(str(temporary), str(folder)) for line in lines])


def trained(loaded: Loaded) -> Trained:
    """A loaded run as converters read it."""
    ctx: Any = loaded.model.ctx
    return Trained(loaded.config, ctx, loaded.model.state_dict())


def _safetensors(loaded: Loaded, folder: Path) -> list[str]:
    write_weights(folder / WEIGHTS, loaded.model.state_dict())
    write_yaml(folder / CONFIG, redact(loaded.config))
    facts = loaded.folder.facts()
    kept = {key: facts[key] for key in ("identity", "choices", "data") if key in facts}
    if loaded.config is not loaded.folder.config:
        kept["identity"] = identity(loaded.config)
    of = {"run": loaded.folder.name, "checkpoint": loaded.checkpoint.name, "step": loaded.step}
    write_json(folder / RUN, {**provenance(), **kept, "resumes": [], "export": of}, checked=True)
    write_tokenizers(loaded, folder)
    return [f"blockyard.load('{folder}')", f"blockyard train ... init.from={folder / WEIGHTS}"]


def write_tokenizers(loaded: Loaded, folder: Path) -> None:
    """Write what the tokenizers of a run learned."""
    own = loaded.components.source_tokenizer is not loaded.components.tokenizer
    named = {TOKENIZER: loaded.tokenizer, **({SOURCE_TOKENIZER: loaded.components.source_tokenizer} if own else {})}
    for name, tokenizer in named.items():
        if state := tokenizer.state():
            write_json(folder / name, state, checked=True)


def _transformers(
    loaded: Loaded, folder: Path, preset: str | None, card: Callable[[Loaded, LibraryModel], str] | None
) -> list[str]:
    run = trained(loaded)
    matched = match(run, "transformers", preset, near=_preset(loaded))
    weights = convert_back(matched.foreign.rules, run.weights)
    name = matched.config.get("architectures", [matched.converter.architecture])[0]
    config: dict[str, Any] = {
        "model_type": matched.converter.model_type,
        "architectures": [name],
        "dtype": "float32",
    } | matched.config
    if "id2label" in config and (labels := run.ctx.data.class_names):
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    write_text(folder / THEIR_CONFIG, plain(config))
    write_weights(folder / WEIGHTS, weights)
    has_tokenizer, remarks = _tokenizer(loaded, folder, first=config.get("cls_token_id"))
    auto = next((auto for end, auto in AUTO.items() if name.endswith(end)), name)
    if card is not None:
        model = LibraryModel(matched.converter.model_type, name, auto, has_tokenizer, tuple(remarks))
        write_text(folder / CARD, card(loaded, model))
    lines = [f"transformers.{loader}.from_pretrained('{folder}')" for loader in dict.fromkeys((auto, name))]
    lines += [f"transformers.AutoTokenizer.from_pretrained('{folder}')"] if has_tokenizer else []
    return [*lines, *remarks]


def _tokenizer(loaded: Loaded, folder: Path, first: int | None) -> tuple[bool, list[str]]:
    """Write what `AutoTokenizer` reads; whether there is any, and what to know of it.

    first: the token id in front of every text that the class expects, if any
    """
    tokenizer, tokens = loaded.tokenizer, loaded.model.ctx.tokens
    kind = type(tokenizer).__name__
    theirs = tokenizer.to_tokenizers() if isinstance(tokenizer, TextTokenizer) else None
    if theirs is None:
        return False, [f"without a tokenizer: {kind} is none of the library's; token ids are those of the run's own"]
    from tokenizers import AddedToken, processors

    remarks: list[str] = []
    names: dict[str, str] = {}
    special = {"bos_token": tokens.start, "eos_token": tokens.end, "mask_token": tokens.mask}
    for role, token_id in sorted(((role, each) for role, each in special.items() if each is not None), key=_second):
        if token_id == theirs.get_vocab_size():
            name = f"<|{role.removesuffix('_token')}|>"
            theirs.add_special_tokens([AddedToken(name, special=True, normalized=False)])
        named = theirs.id_to_token(token_id)
        if named is None or theirs.token_to_id(named) != token_id:
            remarks.append(f"{role} has no text: its id, {token_id}, is beyond those of the tokenizer's file")
            continue
        names[role] = named
        remarks.append(f"{role} is {named}: wherever a text holds that, it is read as the token id {token_id}")
    if first is not None:
        lead = theirs.id_to_token(first)
        theirs.post_processor = processors.TemplateProcessing(f"{lead} $A", special_tokens=[(lead, first)])
        remarks.append(f"in front of a text stands the token id {first}, where the run has its class token")
    elif theirs.num_special_tokens_to_add(False):
        if (loaded.folder.path / IMPORT).is_file():
            remarks.append("the imported tokenizer puts its special tokens around a text, as blockyard does not")
        else:
            theirs.post_processor = None
            remarks.append(
                "the special tokens that the tokenizer's file puts around a text are left out, as in the run"
            )
    if loaded.components.source_tokenizer is not tokenizer:
        source = type(loaded.components.source_tokenizer).__name__
        remarks.append(f"the tokenizer is that of the texts that are written; {source}, of the source, is not here")
    theirs.save(str(folder / TOKENIZER))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # without it, transformers takes the architecture's own rules
        "clean_up_tokenization_spaces": False,
        "model_max_length": tokens.max_len + (first is not None),
        **names,
    }
    write_text(folder / TOKENIZER_CONFIG, plain(config))
    return True, remarks


def _second(pair: tuple[str, int]) -> int:
    return pair[1]


def _timm(loaded: Loaded, folder: Path, preset: str | None) -> list[str]:
    run = trained(loaded)
    matched = match(run, "timm", preset, near=_preset(loaded))
    name, arguments = arguments_of(matched.converter.preset, matched.config)
    _, sizes = describe(name, arguments)
    other = {key: value for key, value in sizes.items() if matched.config.get(key, value) != value}
    if other:
        raise UserError(f"{name} of timm has {', '.join(f'{k}={v}' for k, v in other.items())}, the run has not")
    write_weights(folder / WEIGHTS, convert_back(matched.foreign.rules, run.weights))
    config = {"architecture": name, "num_classes": run.ctx.outputs, "model_args": arguments}
    config["timm_version"] = importlib.metadata.version("timm")
    write_text(folder / THEIR_CONFIG, plain(config))
    return [f"timm.create_model({name!r}, checkpoint_path='{folder / WEIGHTS}', **{_python(arguments)})"]


def _preset(loaded: Loaded) -> str | None:
    """The preset that a run was made of, as recorded."""
    choices = loaded.folder.facts().get("choices")
    return str(choices.get("preset")) if isinstance(choices, dict) else None


def _python(arguments: dict[str, Any]) -> str:
    return repr(arguments)
