"""`blockyard inspect`: look inside a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, Allow, Keys, Outputs, Run, Switch, Value, Which, find_run
from blockyard.errors import UserError, did_you_mean
from blockyard.inspect.options import KEYS, KINDS
from blockyard.inspect.options import options as options_of


@command()
def inspect(
    *kinds: Annotated[str, Value("KIND", values=tuple(KINDS))],
    run: Run,
    which: Which = "best",
    out: Annotated[str, Value("FOLDER")] | None = None,
    log: Switch | None = None,
    outputs: Outputs = OUTPUTS,
    allow: Allow = (),
    options: Annotated[Mapping[str, str], Keys("", tuple(KEYS))] | None = None,
) -> None:
    """Look inside a trained model.

    Figures (PNG) and numbers (JSON) are written to RUN/inspect/, and the figures are sent to the run's logger as well.
    A short table of each kind is printed.

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
    sample=0         first validation sample          samples=4      how many are averaged, or drawn (neither of
                                                                     circuits, memory, positions)
    prompt=TEXT      a text instead of samples        query=mean     whose attention: mean, class, last, or an index
                     (attention, masking, mixing)
    of=mixer|block   what mixing differentiates       probes=16      random directions a token; 0 is exact (mixing)
    vocabulary=TEXT  tokens of the circuits; default: keys=0,5-7     keys of each layer (memory); default: the
                     the most frequent of 64 samples                 strongest few
    examples=5       training tokens of each key      train_samples=256  training samples searched (memory)
                     (memory)
    permute=patches  a random order, or a shift by one place (equivariance)

    An option applies to every kind that is named; a kind that does not have it refuses it.

    Options:
        out: instead of RUN/inspect
        log: send the figures to the run's logger; default for a run in `outputs`

    Examples:
        blockyard inspect run=last attention layers=0-1 sample=3
    """
    names = tuple(dict.fromkeys(kinds))
    unknown = next((kind for kind in names if kind not in KINDS), None)
    if unknown is not None or not names:
        problem = f"{unknown}: unknown kind{did_you_mean(unknown, KINDS)} " if unknown else "inspect needs a kind "
        raise UserError(f"{problem}(kinds: {', '.join(KINDS)})")
    if out is not None and (not out or (Path(out).exists() and not Path(out).is_dir())):
        raise UserError(f"out={out}: expected a folder")
    chosen = options_of(names, options or {})
    folder = find_run(run, outputs)
    from blockyard.inspect import run as inspection

    inspection.inspect(folder, names, chosen, which=which, out=out, log=log, outputs=outputs, allow=allow)
