"""The peak of a device in FLOP/s, and the share of it that training takes: model FLOPs utilization (MFU).

Source: Chowdhery et al. 2022, PaLM (arXiv 2204.02311), appendix B, for the definition of MFU
Source: the data sheet that is named beside the peaks of a device

The peaks are those of dense matrices: a data sheet that has them with sparsity has twice as much. On GeForce cards they
are those of sums in float32, as torch computes them, half of those in float16.

`lightning.fabric.utilities.throughput` has a table of this kind. As of 2.6.6 it has peaks with sparsity for an H200, no
peak for a plain "NVIDIA H200", those of an L4 for an L40S, and those of float32 for bf16 on GeForce cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch


def _tensor_cores(half: float, tf32: float, fp32: float) -> dict[str, float]:
    """Return the peaks of a device that computes bf16 as fast as fp16."""
    return {"bf16": half, "fp16": half, "tf32": tf32, "fp32": fp32}


_H100_PCIE = _tensor_cores(756.0, 378.0, 51.2)  # NVIDIA H100 Tensor Core GPU data sheet
_A100 = _tensor_cores(312.0, 156.0, 19.5)  # NVIDIA A100 Tensor Core GPU data sheet
_V100_SXM2 = {"fp16": 125.0, "fp32": 15.7}  # NVIDIA V100 Tensor Core GPU data sheet
_V100_PCIE = {"fp16": 112.0, "fp32": 14.0}  # the same

# TFLOP/s by arithmetic, of each device by the name that torch has for it, without the maker.
PEAKS = {
    "H200": _tensor_cores(989.4, 494.7, 66.9),  # NVIDIA H200 Tensor Core GPU data sheet, SXM
    "H200 NVL": _tensor_cores(835.5, 417.7, 60.0),  # the same, NVL
    "H100 80GB HBM3": _tensor_cores(989.4, 494.7, 66.9),  # NVIDIA H100 Tensor Core GPU data sheet, SXM
    "H100 NVL": _tensor_cores(835.5, 417.7, 60.0),  # the same, NVL
    "H100 PCIe": _H100_PCIE,
    "H100 80GB HBM2e": _H100_PCIE,
    "A100-SXM4-40GB": _A100,
    "A100-SXM4-80GB": _A100,
    "A100-PCIE-40GB": _A100,
    "A100 80GB PCIe": _A100,
    "A40": _tensor_cores(149.7, 74.8, 37.4),  # NVIDIA A40 data sheet
    "A30": _tensor_cores(165.0, 82.0, 10.3),  # NVIDIA A30 data sheet
    "A10": _tensor_cores(125.0, 62.5, 31.2),  # NVIDIA A10 data sheet
    "L40S": _tensor_cores(362.05, 183.0, 91.6),  # NVIDIA L40S data sheet
    "L40": _tensor_cores(181.05, 90.5, 90.5),  # NVIDIA L40 data sheet
    "L4": _tensor_cores(121.0, 60.0, 30.3),  # NVIDIA L4 data sheet
    "GeForce RTX 4090": _tensor_cores(165.2, 82.6, 82.6),  # NVIDIA Ada GPU architecture, appendix A
    "GeForce RTX 4080": _tensor_cores(97.5, 48.7, 48.7),  # the same
    "GeForce RTX 3090": _tensor_cores(71.0, 35.6, 35.6),  # NVIDIA Ampere GA102 GPU architecture, appendix A
    "GeForce RTX 3080": _tensor_cores(59.5, 29.8, 29.8),  # the same
    "V100-SXM2-16GB": _V100_SXM2,
    "V100-SXM2-32GB": _V100_SXM2,
    "V100-PCIE-16GB": _V100_PCIE,
    "V100-PCIE-32GB": _V100_PCIE,
    "T4": {"fp16": 65.0, "fp32": 8.1},  # NVIDIA T4 Tensor Core GPU data sheet
}
_ARITHMETIC = {"bf16-mixed": "bf16", "16-mixed": "fp16"}
_STATED = "trainer.peak_flops"


class PeakRecord(TypedDict):
    """The peak of a run's devices as run.json has it.

    device: name of one of them; arithmetic: bf16, fp16, tf32 or fp32; flops: of one device, in FLOP/s, None where it is
    not known; why: where the peak is from, or why it is not known
    """

    device: str
    arithmetic: str
    flops: float | None
    why: str


def known_peak(name: str, arithmetic: str) -> float | None:
    """Return the dense peak in FLOP/s of the device that torch calls `name`; None where it is not known."""
    model = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    tflops = PEAKS.get(model, {}).get(arithmetic)
    if tflops is None:
        return None
    return tflops * 1e12


def peak_record(device: torch.device, precision: str, stated: float | None) -> PeakRecord | None:
    """Return the peak of a run on `device`; None on a CPU, unless it is stated.

    precision: as the run computes in, such as bf16-mixed; stated: FLOP/s of one device, as the user states them
    """
    import torch

    name = str(device)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    elif stated is None:
        return None
    arithmetic = arithmetic_of(precision)
    if stated is not None:
        return {"device": name, "arithmetic": arithmetic, "flops": stated, "why": _STATED}
    flops = known_peak(name, arithmetic)
    if flops is None:
        why = f"no peak of {name} in {arithmetic} is known here; state it as trainer.peak_flops, in FLOP/s"
        return {"device": name, "arithmetic": arithmetic, "flops": None, "why": why}
    return {"device": name, "arithmetic": arithmetic, "flops": flops, "why": "dense matrices, by its data sheet"}


def arithmetic_of(precision: str) -> str:
    """Return the arithmetic of the matmuls of a run: float32 is tf32 where torch may round the factors."""
    import torch

    if precision in _ARITHMETIC:
        return _ARITHMETIC[precision]
    if torch.get_float32_matmul_precision() == "highest":
        return "fp32"
    return "tf32"
