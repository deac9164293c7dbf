"""`blockyard inspect restore`: the input, what the model makes of it, and the true values."""

from __future__ import annotations

from pathlib import Path

from blockyard.inspect.figures.restore_figure import draw_restorations
from blockyard.inspect.options import Options
from blockyard.inspect.restoration import Restoration, restorations
from blockyard.inspect.result import InspectionResult
from blockyard.runs.load import Loaded


def restore_view(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns the restoration of each selected sample."""
    samples = restorations(loaded, options)
    names = tuple(samples[0].baselines)
    return InspectionResult(
        numbers={
            "samples": [
                {"index": sample.index, "hidden": _share(sample), "mse": sample.mse, "baselines": sample.baselines}
                for sample in samples
            ]
        },
        columns=("validation sample", "hidden", "mse", *(f"mse of {name}" for name in names)),
        rows=[_row(sample) for sample in samples],
        figures=draw_restorations(samples, folder),
        summary="mse: of the values that the model predicts, as the objective computes it",
    )


def _row(sample: Restoration) -> tuple[str, ...]:
    errors = (sample.mse, *sample.baselines.values())
    return (str(sample.index), f"{_share(sample):.0%}", *(f"{error:.4g}" for error in errors))


def _share(sample: Restoration) -> float:
    return float(sample.hidden.float().mean())
