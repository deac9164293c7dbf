"""blockyard export run=RUN to=FOLDER format=safetensors|hf|timm|pt2|onnx [as=PRESET] [license=ID]
       [which=best|last|previous] [outputs=FOLDER] [allow=[PACKAGE]]

Write the weights of a run into a new folder, for us or for other programs. Nothing is pickled.

  safetensors  model.safetensors under our names, with the config: for `blockyard.load` and init.from
  hf           config.json, model.safetensors, the tokenizer and a model card: for `from_pretrained` of transformers
  timm         config.json, model.safetensors: for `timm.create_model(NAME, checkpoint_path=...)`
  pt2          the computation, by `torch.export`: for `torch.export.load`
  onnx         the computation as ONNX, compared with the model by ONNX's own evaluator (extra onnx)

With hf and timm a run whose blocks no class of the library has is refused, with the settings that differ. as= tries
the class of one preset only. license= is what the card of format hf states for the weights, by the hub's name, such as
apache-2.0; without it, the card says that none is stated.

Examples:
  blockyard export run=last to=exported/gpt format=hf license=apache-2.0
  blockyard export run=last to=exported/vit format=onnx which=last
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial

from blockyard.commands._args import CHECKPOINTS, read, run_of
from blockyard.config.option_text import non_empty, one_of
from blockyard.errors import UserError

FORMATS = ("safetensors", "hf", "timm", "pt2", "onnx")
KEYS = ("run", "to", "format", "as", "license", "which", "outputs", "allow")


def run(arguments: Sequence[str]) -> int:
    """Write the folder, and print how it is read."""
    args = read("export", arguments)
    name, to, preset = args.pop("run"), args.pop("to", None, non_empty), args.pop("as", None, non_empty)
    kind = args.pop("format", None, one_of(*FORMATS))
    licence = args.pop("license", None, _licence)
    settings = {
        "which": args.pop("which", "best", one_of(*CHECKPOINTS)),
        "outputs": args.pop("outputs", "outputs"),
        "allow": args.pop_allow(),
    }
    args.check_empty("export", KEYS)
    name = run_of(name, "export", settings["outputs"])
    if to is None:
        raise UserError("export needs to=FOLDER, a new folder")
    if kind is None:
        raise UserError(f"export needs format=, one of {', '.join(FORMATS)}")
    if preset is not None and kind not in ("hf", "timm"):
        raise UserError(f"as={preset} has an effect with format=hf and format=timm only; leave it out")
    if licence is not None and kind != "hf":
        raise UserError(f"license={licence} has an effect with format=hf only; leave it out")
    from blockyard.report.home.hub_card import hub_card
    from blockyard.runs.load import load
    from blockyard.weights.convert.exporting import export_weights

    card = partial(hub_card, licence=licence)
    exported = export_weights(load(name, **settings), to, kind=kind, preset=preset, card=card)
    sys.stdout.write("".join(f"{line}\n" for line in [exported.folder, *exported.lines]))
    return 0


def _licence(text: str) -> str:
    """Return the name of a licence. Raises ValueError for what cannot be one of the hub's."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", text):
        raise ValueError("a licence by the hub's name, such as apache-2.0, mit, cc-by-4.0 or other")
    return text
