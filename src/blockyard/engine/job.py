"""One run in this process: train it, then judge it."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blockyard.config import build
from blockyard.contracts import Split, Splits
from blockyard.engine import cost_card
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.loader import Layout
from blockyard.engine.module import Learner
from blockyard.engine.system.interrupts import Interrupts, Left
from blockyard.engine.system.peak_memory import peak_memory
from blockyard.engine.system.processes import ALLOW, part
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.evaluate.decode_speed import decoding
from blockyard.evaluate.extrapolation_files import write
from blockyard.evaluate.length_extrapolation import Curve, extrapolate
from blockyard.evaluate.loop import evaluate
from blockyard.ops.autocast import autocast
from blockyard.runs.checkpoint import BEST, LAST, AtomicCheckpointIO, BadCheckpoint, read
from blockyard.runs.folder import RunFolder

log = logging.getLogger("blockyard")


@dataclass
class Job:
    """The parts of a run in this process. Made by `prepare`; `fit` trains, `summary` judges."""

    folder: RunFolder
    plan: build.Components
    options: TrainerPlan
    splits: Splits
    learner: Learner
    rhythm: LoopCallback
    layout: Layout
    device: torch.device
    precision: dict[str, Any]
    checkpoint: Path | None
    interrupts: Interrupts
    trainer: Any = None
    kernels: list[dict[str, Any]] | None = None
    fellow: str | None = None  # what became of another process that died

    @property
    def live(self) -> RunState:
        """The run as watchers see it."""
        return self.rhythm.live

    def fit(self) -> None:
        """Train to the end, or until told to stop. Afterwards this process is alone."""
        folder, options = self.folder, self.options
        self.trainer = options.build(
            total=self.live.total,
            precision=self.precision["precision"],
            device_type=self.device.type,
            callbacks=[self.rhythm],
            io=AtomicCheckpointIO(identity=folder.identity, seed=folder.seed),
            root=folder.path,
        )
        os.environ[ALLOW] = json.dumps(list(folder.config.get("allow") or []))
        failed = True
        try:
            self.trainer.fit(self.learner, ckpt_path=self.checkpoint)
            failed = False
        finally:
            self.fellow = part(self.trainer, failed=failed)
        self.interrupts.check()
        if self.live.leave:
            raise Left(self.live.leave)

    def begin(self) -> None:
        """With the model on its device, before the first step: which kernels will run."""
        self.learner.train()
        self.kernels = self._kernels(self.learner.model)
        slow = cost_card.slow_layers(self.kernels)
        if self.options.require_flash and slow:
            raise UserError(
                "trainer.require_flash=true, but " + "; ".join(slow) + "; choose what flash takes, "
                "or trainer.require_flash=false"
            )

    def _kernels(self, model: nn.Module) -> list[dict[str, Any]]:
        model.train()
        with autocast(self.device, self.precision["precision"]):
            return cost_card.kernels(model, self.plan.objective, self.splits.train, self.device)

    def measure(self, split: Split, model: nn.Module, limit: int | None, *, together: bool) -> dict[str, float]:
        """The objective's metrics over a split; `together` shares the work among the processes."""
        return evaluate(
            model,
            split,
            self.plan.objective,
            batch_size=self.plan.data.eval_batch_size,
            device=self.device,
            precision=self.precision["precision"],
            limit=limit,
            rank=self.layout.rank if together else 0,
            world=self.layout.world if together else 1,
            halt=self.interrupts.check if self.layout.world == 1 or not together else None,
        )

    def summary(self) -> dict[str, Any]:
        """The figures of the finished run, from the best weights; test data is looked at here only."""
        live, options = self.live, self.options
        model, name, step = self._best_model()
        validation = self._validation(model, step)
        test = self.measure(self.splits.test, model, options.limit_test, together=False)
        metrics = {f"val/{key}": value for key, value in validation.items()}
        metrics |= {f"test/{key}": value for key, value in test.items()}
        curves = self._longer_rows(model, name)
        metrics |= {key: value for curve in curves for key, value in curve.figures().items()}
        chosen = self.rhythm.checkpoint
        data = self.plan.data
        sample = cost_card.two_rows(self.splits.train, data.batch_size if data.spec.variable else 1).to(self.device)
        speed = cost_card.speed(self.rhythm.windows, live.batch_size, live.tokens)
        return {
            "metrics": metrics,
            "directions": self._directions(),
            **({"refused": {k: why for curve in curves for k, why in curve.refused().items()}} if curves else {}),
            "monitor": list(live.monitor),
            "weights": name,
            "final": {"step": live.step, **self.rhythm.last_values},
            "best": {"step": chosen.best_step, **chosen.best_metrics},
            "stopped": live.stop,
            "steps": live.step,
            "epochs": live.step / live.steps_per_epoch,
            "samples": live.step * live.batch_size,
            "tokens": live.step * live.batch_size * live.tokens,
            "seconds": round(live.seconds, 3),
            "seconds_to_first_step": self.rhythm.first_step_seconds,
            "parameters": cost_card.parameters(model),
            "flops_per_sample": cost_card.flops_per_sample(model, self.plan.objective, sample),
            **speed,
            **decoding(model),
            "peak_memory": peak_memory(self.device),
            "kernels": self.kernels or self._kernels(model),
            "precision": self.precision,
            "device": str(self.device) if self.device.type == "cpu" else torch.cuda.get_device_name(self.device),
            "processes": self.layout.world,
            "threads": torch.get_num_threads(),
            "load": cost_card.load(),
            "data": {"fingerprint": self.plan.data.fingerprint(), **sizes(self.splits)},
        }

    def _directions(self) -> dict[str, str]:
        """Which way each metric is better, under its full name."""
        found = {"train/loss": "min"}
        for prefix, split in (("val", self.splits.validation), ("test", self.splits.test)):
            ways = self.plan.objective.directions(split)
            found |= {f"{prefix}/{name}": way for name, way in ways.items()}
            longer = {1, *self.options.extrapolate} if self.options.extrapolate else ()
            found |= {f"{prefix}/{name}@{factor}x": way for factor in longer for name, way in ways.items()}
        return found

    def _longer_rows(self, model: nn.Module, weights: str) -> list[Curve]:
        """Both parts judged in longer rows, where the config asks for it; curves go into the run's folder."""
        if not self.options.extrapolate:
            return []
        parts = (("val", self.splits.validation, "limit_val"), ("test", self.splits.test, "limit_test"))
        curves = [
            extrapolate(
                model,
                split,
                self.plan.objective,
                self.options.extrapolate,
                part=part,
                batch_size=self.plan.data.eval_batch_size,
                device=self.device,
                precision=self.precision["precision"],
                limit=getattr(self.options, limit),
                halt=self.interrupts.check,
            )
            for part, split, limit in parts
        ]
        for curve in curves:
            write(self.folder.path, curve.plain(), weights)
            for length, why in curve.refused().items():
                log.warning("%s is refused: %s", length, why)
        return curves

    def _validation(self, model: nn.Module, step: int) -> dict[str, float]:
        """The validation metrics of the weights of `step`; those of the best were measured when they were found."""
        best = self.rhythm.checkpoint
        # Several processes share the measuring, and add up in another order.
        if step == best.best_step and self.layout.world == 1:
            return {name.removeprefix("val/"): value for name, value in best.best_metrics.items()}
        return self.measure(self.splits.validation, model, self.options.limit_val, together=False)

    def _best_model(self) -> tuple[nn.Module, str, int]:
        """A fresh model with the best weights, their file and step; the last where the best are not usable."""
        model = self.plan.model(self.folder.seed)
        for name in (BEST, LAST):
            try:
                content = read(self.folder.checkpoints / name, identity=self.folder.identity, seed=self.folder.seed)
            except (BadCheckpoint, FileNotFoundError) as error:
                log.warning("%s is not tested: %s", name, error)
                continue
            prefix = "model."
            weights = {k.removeprefix(prefix): v for k, v in content["state_dict"].items() if k.startswith(prefix)}
            model.load_state_dict(weights)
            return model.to(self.device), name, content["global_step"]
        raise UserError(f"{self.folder.checkpoints} has no checkpoint that can be used")


def sizes(splits: Splits) -> dict[str, int]:
    """Samples in each part."""
    return {name: len(split) for name, split in splits._asdict().items()}
