"""The README.md of an exported folder, as Hugging Face's hub reads it: front matter, then what a reader should know.

Source: Mitchell et al. 2019, Model Cards for Model Reporting (arXiv 1810.03993)
Reference: huggingface_hub ModelCard, model_index_to_eval_results
"""

from __future__ import annotations

import math
import statistics
import string
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from blockyard.config.choices.catalog import section
from blockyard.errors import UserError
from blockyard.report.home.page import sweeps
from blockyard.report.render.markdown import escape
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded
from blockyard.runs.metric_name import MetricName
from blockyard.weights.convert.exporting import LibraryModel

# What the hub calls the task of an Auto class.
PIPELINES = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForSpeechSeq2Seq": "automatic-speech-recognition",
    "AutoModelForCTC": "automatic-speech-recognition",
}
SPLITS = {"val": "validation", "test": "test"}
UNKNOWN = "unknown"  # the hub's word for a licence that nobody has stated


def hub_card(loaded: Loaded, model: LibraryModel, licence: str | None = None) -> str:
    """Return the card of a run that is written as a model of transformers.

    licence: of the weights, as the hub names it; None says that none is stated

    Free text, such as the claim of a sweep, is escaped. Paths of this machine are left out.
    """
    metrics = _metrics(loaded)
    template = string.Template(Path(__file__).with_name("hub_card.md").read_text(encoding="utf-8"))
    stated = f"`{licence}`, as stated at the export."
    unstated = "None was stated at the export (`license=`), so nobody but the author may say what is allowed."
    return template.substitute(
        front=_front(loaded, model, metrics, licence).to_yaml(),
        name=escape(loaded.folder.path.parent.name),
        opening=_opening(loaded, model),
        answers="\n\n".join(_answers(loaded.folder)),
        metrics="\n\n".join(_metric_lines(loaded, metrics)),
        data=_data(loaded),
        parts=_table(["family", "choice"], list(_choices(loaded).items())),
        use="\n\n".join(_use(model)),
        licence=stated if licence else unstated,
    )


def _front(
    loaded: Loaded, model: LibraryModel, metrics: dict[str, dict[int, float]], licence: str | None
) -> ModelCardData:
    data = _choice(loaded, "data")
    task = _choice(loaded, "objective")
    pipeline = PIPELINES.get(model.auto)
    hub = loaded.data.hub_name()
    results = []
    for name, by_seed in metrics.items():
        measured = MetricName.parse(name)
        value = by_seed[loaded.folder.seed]
        if math.isfinite(value):
            result = EvalResult(
                task_type=pipeline or task,
                task_name=task,
                dataset_type=hub or data,
                dataset_name=data,
                dataset_split=SPLITS[measured.split],
                metric_type=measured.name,
                metric_name=name,
                metric_value=value,
            )
            results.append(result)
    return ModelCardData(
        library_name="transformers",
        license=licence or UNKNOWN,
        pipeline_tag=pipeline,
        tags=["blockyard", model.model_type, data, task],
        datasets=[hub] if hub else None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=loaded.folder.path.parent.name if results else None,
        eval_results=results or None,
    )


def _opening(loaded: Loaded, model: LibraryModel) -> str:
    versions = loaded.folder.facts().get("versions")
    version = versions.get("blockyard", "") if isinstance(versions, dict) else ""
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    by = escape(f"blockyard {version}")
    if not loaded.step:
        return f"`{model.architecture}` with {count:,} parameters, written by {by}, and not trained by it."
    return (
        f"`{model.architecture}` with {count:,} parameters, trained with {by}: `{loaded.weights}` after {loaded.step:,}"
        f" steps, seed {loaded.folder.seed}, identity {escape(loaded.folder.identity)}."
    )


def _answers(folder: RunFolder) -> Iterator[str]:
    """Yield a paragraph for each sweep with a cell that is this run."""
    of_run = [row for row in sweeps(folder.path.parents[1]) if folder.name in row["runs"]]
    if not of_run:
        yield "The run does not belong to a sweep."
    for row in of_run:
        claim = escape(row["claim"] or "No claim is stated")
        arm = escape(row["arms"][row["runs"].index(folder.name)])
        sentences = [f"{claim}: the sweep {escape(row['name'])}, of which this is the arm {arm}."]
        if row["verdict"]:
            sense = f" ({escape(row['sense'])})" if row["sense"] else ""
            sentences.append(f"Verdict: **{escape(row['verdict'])}**{sense}.")
        if row["stale"]:
            sentences.append(escape(row["stale"]))
        yield " ".join(sentences)
        yield f"> {escape(row['answer'] or 'No comparison yet.')}"
        if row["better_baseline"]:
            yield f"> {escape(row['better_baseline'])}"


def _metrics(loaded: Loaded) -> dict[str, dict[int, float]]:
    """Return the metrics by name and seed, of the finished runs of this config; none where they are of other weights.

    Those of averaged weights and of longer sequences (`accuracy@ema`, `loss@2x`) are left out.
    """
    values: dict[str, dict[int, float]] = {}
    if _evaluated(loaded) != loaded.weights:
        return {}
    identity = loaded.folder.identity
    for folder in _seeds(loaded.folder):
        if folder.identity == identity and folder.finished:
            for name, value in (folder.summary().get("metrics") or {}).items():
                measured = MetricName.parse(name)
                if measured.split in SPLITS and not measured.variant and isinstance(value, int | float):
                    values.setdefault(name, {})[folder.seed] = float(value)
    return {name: by_seed for name, by_seed in values.items() if loaded.folder.seed in by_seed}


def _evaluated(loaded: Loaded) -> str | None:
    """Return the checkpoint that the metrics of the run are of; None where it has none."""
    return loaded.folder.summary().get("weights")


def _seeds(folder: RunFolder) -> Iterator[RunFolder]:
    """Yield the runs that differ in the seed alone, this one among them."""
    for path in sorted(Path(folder.path.parent).glob("s[0-9]*")):
        try:
            yield RunFolder.open(path)
        except UserError:  # a folder that is no run
            continue


def _metric_lines(loaded: Loaded, metrics: dict[str, dict[int, float]]) -> Iterator[str]:
    if not metrics:
        evaluated = _evaluated(loaded)
        if evaluated in (None, loaded.weights):
            yield "These weights were not evaluated."
        else:
            yield f"The run was evaluated with {escape(evaluated)}, and these weights, `{loaded.weights}`, were not."
        return
    count = len(set().union(*metrics.values()))
    columns = ["metric", f"seed {loaded.folder.seed}, these weights"]
    if count > 1:
        columns.append(f"mean and standard deviation of {count} seeds")
    rows = []
    for name, by_seed in metrics.items():
        row = [name, f"{by_seed[loaded.folder.seed]:.4g}"]
        values = list(by_seed.values())
        if count > 1 and len(values) == count:
            row.append(f"{statistics.fmean(values):.4g} ± {statistics.stdev(values):.2g}")
        elif count > 1:
            row.append("-")
        rows.append(row)
    yield _table(columns, rows)
    if count == 1:
        yield "Of one seed: what another would give is not known."


def _data(loaded: Loaded) -> str:
    """Return a table of the data: its name, sizes, fingerprint, source and licence."""
    facts = loaded.folder.facts().get("data")
    recorded = facts if isinstance(facts, dict) else {}
    rows = [["data", _choice(loaded, "data")]]
    sizes = [f"{split} {recorded[split]}" for split in ("train", "validation", "test") if split in recorded]
    if sizes:
        rows.append(["samples", ", ".join(sizes)])
    if "fingerprint" in recorded:
        rows.append(["fingerprint", str(recorded["fingerprint"])])
    module = type(loaded.data).__module__
    # The docstring of a module that reads the user's files names the source of their format, not of the data.
    if module.startswith("blockyard.") and not getattr(loaded.data, "path", None):
        source = section(sys.modules[module].__doc__ or "", "Source")
        if source:
            rows.append(["source", source])
    rows.append(["licence", loaded.data.licence() or "not known to blockyard"])
    return _table(["", ""], rows)


def _use(model: LibraryModel) -> Iterator[str]:
    classes = [model.auto]
    lines = [f'model = {model.auto}.from_pretrained("FOLDER")']
    if model.has_tokenizer:
        classes.append("AutoTokenizer")
        lines.append('tokenizer = AutoTokenizer.from_pretrained("FOLDER")')
    yield "\n".join(["```python", f"from transformers import {', '.join(classes)}", "", *lines, "```"])
    if not model.remarks:
        yield "Token ids and predictions are those of the run."
        return
    yield "Predictions are those of the run, and so are token ids, with these differences:"
    yield "\n".join(f"- {escape(remark)}" for remark in model.remarks)


def _choices(loaded: Loaded) -> dict[str, str]:
    choices = loaded.folder.facts().get("choices")
    named = choices if isinstance(choices, dict) else {}
    left_out = ("trainer", "callbacks", "logger", "debug")
    return {str(family): str(name) for family, name in named.items() if name is not None and family not in left_out}


def _choice(loaded: Loaded, family: str) -> str:
    """Return the choice of a family; the module of its class where none is recorded."""
    target = str((loaded.config.get(family) or {}).get("_target_"))
    return _choices(loaded).get(family) or target.split(".")[-2]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (lines[0], [":--"] * len(header), *lines[1:]))
