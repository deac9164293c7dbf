"""Options of submitit and sbatch, and the errors by which they refuse jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from blockyard.errors import UserError


def import_submitit() -> Any:
    """Return the module. Raises UserError where it is not installed."""
    try:
        import submitit
    except ImportError as error:
        raise UserError(
            "executor=slurm needs submitit: pip install 'blockyard[slurm]', or use executor=local"
        ) from error
    return submitit


def job_parameters(
    cluster: str, timeout_min: int, mem_gb: float | None, signal_delay_s: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the parameters for submitit's executor. options: more parameters, of SLURM alone"""
    if timeout_min * 60 <= signal_delay_s:
        raise ValueError(
            f"executor.signal_delay_s={signal_delay_s} must be shorter than executor.timeout_min={timeout_min}"
        )
    parameters = {"timeout_min": timeout_min, "mem_gb": mem_gb, "name": "blockyard"}
    if cluster == "slurm":
        options = {"signal_delay_s": signal_delay_s, **options}
        parameters |= {f"slurm_{name}": value for name, value in options.items()}
    return {name: value for name, value in parameters.items() if value is not None}


def no_gpu(partition: str | None) -> str:
    """Return why a cell on a GPU is refused."""
    where = f"partition {partition}" if partition else "the default partition"
    return f"trainer.accelerator=gpu: {where} of SLURM has no GPU; use executor.partition=NAME, or trainer=cpu"


def sbatch_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return sbatch options, each written `key=value` or as a bare flag. Jobs may be requeued unless they forbid it."""
    options: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.removeprefix("--").partition("=")
        options[key] = value if sign else True
    if "no-requeue" not in options:
        options.setdefault("requeue", True)
    return options


@contextlib.contextmanager
def submitit_errors(key: str) -> Iterator[None]:
    """Raise UserError for an error of submitit or sbatch inside the block.

    key: the config key that the message names
    """
    try:
        yield
    except UserError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        text = " ".join(str(error).split())[:300]
        # submitit looks for srun to see whether there is a SLURM.
        hint = "; executor.cluster=local runs the same jobs on this machine" if "srun" in str(error) else ""
        raise UserError(f"{key}: submitit refused the jobs: {text}{hint}") from error
