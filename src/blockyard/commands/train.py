"""blockyard train [key=value ...] [resume=RUN] [-m] [--cfg job|hydra|all] [--config-dir DIR]

Train a run: compose, check, write the run folder, fit, test, summarise. Each run has a folder of
its own under outputs/, addressed by its config; a finished one is not trained twice unless
force=true. An interrupted one goes on where it stood, with the same words or with resume=RUN.

  resume=RUN        go on with a run: a path, an id, a unique part of its name, or `last`
  -m, --multirun    several values per key, each combination a run of its own
  --cfg job         print the composed config and stop
  match.params=N    solve model.dim (match.by: depth, expansion) for N parameters; match.flops=N for FLOPs
  --config-dir DIR  a folder of your own choices, beside the shipped ones

Examples:
  blockyard train experiment=vit_digits block=post_norm seed=1
  blockyard train -m block=pre_norm,post_norm seed=1,2,3
  blockyard train experiment=gpt_code trainer.max_steps=100 logger=none
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blockyard.commands._args import Args, read
from blockyard.errors import UserError

HYDRA = {"-m": 0, "--multirun": 0, "--cfg": 1, "-c": 1, "--resolve": 0, "--package": 1, "-p": 1, "--info": 1}


def run(arguments: Sequence[str]) -> int:
    """Train what the words say."""
    words = read(arguments, HYDRA)
    if words.flags:
        from blockyard.commands import _hydra

        return _hydra.multirun(words) if {"-m", "--multirun"} & set(words.flags) else _hydra.show(words)
    resumed = words.take("resume")
    return resume(resumed, words) if resumed is not None else start(words, arguments)


def start(words: Args, arguments: Sequence[str]) -> int:
    """A new run; or word that it is finished already, or going on where it was interrupted."""
    from blockyard.commands.check import judged
    from blockyard.config.size_matching import told
    from blockyard.errors import refuse
    from blockyard.runs.folder import AlreadyDone
    from blockyard.runs.rank import rank_in
    from blockyard.runs.start import create_run

    composed, problems = judged(words)
    if problems:
        return refuse(problems)
    try:
        folder = create_run(composed.config, command=["blockyard", "train", *arguments], choices=composed.choices)
    except AlreadyDone as done:
        sys.stdout.write(f"{done}\n")
        return 0
    if composed.matched and not rank_in(composed.config):
        sys.stdout.write(f"matched {told(composed.matched)}\n")
        folder.add_facts({"match": composed.matched})
    from blockyard.engine.run import fit

    return fit(folder, resume=folder.resumes)


def resume(name: str, words: Args) -> int:
    """Go on with a run, exactly where it stood."""
    from blockyard.runs.folder import AlreadyDone
    from blockyard.runs.resume import reopen

    if not name:
        raise UserError("resume=: names no run; a path, an id, part of a name, or last")
    words.folders()  # a folder that cannot be trusted is refused
    try:
        folder = reopen(name, words.overrides, config_dirs=words.config_dirs)
    except AlreadyDone as done:
        sys.stdout.write(f"{done}\n")
        return 0
    from blockyard.engine.run import fit

    return fit(folder, resume=True)
