"""`blockyard import`: take a checkpoint of transformers or timm."""

from __future__ import annotations

import sys
from typing import Annotated

from blockyard.commands._signature import command
from blockyard.commands._types import ConfigDirs, Folder, Value, group_overrides, of_choices
from blockyard.config.option_text import non_empty
from blockyard.errors import fold
from blockyard.runs.weights_file import WEIGHTS


@command()
def import_checkpoint(
    path: Annotated[str, Value("FOLDER|FILE")],
    *overrides: Annotated[str, Value("key=value", values=group_overrides, everything="overrides")],
    out: Folder,
    as_: Annotated[str, Value("PRESET", non_empty, of_choices("preset"))] | None = None,
    timm: Annotated[str, Value("NAME", non_empty)] | None = None,
    config_dirs: ConfigDirs = (),
) -> None:
    """Read a checkpoint of transformers or timm and write it as a folder of ours, under the names of our weights.

    A setting that the preset cannot express is refused by its name, and files that may hold code are not read.

    With data that has the model's sizes the folder is a run for `eval`, `predict`, `generate` and `blockyard.load`: any
    text and the folder's own tokenizer.json for a model of text, and what overrides say for any other
    (data=image_folder data.root=photos data.size=224). Otherwise it holds weights for init.from alone.

    Options:
        path: a folder with config.json and model.safetensors, as `save_pretrained` and timm's hub write them; or a file
            of weights, FILE.safetensors, without a config
        overrides: the data, and what else the config does not say
        out: a new folder
        as: the preset, where the config does not say which
        timm: the name of the model, of a file of weights without a config

    Examples:
        blockyard import checkpoints/gpt2 out=imported/gpt2
        blockyard import checkpoints/vit.safetensors timm=vit_tiny_patch16_224 out=imported/vit
        blockyard import checkpoints/gpt2 out=imported/bytes data=code data.context=1024 tokenizer=byte
    """
    from blockyard.weights.convert.importing import import_weights

    imported = import_weights(
        path, out, preset=as_, timm=timm, overrides=list(overrides), config_dirs=list(config_dirs)
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
