"""blockyard import FOLDER|FILE.safetensors out=FOLDER [as=PRESET] [timm=NAME] [OVERRIDE...]

Read a checkpoint of transformers or timm and write it as a folder of ours, under the names of our weights.

FOLDER holds config.json and model.safetensors, as `save_pretrained` and timm's hub write them. A FILE of weights
without a config needs the name of its model, timm=NAME. as= names the preset where the config does not say which.
A setting that the preset cannot express is refused by its name, and files that may hold code are not read.

With data that has the model's sizes the folder is a run for `eval`, `predict`, `generate` and `blockyard.load`: any
text and the folder's own tokenizer.json for a model of text, and what overrides say for any other
(data=image_folder data.root=photos data.size=224). Otherwise it holds weights for init.from alone.

Examples:
  blockyard import checkpoints/gpt2 out=imported/gpt2
  blockyard import checkpoints/vit.safetensors timm=vit_tiny_patch16_224 out=imported/vit
  blockyard import checkpoints/gpt2 out=imported/bytes data=code data.context=1024 tokenizer=byte
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blockyard.commands._args import read
from blockyard.config.option_text import non_empty
from blockyard.errors import UserError, fold
from blockyard.runs.weights_file import WEIGHTS

KEYS = ("out", "as", "timm")


def run(arguments: Sequence[str]) -> int:
    """Write the folder, and print what was taken and how it is used."""
    args = read("import", arguments)
    out, preset, timm = (args.pop(key, None, non_empty) for key in KEYS)
    sources = args.pop_names()
    if len(sources) != 1:
        raise UserError(f"import needs one folder or file, not {len(sources)}: {', '.join(sources) or 'none'}")
    if out is None:
        raise UserError("import needs out=FOLDER, a new folder")
    from blockyard.weights.convert.importing import import_weights

    imported = import_weights(
        sources[0], out, preset=preset, timm=timm, overrides=args.overrides, config_dirs=args.config_dirs
    )
    source = imported.source
    lines = [f"{imported.folder}: preset={source.converter.preset} from {source.name}"]
    lines += [f"sha256 {source.sha256[:16]} of {source.path}"]
    if imported.unread:
        lines.append(f"not read, because nothing of the run depends on it: {fold(imported.unread)}")
    if imported.missing:
        lines.append(f"not in it: {fold(imported.missing)}; {source.partly}")
    if imported.loads:
        lines.append(f"a run: blockyard eval run={imported.folder}, blockyard.load('{imported.folder}')")
    elif not source.partly:
        lines.append("no run: no data of its sizes is known; data=... makes it one")
    sizes = " ".join(source.foreign.overrides)
    lines.append(
        f"to train it: blockyard train preset={source.converter.preset} init.from={imported.folder / WEIGHTS} {sizes}"
    )
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
