"""`blockyard export`: write the weights of a run for other programs."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Annotated, Literal

from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, Allow, Folder, Outputs, Run, Value, find_run, of_choices
from blockyard.config.option_text import non_empty
from blockyard.errors import UserError


def _licence(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", text):
        raise ValueError("a licence by the hub's name, such as apache-2.0, mit, cc-by-4.0 or other")
    return text


def _repository(text: str) -> str:
    if not re.fullmatch(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", text, re.ASCII):
        raise ValueError("a repository of the hub, such as USER/NAME")
    return text


@command()
def export(
    *,
    run: Run,
    to: Folder,
    format_: Literal["safetensors", "hf", "peft", "timm", "pt2", "onnx"],
    as_: Annotated[str, Value("PRESET", non_empty, of_choices("preset"))] | None = None,
    license_: Annotated[str, Value("ID", _licence)] | None = None,
    push: Annotated[str, Value("USER/NAME", _repository)] | None = None,
    which: Literal["best", "last", "previous"] = "best",
    outputs: Outputs = OUTPUTS,
    allow: Allow = (),
) -> None:
    """Write the weights of a run into a new folder, for us or for other programs. Nothing is pickled.

      safetensors  model.safetensors under our names, with the config: for `blockyard.load` and init.from
      hf           config.json, model.safetensors, the tokenizer and a model card: for `from_pretrained` of transformers
      peft         adapter_config.json, adapter_model.safetensors, of a run with init.lora: for `PeftModel` of peft
      timm         config.json, model.safetensors: for `timm.create_model(NAME, checkpoint_path=...)`
      pt2          the computation, by `torch.export`: for `torch.export.load`
      onnx         the computation as ONNX, compared with the model by ONNX's own evaluator (extra onnx)

    With hf, peft and timm a run whose blocks no class of the library has is refused, with the settings that differ.

    Options:
        to: a new folder
        format: what is written, see above
        as: try the class of this preset only, with hf, peft and timm
        license: what the model card of hf states for the weights, by the hub's name, such as apache-2.0; without it,
            the card says that none is stated
        push: send the folder to this repository of the Hugging Face hub too; a new repository is private
        which: the checkpoint

    Examples:
        blockyard export run=last to=exported/gpt format=hf license=apache-2.0
        blockyard export run=last to=exported/vit format=onnx which=last
    """
    folder = find_run(run, outputs)
    if as_ is not None and format_ not in ("hf", "peft", "timm"):
        raise UserError(f"as={as_} has an effect with format=hf, format=peft and format=timm only; leave it out")
    if license_ is not None and format_ != "hf":
        raise UserError(f"license={license_} has an effect with format=hf only; leave it out")
    from blockyard.report.home.hub_card import hub_card
    from blockyard.runs.load import load
    from blockyard.weights.convert.exporting import export_weights
    from blockyard.weights.library.hub import push_folder, require_token

    if push is not None:
        require_token(push)

    card = partial(hub_card, licence=license_)
    loaded = load(folder, which=which, outputs=outputs, allow=allow)
    exported = export_weights(loaded, to, kind=format_, preset=as_, card=card)
    sys.stdout.write("".join(f"{line}\n" for line in [exported.folder, *exported.lines]))
    if push is not None:
        sys.stdout.write(f"pushed to {push_folder(exported.folder, push)}\n")
