"""`blockyard export`: a run's weights, or the whole computation of its model, in a folder that others read.

safetensors   model.safetensors under our names, config.yaml, run.json: `blockyard.load`, `init.from`
hf            config.json, model.safetensors, the tokenizer's two files: `from_pretrained` of transformers' classes
peft          adapter_config.json, adapter_model.safetensors: `peft.PeftModel.from_pretrained` over such a model
timm          config.json, model.safetensors: `timm.create_model(NAME, checkpoint_path=..., **model_args)`
pt2, onnx     the computation as a graph of torch.export or ONNX, for other programs

Weights are not pickled. A graph takes batches of any size, of full sequences of the run's data. A graph that cannot be
made (the format lacks an operation) is refused with the exporter's reason.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.atomic_files import new_folder, replacing, write_json, write_text, write_yaml
from blockyard.config.untrusted.local_path import local_path
from blockyard.contracts import Inputs, TextTokenizer
from blockyard.errors import UserError, first_line
from blockyard.model._example_batch import example as zeros
from blockyard.runs.folder import CONFIG, RUN, TOKENIZER, TOKENIZER_FILES
from blockyard.runs.identity import identity
from blockyard.runs.load import Loaded
from blockyard.runs.provenance import provenance
from blockyard.runs.redact import redact
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.weights.convert.adapter import write_adapter
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.importing import FACTS as IMPORT
from blockyard.weights.convert.matching import match
from blockyard.weights.convert.rules import convert_back
from blockyard.weights.convert.source import plain
from blockyard.weights.convert.timm_models import arguments_of, describe
from blockyard.weights.lora import merge
from blockyard.weights.sources import LIBRARY_CONFIG

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
PT2, ONNX, INPUTS = "model.pt2", "model.onnx", "inputs.json"
CLOSE = 1e-4  # of the largest prediction: the largest difference of ONNX's own evaluator
_EMBEDDED = 1 << 30  # bytes of weights that an ONNX file holds itself; protobuf's limit is twice that


@dataclass(frozen=True)
class Exported:
    """The result of an export. lines: for the user, how the folder is read, and the parts that it lacks"""

    folder: Path
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LibraryModel:
    """A model that was written for transformers.

    auto: the Auto class that loads it with its head; the architecture itself if there is none
    remarks: differences from a user's expectations, a sentence each
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

    kind: safetensors, hf, peft, timm, pt2 or onnx
    preset: the converter of format hf, peft or timm; None takes the one that fits
    card: returns the content of README.md, of format hf

    Raises UserError for a folder that is not empty, and for a model that no class of the library is like.
    """
    writers: dict[str, Callable[[Loaded, Path], list[str]]] = {
        "safetensors": _safetensors,
        "hf": partial(_transformers, preset=preset, card=card),
        "peft": partial(write_adapter, preset=preset, near=_preset(loaded)),
        "timm": partial(_timm, preset=preset),
        "pt2": write_pt2,
        "onnx": write_onnx,
    }
    loaded.folder.check_members()
    if kind != "peft" and merge(loaded.model):  # without LoRA's additions, the config must not name them
        loaded = replace(loaded, config={key: node for key, node in loaded.config.items() if key != "init"})
    folder = local_path(str(to), "to").absolute()
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"to={to}: it exists; choose another folder")
    with new_folder(folder) as temporary:
        lines = writers[kind](loaded, temporary)
    return Exported(folder, [line.replace(str(temporary), str(folder)) for line in lines])


def trained(loaded: Loaded) -> Trained:
    """Return a loaded run as input of converters."""
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
    """Write the states of a run's tokenizers."""
    for name, tokenizer in loaded.components.tokenizers.items():
        state = tokenizer.state()
        if state:
            write_json(folder / TOKENIZER_FILES[name], state, checked=True)


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
    labels = run.ctx.data.class_names
    if "id2label" in config and labels:
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    write_text(folder / LIBRARY_CONFIG, plain(config))
    write_weights(folder / WEIGHTS, weights)
    has_tokenizer, remarks = _tokenizer(loaded, folder, first=config.get("cls_token_id"))
    auto = next((auto for end, auto in AUTO.items() if name.endswith(end)), name)
    if card is not None:
        model = LibraryModel(matched.converter.model_type, name, auto, has_tokenizer, tuple(remarks))
        write_text(folder / CARD, card(loaded, model))
    lines = [f"transformers.{loader}.from_pretrained('{folder}')" for loader in dict.fromkeys((auto, name))]
    if has_tokenizer:
        lines.append(f"transformers.AutoTokenizer.from_pretrained('{folder}')")
    return [*lines, *remarks]


def _tokenizer(loaded: Loaded, folder: Path, first: int | None) -> tuple[bool, list[str]]:
    """Write the files of `AutoTokenizer`; return whether there are any, and remarks for the user.

    first: the token id in front of every text that the class expects, if any
    """
    tokenizer, tokens = loaded.tokenizer, loaded.model.ctx.tokens
    kind = type(tokenizer).__name__
    backend = tokenizer.to_tokenizers() if isinstance(tokenizer, TextTokenizer) else None
    if backend is None:
        return False, [f"without a tokenizer: {kind} is none of the library's; token ids are those of the run's own"]
    from tokenizers import AddedToken, processors

    remarks: list[str] = []
    names: dict[str, str] = {}
    special = {"bos_token": tokens.start, "eos_token": tokens.end, "mask_token": tokens.mask}
    in_use = {role: token_id for role, token_id in special.items() if token_id is not None}
    for role, token_id in sorted(in_use.items(), key=itemgetter(1)):
        if token_id == backend.get_vocab_size():
            name = f"<|{role.removesuffix('_token')}|>"
            backend.add_special_tokens([AddedToken(name, special=True, normalized=False)])
        named = backend.id_to_token(token_id)
        if named is None or backend.token_to_id(named) != token_id:
            remarks.append(f"{role} has no text: its id, {token_id}, is beyond those of the tokenizer's file")
            continue
        names[role] = named
        remarks.append(f"{role} is {named}: wherever a text holds that, it is read as the token id {token_id}")
    if first is not None:
        lead = backend.id_to_token(first)
        backend.post_processor = processors.TemplateProcessing(f"{lead} $A", special_tokens=[(lead, first)])
        remarks.append(f"in front of a text stands the token id {first}, where the run has its class token")
    elif backend.num_special_tokens_to_add(False):
        if (loaded.folder.path / IMPORT).is_file():
            remarks.append("the imported tokenizer puts its special tokens around a text, as blockyard does not")
        else:
            backend.post_processor = None
            remarks.append(
                "the special tokens that the tokenizer's file puts around a text are left out, as in the run"
            )
    if loaded.components.source_tokenizer is not tokenizer:
        source = type(loaded.components.source_tokenizer).__name__
        remarks.append(f"the tokenizer is that of the texts that are written; {source}, of the source, is not here")
    backend.save(str(folder / TOKENIZER))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # without it, transformers takes the architecture's own rules
        "clean_up_tokenization_spaces": False,
        "model_max_length": tokens.max_len + (first is not None),
        **names,
    }
    write_text(folder / TOKENIZER_CONFIG, plain(config))
    return True, remarks


def _timm(loaded: Loaded, folder: Path, preset: str | None) -> list[str]:
    run = trained(loaded)
    matched = match(run, "timm", preset, near=_preset(loaded))
    name, arguments = arguments_of(matched.converter.preset, matched.config)
    _, sizes = describe(name, arguments)
    other = {key: value for key, value in sizes.items() if matched.config.get(key, value) != value}
    if other:
        listed = ", ".join(f"{key}={value}" for key, value in other.items())
        raise UserError(f"{name} of timm has {listed}, the run has not")
    write_weights(folder / WEIGHTS, convert_back(matched.foreign.rules, run.weights))
    config = {"architecture": name, "num_classes": run.ctx.outputs, "model_args": arguments}
    config["timm_version"] = importlib.metadata.version("timm")
    write_text(folder / LIBRARY_CONFIG, plain(config))
    return [f"timm.create_model({name!r}, checkpoint_path='{folder / WEIGHTS}', **{arguments!r})"]


def _preset(loaded: Loaded) -> str | None:
    """Return the preset that a run records."""
    choices = loaded.folder.facts().get("choices")
    if isinstance(choices, dict):
        return str(choices.get("preset"))
    return None


def write_pt2(loaded: Loaded, folder: Path) -> list[str]:
    """Write `model.pt2` and the shapes of its inputs. Raises UserError for a model that cannot be traced."""
    inputs = graph_inputs(loaded)
    program = _traced(loaded, inputs)
    program.example_inputs = None  # they would be pickled
    content = io.BytesIO()  # torch's own writer of files ends the process if a disk is full
    try:
        torch.export.save(program, content)
    except Exception as error:  # torch.export raises errors of many types
        raise UserError(f"{loaded.folder.name} cannot be saved by torch.export: {first_line(error)}") from error
    with replacing(folder / PT2) as temporary:
        temporary.write_bytes(content.getbuffer())
    _describe(folder, inputs)
    return [f"torch.export.load('{folder / PT2}').module()(**inputs)", _shapes(inputs)]


def write_onnx(loaded: Loaded, folder: Path) -> list[str]:
    """Write `model.onnx`, and compare it with the model in ONNX's evaluator. Raises UserError if they differ."""
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch.onnx needs it
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise UserError("format=onnx needs the packages onnx and onnxscript: pip install blockyard[onnx]") from error
    inputs = graph_inputs(loaded)
    path = folder / ONNX
    size = sum(value.numel() * value.element_size() for value in loaded.model.state_dict().values())
    try:
        with _quiet(), torch.no_grad():
            expected = loaded.model(Inputs(**inputs))
            program = torch.onnx.export(_traced(loaded, inputs), dynamo=True, verbose=False)
            assert program is not None
            program.save(path, external_data=size > _EMBEDDED)
        onnx.checker.check_model(path)
    except (UserError, OSError):
        raise
    except Exception as error:  # the exporter raises errors of many types
        raise UserError(f"{loaded.folder.name} cannot be written as ONNX: {first_line(error)}") from error
    try:
        with _quiet():
            arrays = {name: value.numpy() for name, value in inputs.items()}
            outputs: Any = ReferenceEvaluator(str(path)).run(None, arrays)
    except Exception as error:  # the evaluator raises errors of many types
        raise UserError(f"ONNX's evaluator does not run {ONNX}: {first_line(error)}") from error
    apart = float((torch.from_numpy(outputs[0]) - expected).abs().max() / expected.abs().max().clamp_min(1e-9))
    if not apart <= CLOSE:  # also refuses NaN
        raise UserError(f"ONNX's evaluator differs from the model by {apart:.1e} of the largest prediction")
    _describe(folder, inputs)
    return [f"{folder / ONNX}: within {apart:.0e} of the model in ONNX's evaluator", _shapes(inputs)]


def graph_inputs(loaded: Loaded, batch: int = 2) -> dict[str, Any]:
    """Return the inputs of a graph by name: random full sequences of the run's data, from a fixed seed."""
    ctx: Any = loaded.model.ctx
    generator = torch.Generator().manual_seed(0)
    inputs = zeros(ctx, "cpu", batch).facts()
    for name, value in inputs.items():
        if value.is_floating_point():
            inputs[name] = torch.randn(value.shape, generator=generator)
        elif name in ("inputs", "source"):
            tokens = ctx.tokens if name == "inputs" else ctx.source_tokens
            high = tokens.vocabulary or min(tokens.codes or (2,))
            inputs[name] = torch.randint(high, value.shape, generator=generator)
    return inputs


def by_name(model: nn.Module) -> nn.Module:
    """Return a module over the weights of `model`, under their names, that takes the fields of `Inputs` by name.

    A graph is called by programs that have no `Inputs`.
    """

    class ByName(torch.nn.Module):
        def forward(self, **facts: Any) -> Tensor:
            prediction: Tensor = model(Inputs(**facts))
            return prediction

    names = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for fact in fields(Inputs):
        names.append(inspect.Parameter(fact.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None))
    ByName.forward.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]  # names the graph's inputs
    module = ByName()
    for state in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
        module.__dict__[state] = model.__dict__[state]
    return module


def _traced(loaded: Loaded, inputs: Mapping[str, Tensor]) -> Any:
    batch = torch.export.Dim("batch")
    shapes = {name: {0: batch} for name in inputs}
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(by_name(loaded.model), (), dict(inputs), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch.export raises errors of many types
        raise UserError(f"{loaded.folder.name} cannot be traced by torch.export: {first_line(error)}") from error


def _describe(folder: Path, inputs: Mapping[str, Tensor]) -> None:
    shapes = {name: {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype)} for name, value in inputs.items()}
    write_json(folder / INPUTS, shapes)


def _shapes(inputs: Mapping[str, Tensor]) -> str:
    listed = (f"{name} (batch, {', '.join(map(str, value.shape[1:]))})" for name, value in inputs.items())
    return f"inputs: {', '.join(listed).replace(', )', ')')}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes on its own passes."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
