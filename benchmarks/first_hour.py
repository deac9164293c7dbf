"""Time the way from a file to a verdict: ten files that are not the project's, each with `blockyard ask FILE --run`.

    python benchmarks/first_hour.py FOLDER [--data SHARED] [--hours 0.1] [--minutes 20] [--only wine.csv ...]

FOLDER gets the files, made from data sets of scikit-learn and statsmodels and from those below SHARED, and the runs.
A file whose sweep is finished there is not asked again. The answer is a Markdown table on standard output: the words
that were typed after `blockyard`, the minutes until the verdict, the metric of the best arm and of the best simple
baseline. `before` is the sweep of the same arms whose base has the words that were needed to train on the file at all,
and every other choice by default; after --minutes it is stopped, and its finished runs are compared.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

STOPPED = 143  # the exit code of a sweep that SIGTERM has stopped
SEEDS = 3  # of the sweeps `before`
MAILS = 1_500
HOURS_OF_SERIES = 4_000
PAIRS = 3_000
CHARACTERS = 400_000


def wine(path: Path, _data: Path) -> None:
    """Write 178 wines with 13 numbers and a class."""
    from sklearn.datasets import load_wine

    _table(path, load_wine(as_frame=True).frame)


def diabetes(path: Path, _data: Path) -> None:
    """Write 442 patients with 10 numbers and the progression of a disease."""
    from sklearn.datasets import load_diabetes

    _table(path, load_diabetes(as_frame=True).frame)


def sunspots(path: Path, _data: Path) -> None:
    """Write the number of sunspots of each year from 1700 to 2008."""
    from statsmodels.datasets import sunspots

    _table(path, sunspots.load_pandas().data.astype({"YEAR": int}))


def digits(path: Path, _data: Path) -> None:
    """Write 1,797 images of 8 x 8 pixels into a folder for each digit."""
    from PIL import Image
    from sklearn.datasets import load_digits

    content = load_digits()
    for number, (image, label) in enumerate(zip(content.images, content.target, strict=True)):
        folder = path / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255 / 16).astype("uint8")).save(folder / f"{number}.png")


def mails(path: Path, data: Path) -> None:
    """Write e-mails with a text and a label."""
    _some_rows(path, data / "spamassassin/spamassassin.tsv.gz", MAILS, ["text", "label"])


def pairs(path: Path, data: Path) -> None:
    """Write sentences in English and German."""
    _some_rows(path, data / "parallel/en-de.tsv.gz", PAIRS, ["en", "de"])


def series(path: Path, data: Path) -> None:
    """Write the hourly temperature of a transformer station with its loads."""
    lines = gzip.decompress((data / "timeseries/ETTh1.csv.gz").read_bytes()).decode().splitlines(keepends=True)
    path.write_text("".join(lines[: HOURS_OF_SERIES + 1]), encoding="utf-8")


def play(path: Path, data: Path) -> None:
    """Write the beginning of a text."""
    path.write_text((data / "tinyshakespeare/input.txt").read_text(encoding="utf-8")[:CHARACTERS], encoding="utf-8")


def solubility(path: Path, data: Path) -> None:
    """Write molecules as graphs, with the logarithm of their solubility."""
    path.write_bytes(gzip.decompress((data / "molecules/esol_delaney.graphs.jsonl.gz").read_bytes()))


def sounds(path: Path, data: Path) -> None:
    """Unpack recordings, and write a table of their texts."""
    path.mkdir(parents=True)
    with zipfile.ZipFile(data / "asterisk_speech/en.zip") as archive:
        archive.extractall(path)
    shutil.copyfile(data / "asterisk_speech/manifest_en.tsv", path / "manifest.tsv")


@dataclass(frozen=True)
class File:
    """A file of a stranger.

    make: writes it, from the folder of shared data where it needs one
    before: the overrides that were needed to train on it
    """

    make: Callable[[Path, Path], None]
    before: tuple[str, ...]


SERIES = ("tokenizer=series_patch", "objective=forecast")
NUMBERS = ("tokenizer=columns", "position=none")
TEXTS = ("tokenizer=char", "objective=translate", "model=encoder_decoder", "head=token")
WINE = (
    "alcohol,malic_acid,ash,alcalinity_of_ash,magnesium,total_phenols,flavanoids,nonflavanoid_phenols,"
    "proanthocyanins,color_intensity,hue,od280/od315_of_diluted_wines,proline"
)
DIABETES = "age,sex,bmi,bp,s1,s2,s3,s4,s5,s6"
FILES = {
    "wine.csv": File(
        wine, ("data=table", "data.path=wine.csv", f"data.columns=[{WINE}]", "data.label=target", *NUMBERS)
    ),
    "diabetes.csv": File(
        diabetes,
        (
            *("data=table", "data.path=diabetes.csv", f"data.columns=[{DIABETES}]", "data.target=[target]"),
            *(*NUMBERS, "objective=regress"),
        ),
    ),
    "sunspots.csv": File(
        sunspots,
        (
            *("data=series_file", "data.path=sunspots.csv", "data.time=YEAR", "data.history=30", "data.horizon=10"),
            *SERIES,
        ),
    ),
    "digits": File(digits, ("data=image_folder", "data.root=digits")),
    "mails.tsv": File(mails, ("data=table", "data.path=mails.tsv", "tokenizer=word")),
    "pairs.tsv": File(pairs, ("data=translation", "data.path=pairs.tsv", "data.source=en", "data.target=de", *TEXTS)),
    "etth1.csv": File(series, ("data=series_file", "data.path=etth1.csv", "data.time=date", *SERIES)),
    "play.txt": File(
        play,
        (
            "data=text_file",
            "data.path=play.txt",
            "tokenizer=char",
            "model=decoder",
            "objective=next_token",
            "head=token",
        ),
    ),
    "esol.graphs.jsonl": File(
        solubility,
        (
            *("data=molecules", "data.path=esol.graphs.jsonl", "data.split=null", "tokenizer=nodes"),
            *("objective=regress", "position=none"),
        ),
    ),
    "sounds": File(
        sounds,
        (
            *("data=speech", "data.path=sounds/manifest.tsv", "tokenizer=char", "source_tokenizer=log_mel"),
            *("objective=ctc", "head=token"),
        ),
    ),
}


def ask(folder: Path, name: str, hours: float) -> Result:
    """Return the result of `blockyard ask`, which is run unless its sweep is finished."""
    arguments = ["ask", name, f"hours={hours:g}", "--run"]
    sweep = Path(name).stem.partition(".")[0]
    return _result(folder, sweep, arguments, len(arguments))


def before(folder: Path, name: str, minutes: float) -> Result:
    """Return the result of a sweep of the same arms without a recipe, which is stopped after a number of minutes.

    A stranger typed the base, and the words of a run. The file of the sweep itself is not counted.
    """
    sweep = Path(name).stem.partition(".")[0]
    question = yaml.safe_load((folder / f"{sweep}.yaml").read_text(encoding="utf-8"))
    base = FILES[name].before
    content = {key: question[key] for key in ("claim", "arms", "baseline")} | {"base": list(base), "seeds": SEEDS}
    sweep = f"{sweep}_before"
    (folder / f"{sweep}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return _result(folder, sweep, ["sweep", f"{sweep}.yaml"], len(base) + 1, minutes)


@dataclass(frozen=True)
class Result:
    """The end of a sweep.

    num_words: the number of words that were typed
    cpu_minutes: of all processes; on a busy machine the minutes alone say little
    metric: with the values of the best arm and of the best simple baseline
    """

    num_words: int
    minutes: float
    cpu_minutes: float
    metric: str
    direction: str
    verdict: str
    best: float | None = None
    baseline: tuple[str, float] | None = None

    def cells(self) -> list[str]:
        """Return the cells of a row of the table."""
        best = "none" if self.best is None else f"{self.best:.3g}"
        baseline = "none"
        beats = ""
        if self.baseline is not None:
            name, value = self.baseline
            baseline = f"{name} {value:.3g}"
            if self.best is not None:
                ahead = self.best > value if self.direction == "max" else self.best < value
                beats = "yes" if ahead else "no"
        times = [f"{self.minutes:.1f}", f"{self.cpu_minutes:.1f}"]
        return [str(self.num_words), *times, f"`{self.metric}` {best}", baseline, beats, self.verdict]


def _result(folder: Path, sweep: str, arguments: Sequence[str], num_words: int, minutes: float | None = None) -> Result:
    """Run a command of `blockyard` in the folder unless the comparison of its sweep is there, and read it.

    minutes: after which the command is stopped; None lets it end
    """
    path = folder / "outputs/sweeps" / sweep / "comparison.json"
    times_file = folder / f"{sweep}.minutes.json"
    reason = ""
    if not path.is_file():
        start = time.perf_counter()
        cpu_start = _cpu_seconds()
        code = _run(folder, arguments, folder / f"{sweep}.log", minutes)
        spent = {"minutes": time.perf_counter() - start, "cpu_minutes": _cpu_seconds() - cpu_start}
        times_file.write_text(json.dumps({name: seconds / 60 for name, seconds in spent.items()}), encoding="utf-8")
        lines = (folder / f"{sweep}.log").read_text(encoding="utf-8").splitlines()
        reason = f"exit {code}: {lines[-1] if lines else ''}"
        if code == STOPPED:
            reason = f"stopped after {minutes:g} minutes"
            _compare(folder, sweep, path)
    times = json.loads(times_file.read_text(encoding="utf-8"))
    if not path.is_file():
        return Result(num_words, **times, metric="", direction="max", verdict=reason)
    document = json.loads(path.read_text(encoding="utf-8"))
    direction = document["direction"]
    best_of = max if direction == "max" else min
    means = [arm["mean"] for arm in document["arms"] if arm["mean"] is not None]
    values = {row["name"]: row["value"] for row in document["baselines"] if row["value"] is not None}
    baseline = None
    if values:
        name = best_of(values, key=lambda name: values[name])
        baseline = (name, values[name])
    verdict = (document.get("expect") or {}).get("verdict", "no claim")
    num_runs = sum(arm["n"] for arm in document["arms"])
    num_planned = sum(arm["planned"] for arm in document["arms"])
    if minutes is not None and num_runs < num_planned:
        verdict = f"stopped after {num_runs} of {num_planned} runs"
    return Result(
        num_words,
        **times,
        metric=document["metric"],
        direction=direction,
        verdict=verdict,
        best=best_of(means) if means else None,
        baseline=baseline,
    )


def _run(folder: Path, arguments: Sequence[str], log: Path, minutes: float | None) -> int:
    """Run a command of `blockyard`, stop it after a number of minutes, and return its exit code."""
    limit = None if minutes is None else 60 * minutes
    with log.open("w", encoding="utf-8") as file:
        command = [sys.executable, "-m", "blockyard", *arguments]
        run = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)
        try:
            return run.wait(limit)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGTERM)  # by which a sweep stops its runs
            return run.wait()


def _cpu_seconds() -> float:
    """Return the seconds of CPU time of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _compare(folder: Path, sweep: str, path: Path) -> None:
    """Write the comparison of the finished runs of a sweep that was stopped; nothing where no run was finished."""
    import blockyard
    from blockyard.errors import UserError

    with suppress(UserError):
        comparison = blockyard.compare(str(folder / "outputs/sweeps" / sweep), changes=False)
        path.write_text(json.dumps(comparison.as_dict()), encoding="utf-8")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--data", type=Path, help="the folder of shared data; without it, files made from it are left out"
    )
    parser.add_argument("--hours", type=float, default=0.1, help="for each file")
    parser.add_argument("--minutes", type=float, default=20.0, help="after which a sweep `before` is stopped")
    parser.add_argument("--only", nargs="+", choices=FILES, default=list(FILES))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print("| file | way | words | minutes | CPU minutes | best arm | best simple baseline | beats it | verdict |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in args.only:
        path = args.folder / name
        if not path.exists():
            if args.data is None and FILES[name].make not in WITHOUT_DATA:
                continue
            FILES[name].make(path, args.data)
        results = {"ask": ask(args.folder, name, args.hours)}
        if results["ask"].metric:
            results["before"] = before(args.folder, name, args.minutes)
        for way, result in results.items():
            print(f"| {name} | {way} | {' | '.join(result.cells())} |", flush=True)


def _table(path: Path, frame: Any) -> None:
    frame.to_csv(path, index=False)


def _some_rows(path: Path, source: Path, rows: int, columns: Sequence[str]) -> None:
    """Write some columns of so many rows of a packed table, evenly spaced."""
    text = io.StringIO(gzip.decompress(source.read_bytes()).decode())
    records = list(csv.DictReader(text, delimiter="\t"))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(records[:: max(1, len(records) // rows)][:rows])


WITHOUT_DATA = (wine, diabetes, sunspots, digits)

if __name__ == "__main__":
    main()
