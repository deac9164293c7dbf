"""blockyard inspect run=RUN KIND [KIND ...] [key=value ...]

Look inside a trained model. Figures (PNG) and numbers (JSON) are written to RUN/inspect/, and the figures are sent
to the run's logger as well.

  attention   attention weights of each layer and head, over the image or the tokens, and their entropy
  mixing      |dy_i/dx_j|: which token reads from which, for any mixer
  circuits    QK and OV circuits of attention heads: norms, spectra, copying scores
  restore     input, restoration and true values side by side, of a run of objective=restore
  positions   what the position scheme adds, rotates or scores by, position by position, and how alike positions are
  norms       norms of the tokens after each block, and the share that stands out, beside those of register tokens
  memory      for each key of an MLP or a memory the tokens of the training split with the largest coefficients
  experts     how many tokens each expert of a mixture is sent, layer by layer
  equivariance  |f(Px) - Pf(x)| after each block for tokens in another order P, with positions and without
  masking     what two wrong ways to mask causal attention would leak of later tokens, beside the right one

layers=0,2-3     which layers; default: all (not  heads=0,1      which heads (attention, circuits,
                 equivariance, norms, restore)                   masking, positions)
sample=0         first validation sample          samples=4      how many are averaged, or drawn (neither of circuits,
                                                 memory, positions)
prompt=TEXT      a text instead of samples        query=mean     whose attention: mean, class, last, or an index
                 (attention, masking, mixing)
of=mixer|block   what mixing differentiates       probes=16      random directions a token; 0 is exact (mixing)
vocabulary=TEXT  tokens of the circuits; default: which=best     the checkpoint: best, last, previous, best@ema
                 the most frequent of 64 samples
keys=0,5-7       keys of each layer (memory);     examples=5     training tokens of each key (memory)
                 default: the strongest few       train_samples=256  training samples searched (memory)
permute=patches  a random order, or a shift by
                 one place (equivariance)
out=FOLDER       instead of RUN/inspect           log=false      send nothing to the run's logger; default:
                                                                true for a run in `outputs`
outputs=FOLDER   where runs lie                   allow=[PACKAGE]  trust a package of your own that the run uses

An option applies to every kind that is named; a kind that does not have it refuses it.

Example:
  blockyard inspect run=last attention layers=0-1 sample=3
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blockyard.commands._args import checkpoint, read, run_of
from blockyard.config.option_text import boolean
from blockyard.errors import UserError, did_you_mean
from blockyard.inspect.options import KEYS as OF_KINDS
from blockyard.inspect.options import KINDS, options

KEYS = ("run", "which", "out", "log", "outputs", "allow", *OF_KINDS)


def run(arguments: Sequence[str]) -> int:
    """Write the figures and numbers, and print a short table for each kind."""
    args = read("inspect", arguments)
    kinds = tuple(dict.fromkeys(args.pop_names()))
    unknown = next((kind for kind in kinds if kind not in KINDS), None)
    if unknown is not None or not kinds:
        problem = f"{unknown}: unknown kind{did_you_mean(unknown, KINDS)} " if unknown else "inspect needs a kind "
        raise UserError(f"{problem}(kinds: {', '.join(KINDS)})")
    name, which = args.pop("run"), args.pop("which", "best", checkpoint)
    log, out = args.pop("log", None, boolean), args.pop("out")
    outputs, allow = args.pop("outputs", "outputs"), args.pop_allow()
    texts = {key: text for key in OF_KINDS if (text := args.pop(key)) is not None}
    args.check_empty("inspect", KEYS)
    if out is not None and (not out or (Path(out).exists() and not Path(out).is_dir())):
        raise UserError(f"out={out}: expected a folder")
    chosen = options(kinds, texts)
    run = run_of(name, "inspect", outputs)
    from blockyard.inspect.run import inspect

    inspect(run, kinds, chosen, which=which, out=out, log=log, outputs=outputs, allow=allow)
    return 0
