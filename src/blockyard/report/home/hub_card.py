"""The README.md of an exported folder, as Hugging Face's hub reads it: front matter, then what a reader should know.

Source: Mitchell et al. 2019, Model Cards for Model Reporting (arXiv 1810.03993)
Reference: huggingface_hub ModelCard, model_index_to_eval_results
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from blockyard.config.choices.catalog import section
from blockyard.contracts import DataModule
from blockyard.errors import UserError
from blockyard.report.home.page import sweeps
from blockyard.report.render.markdown import escape
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded
from blockyard.weights.exporting import LibraryModel

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
    front = yaml.safe_dump(_front(loaded, model, metrics, licence), sort_keys=False, allow_unicode=True, width=110)
    parts = [
        f"---\n{front}---",
        f"# {escape(loaded.folder.path.parent.name)}",
        _opening(loaded, model),
        "## Question",
        *_answers(loaded.folder),
        "## Metrics",
        *_metric_lines(loaded, metrics),
        "## Data",
        *_data(loaded),
        "## Parts",
        _table(["family", "choice"], [[family, choice] for family, choice in _choices(loaded).items()]),
        "## Use",
        *_use(model),
        "## Licence",
        f"`{licence}`, as stated at the export."
        if licence
        else "None was stated at the export (`license=`), so nobody but the author may say what is allowed.",
    ]
    return "\n\n".join(parts) + "\n"


def _front(
    loaded: Loaded, model: LibraryModel, metrics: dict[str, dict[int, float]], licence: str | None
) -> dict[str, Any]:
    data, task = _choice(loaded, "data"), _choice(loaded, "objective")
    pipeline = PIPELINES.get(model.auto)
    own = {name: by_seed[loaded.folder.seed] for name, by_seed in metrics.items() if loaded.folder.seed in by_seed}
    hub = loaded.data.hub_name()
    dataset = {"type": hub or data, "name": data}
    results: list[dict[str, Any]] = [
        {
            "task": {"type": pipeline or task, "name": task},
            "dataset": dataset | {"split": split},
            "metrics": [
                {"type": name.partition("/")[2], "name": name, "value": value}
                for name, value in own.items()
                if name.startswith(f"{prefix}/") and math.isfinite(value)
            ],
        }
        for prefix, split in SPLITS.items()
    ]
    results = [result for result in results if result["metrics"]]
    names = dict.fromkeys(metric["type"] for result in results for metric in result["metrics"])
    return {
        "library_name": "transformers",
        "license": licence or UNKNOWN,
        **({"pipeline_tag": pipeline} if pipeline else {}),
        "tags": list(dict.fromkeys(["blockyard", model.model_type, data, task])),
        **({"datasets": [hub]} if hub else {}),
        **({"metrics": list(names)} if names else {}),
        **({"model-index": [{"name": loaded.folder.path.parent.name, "results": results}]} if results else {}),
    }


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
    root = folder.path.parents[1]
    of_run = [row for row in sweeps(root) if folder.name in row["runs"]]
    if not of_run:
        yield "The run does not belong to a sweep."
    for row in of_run:
        arm = row["arms"][row["runs"].index(folder.name)]
        verdict = f" Verdict: **{escape(row['verdict'])}**." if row["verdict"] else ""
        stale = f" {escape(row['stale'])}" if row["stale"] else ""
        yield (
            f"{escape(row['claim'] or 'No claim is stated')}: the sweep {escape(row['name'])}, of which this is the"
            f" arm {escape(arm)}.{verdict}{stale}"
        )
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
                if name.partition("/")[0] in SPLITS and "@" not in name and isinstance(value, int | float):
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
    evaluated = _evaluated(loaded)
    if not metrics:
        yield (
            "These weights were not evaluated."
            if evaluated in (None, loaded.weights)
            else (f"The run was evaluated with {escape(evaluated)}, and these weights, `{loaded.weights}`, were not.")
        )
        return
    seeds = sorted(set().union(*metrics.values()))
    several = len(seeds) > 1
    columns = ["metric", f"seed {loaded.folder.seed}, these weights"]
    columns += [f"mean and standard deviation of {len(seeds)} seeds"] if several else []
    rows = []
    for name, by_seed in metrics.items():
        row = [name, f"{by_seed[loaded.folder.seed]:.4g}"]
        if several:
            own = list(by_seed.values())
            row.append(f"{statistics.fmean(own):.4g} ± {statistics.stdev(own):.2g}" if len(own) == len(seeds) else "-")
        rows.append(row)
    yield _table(columns, rows)
    if not several:
        yield "Of one seed: what another would give is not known."


def _data(loaded: Loaded) -> Iterator[str]:
    facts = loaded.folder.facts().get("data")
    recorded = facts if isinstance(facts, dict) else {}
    # Of files of the user's own the docstring names where the format comes from, not the data.
    source = "" if getattr(loaded.data, "path", None) else section(_docstring(loaded.data), "Source")
    rows = [["data", _choice(loaded, "data")]]
    sizes = [f"{split} {recorded[split]}" for split in ("train", "validation", "test") if split in recorded]
    rows += [["samples", ", ".join(sizes)]] if sizes else []
    rows += [["fingerprint", str(recorded["fingerprint"])]] if "fingerprint" in recorded else []
    rows += [["source", source]] if source else []
    rows += [["licence", loaded.data.licence() or "not known to blockyard"]]
    yield _table(["", ""], rows)


def _docstring(data: DataModule) -> str:
    """Return the docstring of the module of a data set of blockyard's own; "" of anybody else's."""
    name = type(data).__module__
    return (sys.modules[name].__doc__ or "") if name.startswith("blockyard.") else ""


def _use(model: LibraryModel) -> Iterator[str]:
    loader = model.auto
    names = [loader, *(["AutoTokenizer"] if model.has_tokenizer else [])]
    lines = [f"from transformers import {', '.join(names)}", "", f'model = {loader}.from_pretrained("FOLDER")']
    lines += ['tokenizer = AutoTokenizer.from_pretrained("FOLDER")'] if model.has_tokenizer else []
    yield "\n".join(["```python", *lines, "```"])
    if model.remarks:
        yield "Predictions are those of the run, and so are token ids, with these differences:"
        yield "\n".join(f"- {escape(remark)}" for remark in model.remarks)
    else:
        yield "Token ids and predictions are those of the run."


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
