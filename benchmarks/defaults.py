"""Does the recipe of each kind of data beat the simple baselines? A table, from runs of several seeds.

    python benchmarks/defaults.py [ROW ...] [--data FOLDER] [--seeds 5] [--outputs outputs/defaults]

Each row trains what its data alone compose, such as `blockyard train data=table data.path=FILE`, with each seed, and
holds a metric of the test split against the baselines that the runs computed themselves, for running text against the
frequencies of pairs of tokens. FOLDER has the files that are in no library; a row whose file is missing is named on
standard error and left out. Finished runs are found again, so that the same command goes on after an interruption. The
answer is a Markdown table on standard output.

A recipe beats a baseline where the 95 % interval of the mean difference over seeds is on the better side of 0, and is
beaten where it is on the other side. A baseline has one value for all seeds, so that no pairing is lost. The interval
says how sure the difference is on this test split, not on another one.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder

os.environ.setdefault("OMP_NUM_THREADS", "1")

ALWAYS = ("logger=none", "trainer.threads=1")
FOLDER = "FOLDER"  # in an override: the folder of the user's files
TABLES = "TABLES"  # in an override: the folder of scikit-learn's tables, which are written first
WINE = (
    "[alcohol,malic_acid,ash,alcalinity_of_ash,magnesium,total_phenols,flavanoids,nonflavanoid_phenols,"
    "proanthocyanins,color_intensity,hue,od280_od315_of_diluted_wines,proline]"
)


@dataclass(frozen=True)
class Row:
    """Data, what a user types for them, and the metric of the test split."""

    title: str
    metric: str
    typed: tuple[str, ...]

    @property
    def embedded(self) -> bool:
        """True where installed libraries have all the data."""
        return not any(FOLDER in override for override in self.typed)


@dataclass(frozen=True)
class Answer:
    """The scores of a row's runs, and its best baseline.

    scores: one for each seed; seconds: of training, the median; baseline: name and value; others: the other baselines
    gain: the mean of score minus baseline, positive where the recipe is better; interval: 95 %, of the same mean
    beats: yes, no or undecided
    """

    scores: list[float]
    seconds: float
    baseline: tuple[str, float]
    others: dict[str, float]
    gain: float
    interval: tuple[float, float]
    beats: str


ROWS = {
    "digits": Row(
        "images of digits, class, the arm `stem` of quickstart",
        "accuracy",
        (
            "experiment=vit_digits",
            "optimizer=normuon",
            "head=flatten",
            "model.depth=1",
            "trainer.max_epochs=32",
            "position=learned",
            "tokenizer=conv_patch",
        ),
    ),
    "mnist": Row("MNIST, one epoch, class", "accuracy", ("experiment=vit_mnist", "data.root=FOLDER")),
    "digit_series": Row("digits as series of 64 steps, class", "accuracy", ("data=digit_series",)),
    "vowels": Row(
        "JapaneseVowels, class",
        "accuracy",
        (
            "data=series_table",
            "data.path=FOLDER/vowels/JapaneseVowels_TRAIN.ts",
            "data.test_path=FOLDER/vowels/JapaneseVowels_TEST.ts",
        ),
    ),
    "key_tones": Row("tones in noise, class", "accuracy", ("data=key_tones",)),
    "co2": Row("CO2 of Mauna Loa, a year ahead", "mse", ("experiment=co2",)),
    "etth1": Row("ETTh1, 96 hours ahead", "mse", ("experiment=etth1", "data.path=FOLDER/timeseries/ETTh1.csv.gz")),
    "weather": Row(
        "weather of Rennes",
        "mse",
        ("data=series_file", "data.path=FOLDER/timeseries/weather_rennes_daily.csv.gz"),
    ),
    "breast_cancer": Row("breast cancer, 30 columns, class", "accuracy", ("data=breast_cancer",)),
    "wine": Row(
        "wine, 13 columns, class",
        "accuracy",
        ("data=table", "data.path=TABLES/wine.csv", f"data.columns={WINE}", "data.label=target"),
    ),
    "diabetes": Row(
        "diabetes, 10 columns, a value",
        "rmse",
        (
            "data=table",
            "data.path=TABLES/diabetes.csv",
            "data.columns=[age,sex,bmi,bp,s1,s2,s3,s4,s5,s6]",
            "data.target=[target]",
        ),
    ),
    "oil": Row(
        "ETTh1, oil temperature from six loads",
        "rmse",
        (
            "data=table",
            "data.path=FOLDER/timeseries/ETTh1.csv.gz",
            "data.columns=[HUFL,HULL,MUFL,MULL,LUFL,LULL]",
            "data.target=[OT]",
            "data.train_size=2000",
        ),
    ),
    "esol": Row(
        "ESOL, molecules, solubility",
        "rmse",
        (
            "data=molecules",
            "data.path=FOLDER/molecules/esol_delaney.graphs.jsonl.gz",
            "data.splits=FOLDER/molecules/esol_delaney.csv",
        ),
    ),
    "spam": Row(
        "e-mails of SpamAssassin, class",
        "accuracy",
        ("data=table", "data.path=FOLDER/spamassassin/spamassassin.tsv.gz"),
    ),
    "code_topics": Row("windows of Python code, class", "accuracy", ("data=code_topics",)),
    "names": Row("sentences, a tag for each word", "f1", ("data=tagged_text",)),
    "code": Row(
        "Python code, next character, 200 steps", "loss", ("experiment=gpt_code_small", "trainer.max_steps=200")
    ),
    "shakespeare": Row(
        "tiny Shakespeare, next character", "loss", ("data=text_file", "data.path=FOLDER/tinyshakespeare/input.txt")
    ),
    "dates": Row("dates, English to German", "exact", ("data=translation",)),
    "english_german": Row(
        "sentences, English to German",
        "written_bleu",
        ("data=translation", "data.path=FOLDER/parallel/en-de.tsv.gz"),
    ),
    "dial_tones": Row("tones of dialled numbers, text", "cer", ("data=dial_tones",)),
    "speech": Row(
        "15 minutes of speech, text", "cer", ("data=speech", "data.path=FOLDER/asterisk_speech/manifest_en.tsv")
    ),
    "captions": Row("emoji, their names", "loss", ("data=captions", "data.path=FOLDER/emoji_captions")),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and print a line of the table for each row."""
    options = _parser().parse_args(arguments)
    tables = options.outputs / "tables"
    write_tables(tables)
    print("| row | data | typed | metric | recipe | best baseline | others | gain | beats? | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.rows or ROWS:
        row = ROWS[name]
        overrides = [with_folders(override, options.data, tables) for override in row.typed]
        missing = [path for path in map(_file_of, overrides) if path is not None and not path.exists()]
        if missing:
            print(f"{name}: no file {missing[0]}", file=sys.stderr)
            continue
        answer = measure(row, overrides, range(options.seeds), options.outputs)
        print(_table_row(name, row, answer), flush=True)
    return 0


def measure(row: Row, overrides: Sequence[str], seeds: Sequence[int], outputs: Path) -> Answer:
    """Train a row with each seed, or find its finished runs, and compare the scores with the baselines."""
    folders = [_trained(row.metric, [*overrides, *ALWAYS, f"seed={seed}"], outputs) for seed in seeds]
    summaries = [folder.summary() for folder in folders]
    key = f"test/{row.metric}"
    scores = [float(summary["metrics"][key]) for summary in summaries]
    sign = 1 if summaries[0]["directions"][key] == "max" else -1
    baselines = _baselines(row.metric, summaries)
    best = max(baselines, key=lambda name: sign * baselines[name])
    gains = [sign * (score - baselines[best]) for score in scores]
    low, high = _interval(gains)
    beats = "undecided"
    if low > 0:
        beats = "yes"
    elif high < 0:
        beats = "no"
    return Answer(
        scores=scores,
        seconds=statistics.median(float(summary["seconds"]) for summary in summaries),
        baseline=(best, baselines.pop(best)),
        others=baselines,
        gain=statistics.fmean(gains),
        interval=(low, high),
        beats=beats,
    )


def _trained(metric: str, overrides: Sequence[str], outputs: Path) -> RunFolder:
    """Return a finished run, with the score of its written texts where that is the metric."""
    import blockyard
    from blockyard.evaluate import api
    from blockyard.evaluate.written import write

    with redirect_stdout(sys.stderr):
        folder = blockyard.train(*overrides, outputs=outputs)
        if metric.startswith("written_") and f"test/{metric}" not in folder.summary()["metrics"]:
            written, loaded = api.evaluate_written(folder)
            write(loaded, written)
    return folder


def _baselines(metric: str, summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the value of each baseline that has the metric, the mean over runs."""
    values: dict[str, list[float]] = {}
    for summary in summaries:
        for name, by_metric in summary.get("baselines", {}).items():
            if metric in by_metric:
                values.setdefault(name, []).append(float(by_metric[metric]))
    return {name: statistics.fmean(column) for name, column in values.items()}


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of differences; equal ones give a point."""
    import numpy as np

    from blockyard.report.stats.intervals import t_interval

    low, high = t_interval(np.asarray(differences))
    return float(low), float(high)


def _table_row(name: str, row: Row, answer: Answer) -> str:
    mean = f"{statistics.fmean(answer.scores):.4g}"
    deviation = f"{statistics.stdev(answer.scores):.2g}"
    baseline, value = answer.baseline
    low, high = answer.interval
    others = ", ".join(f"{other} {score:.4g}" for other, score in answer.others.items())
    cells = [
        f"`{name}`",
        row.title,
        f"`{row.typed[0]}`",
        row.metric,
        f"{mean} ± {deviation}",
        f"{baseline} {value:.4g}",
        others,
        f"{answer.gain:+.2g} [{low:+.2g}, {high:+.2g}]",
        answer.beats,
        f"{answer.seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def with_folders(override: str, data: Path, tables: Path) -> str:
    return override.replace(FOLDER, str(data.absolute())).replace(TABLES, str(tables.absolute()))


def _file_of(override: str) -> Path | None:
    """Return the path in an override, None where it has none."""
    _, _, value = override.partition("=")
    if value.startswith("/"):
        return Path(value)
    return None


def write_tables(folder: Path) -> None:
    """Write scikit-learn's tables as CSV."""
    from sklearn.datasets import load_diabetes, load_wine

    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("wine", load_wine()), ("diabetes", load_diabetes())):
        columns = [column.replace("/", "_") for column in table.feature_names]
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, "target"])
            for values, target in zip(table.data.tolist(), table.target.tolist(), strict=True):
                writer.writerow([*values, target])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all of them if none is named")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="FOLDER", help="the files of the rows")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to SEEDS - 1")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/defaults"), help="the folder of the runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
