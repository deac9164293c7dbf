"""The weights that a run starts from: taken before the first step, and recorded. A resumed run has its checkpoint."""

from __future__ import annotations

import sys

from blockyard.atomic_files import read_json
from blockyard.engine import cost_card
from blockyard.engine.setup_data import RunSetup
from blockyard.engine.setup_model import BuiltModel
from blockyard.errors import printable
from blockyard.runs.folder import SOURCE_TOKENIZER, TOKENIZER
from blockyard.runs.rank import rank_of
from blockyard.weights import teacher
from blockyard.weights.continuation import plant


def go_on(run: RunSetup) -> bool:
    """Give a new run that goes on from a finished one the state in which that ended; whether this was done.

    Raises UserError where that state is not there any more.
    """
    init = run.components.init
    if init is None or init.parent is None or rank_of(run.options.devices) or _has_checkpoint(run):
        return False
    plant(run.folder, init.parent, init.parent_sha256)
    return True


def prepare_tokenizers(run: RunSetup, *, resume: bool) -> None:
    """Let tokenizers know the token ids that the weights, or a teacher's, were trained with, before data is read.

    Raises UserError where the source is not there any more, or has changed.
    """
    init, taught = run.components.init, run.components.objective.distillation is not None
    if init is None and not taught:
        return
    if not (resume and _has_checkpoint(run)):
        if init is not None:
            init.prepare_tokenizers(run.components)
        if taught:
            teacher.prepare_tokenizers(run.components)
        return
    components, folder = run.components, run.folder.path  # the source may be gone
    for tokenizer, name in ((components.tokenizer, TOKENIZER), (components.source_tokenizer, SOURCE_TOKENIZER)):
        if (folder / name).is_file():
            tokenizer.load_state(read_json(folder / name))


def take_weights(run: RunSetup, model: BuiltModel, *, rank: int, resume: bool) -> None:
    """Put the weights of the source into the model of a new run, print what was taken, and record it in run.json.

    Raises UserError where they do not fit, or are not those that the config names.
    """
    init, folder = run.components.init, run.folder
    if init is None:
        return
    begun = bool(folder.facts()["start"]["checkpoint"]) if rank else resume and _has_checkpoint(run)
    if begun:
        return
    transfer = init.load(run.components, model.model)
    if rank:
        return
    parameters = cost_card.parameters(model.model)
    facts = {"parameters": parameters}
    if transfer is not None:
        facts |= {"from": init.name, "which": init.which, "sha256": init.sha256, **transfer.plain()}
        sys.stderr.write(printable(f"init: from {init.name}: {transfer}\n"))
    if parameters["trainable"] < parameters["total"]:
        sys.stderr.write(f"init: {parameters['trainable']:,} of {parameters['total']:,} parameters are trained\n")
    folder.add_facts({"init": facts})


def _has_checkpoint(run: RunSetup) -> bool:
    return any(run.folder.checkpoints.glob("*.ckpt"))
