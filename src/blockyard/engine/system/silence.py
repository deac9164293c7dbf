"""Silences notes and warnings of libraries that do not apply to blockyard."""

from __future__ import annotations

import logging
import os
import warnings


def silence_libraries() -> None:
    """Silence Lightning's notes, and warnings that do not hold for our training loop; errors are still shown.

    Call it after Lightning was imported, which sets its own levels.
    """
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "torch.distributed", "torch._dynamo"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("PL_DISABLE_TIPS", "1")
    for text in (
        ".*does not have many workers.*",
        ".*LeafSpec.*is deprecated.*",
        ".*isinstance\\(treespec.*",
        ".*pkg_resources.*",
        ".*The `srun` command is available.*",
        ".*GPU available but not used.*",
        ".*Precision 16-mixed is not supported.*",
        ".*module\\(s\\) in eval mode.*",
        ".*barrier\\(\\).*using the device under current context.*",
        ".*lr_scheduler.step.*",
        ".*TF32.*|.*set_float32_matmul_precision.*",
    ):
        warnings.filterwarnings("ignore", message=text)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*")
    warnings.filterwarnings("ignore", module="lightning_fabric.*")
