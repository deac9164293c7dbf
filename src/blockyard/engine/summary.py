"""The results of a finished run: quality of the best weights, and cost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blockyard.contracts import CodeTokenizer, Model, Splits, TextTokenizer, Transcriber
from blockyard.engine import cost_card
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.cost_card import decoding
from blockyard.engine.job import Job
from blockyard.engine.system.process import peak_memory
from blockyard.errors import UserError
from blockyard.evaluate.inside import DIRECTIONS, inside
from blockyard.evaluate.length_extrapolation import Curve, extrapolate
from blockyard.evaluate.loop import samples_of_pass
from blockyard.evaluate.sample_predictions import SampleRecorder
from blockyard.evaluate.tagged import TagRecorder
from blockyard.evaluate.written import Written, write_split
from blockyard.model._block_stack import loops
from blockyard.runs.checkpoint import BEST, LAST, BadCheckpointError, average_in, load_weights, read
from blockyard.runs.predictions_file import TEST, SamplePredictions

log = logging.getLogger("blockyard")


@dataclass(frozen=True)
class Summary:
    """The results of a finished run.

    values: the content of summary.json; curves: evaluations on longer sequences
    predictions: of the test samples, None where the objective has none for a sample
    written: texts of `trainer.write` for the test sources, or the test sentences with their tags; else None
    weights, step: the checkpoint that all are about
    """

    values: dict[str, Any]
    curves: list[Curve]
    predictions: SamplePredictions | None
    written: Written | None
    weights: str
    step: int


def summarize(job: Job) -> Summary:
    """Evaluate the best weights of a trained job. The test split is used here only."""
    state, options, loop = job.state, job.options, job.loop
    model, weights, step = best_model(job)
    validation = _validation(job, model, step)
    data, split = job.components.data, job.splits.test
    total = samples_of_pass(split, data.eval_batch_size, options.limit_test)
    recorder = SampleRecorder(job.components.objective, split, data.spec, total=total)
    tags = TagRecorder.of(job.components.objective, split)
    test = job.evaluator(model, split, options.limit_test, observe=recorder if tags is None else tags)
    predictions = recorder.result(part="test", weights=weights, step=step, fingerprint=data.fingerprint())
    directions = _directions(job)
    metrics = {f"val/{key}": value for key, value in validation.items()}
    metrics |= {f"test/{key}": value for key, value in test.items()}
    metrics |= _averages(job, weights, step)
    metrics |= _loops(job, model)
    curves = _curves(job, model)
    refused: dict[str, Any] = {"refused": {}} if curves else {}
    for curve in curves:
        metrics |= curve.metrics()
        refused["refused"] |= curve.refused()
    written = _written(job, model)
    if written is not None:
        metrics |= written.metrics()
        directions |= written.directions()
    metrics |= _inside(job, model)
    sample = cost_card.two_samples(job.splits.train, data).to(job.device)
    flops = cost_card.flops_per_sample(
        model, job.components.objective, sample, job.state.learner.teacher, compiled=options.compile
    )
    speed = _speed(state, loop.stopwatch.windows)
    facts_of_data: dict[str, Any] = {"fingerprint": data.fingerprint(), **sizes(job.splits)}
    if data.spec.class_names:  # in the order of their numbers
        facts_of_data["classes"] = list(data.spec.class_names)
    values = {
        "metrics": metrics,
        "directions": directions,
        **refused,
        "monitor": list(state.monitor),
        "weights": weights,
        "predictions": recorder.record(predictions, TEST),
        "final": {"step": state.step, **loop.actions.last_values},
        "best": {"step": loop.callbacks.checkpoint.best_step, **loop.callbacks.checkpoint.best_metrics},
        "stopped": state.stop,
        "ended_by": job.budget.ended_by(state),
        "steps": state.step,
        "epochs": state.step / state.steps_per_epoch,
        "samples": state.seen[0],
        "tokens": state.seen[1],
        "seconds": round(state.seconds, 3),
        "seconds_to_first_step": loop.stopwatch.first_step_seconds,
        "parameters": cost_card.parameters(model),
        "flops_per_sample": flops,
        **speed,
        "mfu": _share_of_peak(state, flops["training"], speed["samples_per_second"]),
        **decoding(model),
        "peak_memory": peak_memory(job.device),
        "kernels": job.kernels.kernels or job.kernels.look(model, job.device),
        "precision": job.precision,
        "device": str(job.device) if job.device.type == "cpu" else torch.cuda.get_device_name(job.device),
        "processes": job.layout.world,
        "threads": torch.get_num_threads(),
        "load": cost_card.load(),
        "data": facts_of_data,
    }
    if tags is not None:
        written = tags.result("test")
    return Summary(values, curves, predictions, written, weights, step)


def best_model(job: Job) -> tuple[Model, str, int]:
    """Return a new model with the best weights, their file and step; with the last weights if the best are unusable."""
    folder = job.folder
    model = job.components.model(folder.seed)
    for name in (BEST, LAST):
        try:
            content = read(folder.checkpoints / name, identity=folder.identity, seed=folder.seed)
            load_weights(model, content, folder.checkpoints / name)
        except (BadCheckpointError, FileNotFoundError) as error:
            log.warning("%s is not tested: %s", name, error)
            continue
        return model.to(job.device), name, content["global_step"]
    raise UserError(f"{folder.checkpoints} has no usable checkpoint")


def sizes(splits: Splits) -> dict[str, int]:
    """Return the number of samples of each split."""
    return {name: len(split) for name, split in splits._asdict().items()}


def _validation(job: Job, model: Model, step: int) -> dict[str, float]:
    """Return the validation metrics of the weights of `step`; for the best weights they are known from training."""
    best = job.loop.callbacks.checkpoint
    # Several processes share an evaluation, and add up in another order.
    if step == best.best_step and job.layout.world == 1:
        return {name.removeprefix("val/"): value for name, value in best.best_metrics.items()}
    return job.evaluator(model, job.splits.validation, job.options.limit_val)


def _averages(job: Job, weights: str, step: int) -> dict[str, float]:
    """Return the validation and test metrics of the averages that callbacks kept beside the file `weights`."""
    metrics: dict[str, float] = {}
    folder, options = job.folder, job.options
    for name in job.loop.callbacks.averages:
        path = folder.checkpoints / weights
        content = read(path, identity=folder.identity, seed=folder.seed)
        model = job.components.model(folder.seed).to(job.device)
        load_weights(model, {"state_dict": average_in(content, name, path)}, path)
        validation = {key: value for key, value in _validation(job, model, step).items() if key.endswith(f"@{name}")}
        if not validation:
            values = job.evaluator(model, job.splits.validation, options.limit_val)
            validation = {f"{key}@{name}": value for key, value in values.items()}
        metrics |= {f"val/{key}": value for key, value in validation.items()}
        test = job.evaluator(model, job.splits.test, options.limit_test)
        metrics |= {f"test/{key}@{name}": value for key, value in test.items()}
    return metrics


def _loops(job: Job, model: Model) -> dict[str, float]:
    """Return the validation and test metrics with other numbers of times through the loop of blocks."""
    metrics: dict[str, float] = {}
    splits = (("val", job.splits.validation, job.options.limit_val), ("test", job.splits.test, job.options.limit_test))
    for times in job.options.loops:
        with loops(model, times):
            for prefix, split, limit in splits:
                values = job.evaluator(model, split, limit)
                metrics |= {f"{prefix}/{name}@{times}loops": value for name, value in values.items()}
    return metrics


def _directions(job: Job) -> dict[str, str]:
    """Return the better direction, min or max, of each metric by its full name."""
    directions = {"train/loss": "min"}
    best, mode = job.components.objective.best()
    spec = job.components.data.spec
    factors = {1, *job.options.extrapolate} if job.options.extrapolate else ()
    for prefix, split in (("val", job.splits.validation), ("test", job.splits.test)):
        for name, direction in job.components.objective.directions(split).items():
            directions[f"{prefix}/{name}"] = direction
            directions |= {f"{prefix}/{name}@{factor}x": direction for factor in factors}
            directions |= {f"{prefix}/{name}@{average}": direction for average in job.loop.callbacks.averages}
            directions |= {f"{prefix}/{name}@{times}loops": direction for times in job.options.loops}
            if spec.mixed:
                directions |= {f"{prefix}/{name}@{part}": direction for part in spec.slices}
        directions |= {f"{prefix}/{best}@{name}": mode for name in spec.slices}
    return directions | {f"test/inspect_{name}": DIRECTIONS[name] for name in job.options.inspect}


def _written(job: Job, model: Model) -> Written | None:
    """Return the texts that the model writes for the sources of the test split, if the config requests it."""
    if not job.options.write:
        return None
    components, tokenizer = job.components, job.components.tokenizer
    assert isinstance(tokenizer, TextTokenizer | CodeTokenizer)
    return write_split(
        model,
        job.splits.test,
        tokenizer,
        part="test",
        batch_size=components.data.eval_batch_size,
        objective=components.objective if isinstance(components.objective, Transcriber) else None,
        device=job.device,
        precision=job.precision["precision"],
        limit=job.options.limit_test,
        halt=job.interrupts.check,
    )


def _inside(job: Job, model: Model) -> dict[str, float]:
    """Return the numbers from inside the model over the test split that the config requests."""
    if not job.options.inspect:
        return {}
    values = inside(
        model,
        job.splits.test,
        job.components.objective,
        job.options.inspect,
        batch_size=job.components.data.eval_batch_size,
        device=job.device,
        limit=job.options.limit_test,
        halt=job.interrupts.check,
    )
    return {f"test/inspect_{name}": value for name, value in values.items()}


def _curves(job: Job, model: Model) -> list[Curve]:
    """Evaluate the validation and test split on longer sequences, if the config requests it."""
    options = job.options
    if not options.extrapolate:
        return []
    curves = []
    for part, split, limit in (
        ("val", job.splits.validation, options.limit_val),
        ("test", job.splits.test, options.limit_test),
    ):
        curve = extrapolate(
            model,
            split,
            job.components.objective,
            options.extrapolate,
            part=part,
            batch_size=job.components.data.eval_batch_size,
            device=job.device,
            precision=job.precision["precision"],
            limit=limit,
            halt=job.interrupts.check,
        )
        for length, reason in curve.refused().items():
            log.warning("%s is refused: %s", length, reason)
        curves.append(curve)
    return curves


def _speed(state: RunState, windows: Sequence[float]) -> dict[str, float | None]:
    """Return the speed of a step; if steps grow, samples and tokens a second over the whole run."""
    speed = cost_card.speed(windows, state.batch_size, state.tokens)
    if state.growth is None or not state.seconds:
        return speed
    samples, tokens = state.seen
    return speed | {"samples_per_second": samples / state.seconds, "tokens_per_second": tokens / state.seconds}


def _share_of_peak(state: RunState, flops: int, samples_per_second: float | None) -> float | None:
    """Return the share of the devices' peak that training takes at the speed of a median step; None without a peak.

    flops: of training on one sample
    """
    if state.peak_flops is None or samples_per_second is None:
        return None
    return flops * samples_per_second / state.peak_flops
