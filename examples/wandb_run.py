"""A run and its comparison as a W&B user has them, recorded offline: no account and no network.

`wandb sync outputs/*/s0/wandb/offline-run-*` uploads what this writes.
"""

from __future__ import annotations

from pathlib import Path

import blockyard

run = blockyard.train(
    "experiment=vit_digits",
    "trainer=cpu",
    "trainer.max_steps=20",
    "model.depth=1",
    "logger=wandb",
    "logger.mode=offline",
    "logger.project=digits",
    "logger.artifacts=best",  # the weights with their config, and the fingerprint of the data that they came from
    "logger.predictions=16",  # a table of test samples with pictures
    "logger.watch=gradients",  # histograms wherever metrics are logged
)
model = blockyard.load(run.path / "wandb" / "artifacts" / "best").model  # what a download of the artifact holds
(record,) = run.path.glob("wandb/offline-run-*/*.wandb")
print(f"{sum(weights.numel() for weights in model.parameters()):,} weights; {Path(record).name} is ready to sync")
