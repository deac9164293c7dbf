"""`blockyard compare` as a user types it, and what its tables may hold."""

from __future__ import annotations

import csv
import io
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from blockyard.cli import main
from blockyard.report.comparison import Comparison, compare
from blockyard.report.load.document import read_document
from blockyard.report.render import columns
from blockyard.report.render.csv import csv as as_csv
from blockyard.report.render.csv import runs as as_runs
from blockyard.report.render.latex import latex
from blockyard.report.render.markdown import markdown
from blockyard.report.render.terminal import show
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import grid, run, sweep
from tests.support.every import every

ARMS = {"post": ["block=post_norm"], "pre": ["block=pre_norm"], "few": ["model.depth=2"]}
VALUES: dict[str, dict[int, float | str]] = {
    "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: "failed"},
    "pre": {0: 0.93, 1: 0.95, 2: 0.94, 3: 0.95},
    "few": {0: 0.3, 1: "missing"},
}
HOSTILE = r"a|b & 50% $x$ #1 _y_ {z} ~ ^ \input{x} <script>alert(1)</script> [bold]`c`*d*"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepPlan:
    monkeypatch.chdir(tmp_path)
    return sweep(tmp_path / "outputs", ARMS, VALUES, question={"expect": "pre > post"})


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["compare", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def _wide(data: Comparison, width: int) -> list[str]:
    """The lines on a terminal of that width."""
    out = io.StringIO()
    show(data, Console(file=out, width=width, force_terminal=True, color_system=None, markup=False, highlight=False))
    return out.getvalue().splitlines()


def test_the_table_the_verdicts_and_the_answer(plan: SweepPlan, capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys, "norms")
    assert "expected: pre > post: supported" in text
    lines = text.splitlines()
    row = next(line for line in lines if line.startswith("pre "))
    assert row.split() == [
        "pre",
        "4",
        "0.942",
        "±",
        "0.015",
        "+0.035",
        "±",
        "0.012",
        "0.0067",
        "0.25",
        "+3.95",
        "better",
    ]
    assert re.search(r"^post +3/4 ", text, re.MULTILINE)
    assert "it cannot be below 1 with 1 seed, 0.25 with 3 seeds" in text
    assert "pre: Better: pre > post is supported; pre against post: +0.035" in text
    assert "few: Not asked: no clause compares it with post." in text
    assert "post: 1 of 4 cells failed (RuntimeError: out of memory), seed 3" in text
    assert lines[-1].startswith("As expected (pre > post): ")
    assert "\x1b" not in text


def test_every_row_is_one_line_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {f"{arm}_{'x' * 60}": overrides for arm, overrides in ARMS.items()}
    values = dict(zip(names, VALUES.values(), strict=True))
    sweep(tmp_path, names, values, name="long")
    text = _printed(capsys, str(tmp_path / "sweeps" / "long"))
    assert every(any(line.startswith(f"{name} ") for line in text.splitlines()) for name in names)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_tables_fit_a_terminal_with_no_figure_cut(tmp_path: Path, width: int) -> None:
    arms, levels = grid({"block": ["pre_norm", "post_norm"], "optimizer.lr": ["0.001", "0.01"]})
    values = {arm: {s: 0.81 + 0.013 * s * s + 0.1 * ("pre" in arm) for s in range(3)} for arm in arms}
    data = compare(sweep(tmp_path, arms, values, levels=levels, question={"kind": "grid"}))
    lines = _wide(data, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    if width >= 100:
        for cell in columns.quality(data)[1][1][1:]:
            assert cell in text, cell
    assert "effects" in text
    assert "block: post_norm against pre_norm: -0.1" in text


def test_of_many_arms_only_those_that_differ_are_told_in_words(tmp_path: Path) -> None:
    arms = {f"lr_{k}": [f"optimizer.lr={0.001 * (k + 1):.3f}"] for k in range(40)}
    draw = random.Random(0)
    values = {
        arm: {seed: 0.5 + 0.1 * (k % 4 == 3) + 0.01 * seed + 0.001 * draw.gauss(0, 1) for seed in range(5)}
        for k, arm in enumerate(arms)
    }
    data = compare(sweep(tmp_path, arms, values))
    text = "\n".join(_wide(data, 120))
    listed = [arm for arm in data.arms if arm.verdict in ("better", "worse")]
    assert len(listed) == 10
    assert "and 29 more arms" in text
    assert text.count("Better than lr_0: +0.") == 10
    assert text.count("No difference shown to") == 0


def test_tables_are_written_in_every_form(plan: SweepPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"--markdown": "a.md", "--latex": "a.tex", "--csv": "a.csv", "--html": "a.html"}
    arguments = [argument for pair in names.items() for argument in pair]
    assert _printed(capsys, "norms", *arguments) == ""
    data = compare(plan)
    assert (tmp_path / "a.md").read_text() == markdown(data)
    assert (tmp_path / "a.tex").read_text() == latex(data)
    assert (tmp_path / "a.csv").read_text() == as_csv(data)
    assert "<!doctype html>" in (tmp_path / "a.html").read_text()[:200].lower()
    assert _printed(capsys, "norms", "--csv", "-") == as_csv(data)
    assert _printed(capsys, "--csv", "norms") == as_csv(data), "a path of runs after a flag is no file"
    assert _printed(capsys, "norms", "--runs", "--metric=test/loss") == as_runs(compare(plan, metric="test/loss"))


def test_what_was_expected_is_judged_by_its_own_metric_alone(plan: SweepPlan) -> None:
    result = compare(plan)
    assert result.expect is not None
    other = compare(plan, metric="test/loss" if result.metric != "test/loss" else "test/accuracy")
    assert other.expect is None
    assert any(
        f"({result.expect.text}) is not evaluated: it refers to {result.metric}" in line for line in other.warnings
    )


def test_csv_is_tidy(plan: SweepPlan) -> None:
    data = compare(plan)
    rows = list(csv.DictReader(io.StringIO(as_csv(data))))
    assert [row["arm"] for row in rows] == ["post", "pre", "few"]
    assert float(rows[1]["mean"]) == data.arms[1].mean
    assert float(rows[1]["difference_low"]) == data.arms[1].difference.interval[0]
    assert rows[0]["difference"] == rows[2]["low"] == ""
    assert float(rows[1]["test/loss"]) == data.arms[1].other["test/loss"].mean
    assert float(rows[2]["parameters_ratio"]) == data.arms[2].cost_ratio["parameters"]
    runs = list(csv.DictReader(io.StringIO(as_runs(data))))
    assert len(runs) == len(data.cells) == 10
    assert [row["state"] for row in runs].count("done") == 8
    assert runs[0]["test/accuracy"] == "0.9"
    assert next(row for row in runs if row["state"] == "failed")["reason"] == "RuntimeError: out of memory"


def _hostile(tmp_path: Path) -> Comparison:
    arms = {"base": ["block=post_norm"], HOSTILE: ["block=pre_norm"]}
    values = {"base": {0: 0.9, 1: 0.91, 2: 0.905}, HOSTILE: {0: 0.93, 1: 0.95, 2: 0.94}}
    return compare(sweep(tmp_path, arms, values, question={"claim": f"{HOSTILE}\nsecond line"}))


def test_names_are_no_markup_in_markdown(tmp_path: Path) -> None:
    text = markdown(_hostile(tmp_path))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    table = [line for line in rows if "baseline" in line or "better" in line or "verdict" in line]
    counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
    assert counts == {9}, "a bar in a name would make a column"
    assert r"\<script\>" in text
    assert not re.search(r"(?<!\\)<", text)
    assert not re.search(r"(?<!\\)`", text)


def test_names_are_no_commands_in_latex(tmp_path: Path) -> None:
    text = latex(_hostile(tmp_path))
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert r"\textbackslash{}input\{x\}" in body
    assert r"\input" not in body
    unescaped = re.sub(r"\\[&%$#_{}]|\\text[a-z]+\{\}|\$\\pm\$", "", body)
    assert not re.search(r"[$#~^%<>]", unescaped)
    for line in body.splitlines():
        if line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == 7
    for environment in ("table", "tabular"):
        assert body.count(rf"\begin{{{environment}}}") == body.count(rf"\end{{{environment}}}")
    assert [body.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [2, 2, 2]


def test_names_are_no_markup_on_the_terminal(tmp_path: Path) -> None:
    text = " ".join("".join(_wide(_hostile(tmp_path), 300)).split())
    assert "[bold]`c`*d*" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no run given: name a sweep, run folders, names or ids"),
        (["nothing"], "nothing: no such path, run or sweep under outputs; there are norms"),
        (["norms", "--baseline", "nobody"], "baseline=nobody: no such arm; there are post, pre, few"),
        (["norms", "--metric", "test/f1"], "metric=test/f1: no run has it; there are test/accuracy, test/loss"),
        (["norms", "--by", "blok"], "--by blok: no run has this key; the runs differ in block, model.depth"),
        (["norms", "--metrics", "x"], "--metrics: unknown flag; did you mean --metric?"),
        (["norms", "--metric"], "--metric: a value is missing"),
        (["norms", "--html"], "--html: a file is missing"),
        (["norms", "--direction", "up"], "direction=up: expected max or min"),
        (["norms", "--cost-axis", "money"], "cost_axis=money: expected one of flops"),
        (["norms", "--margin", "lots"], "--margin: expected a number > 0, not 'lots'"),
        (["norms", "--csv", "outputs/sweeps/norms/plan.json/x.csv"], "cannot be written"),
    ],
)
def test_what_cannot_work_is_one_message_and_code_2(
    plan: SweepPlan, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    text = _printed(capsys, *arguments, code=2)
    assert text.startswith("blockyard: ")
    assert message in text
    assert text.count("\n") == 1


def test_two_formats_in_one_file_and_no_name_are_refused(
    plan: SweepPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(plan.folder), "--csv", "a.csv", "--runs", "a.csv"]) == 2
    assert "--csv and --runs name one file, a.csv" in capsys.readouterr().err
    assert not Path("a.csv").exists()
    assert main(["compare", ""]) == 2
    assert "no run given" in capsys.readouterr().err
    assert main(["inspect", "run=x", ""]) == 2
    assert "inspect needs a kind" in capsys.readouterr().err


def test_margin_and_direction_reach_the_comparison(plan: SweepPlan, capsys: pytest.CaptureFixture[str]) -> None:
    assert "worse" in _printed(capsys, "norms", "--direction", "min")
    sweep(Path("outputs"), ARMS, {arm: VALUES["post"] | {3: 0.9 + 0.01 * k} for k, arm in enumerate(ARMS)}, name="same")
    assert "to detect a difference of 0.01" in _printed(capsys, "same", "--margin", "0.01")
    assert "less seconds" not in _printed(capsys, "same", "--cost-axis", "seconds")


def test_budgets_notes_and_what_memory_means_are_told(plan: SweepPlan) -> None:
    data = compare(plan).as_dict()
    data["arms"][1]["budget"] = {"settings": 3, "chosen": {"optimizer.lr": 0.01}}
    data["arms"][2]["budget"] = {"settings": 1, "chosen": None}
    data["provenance"]["notes"] = ["widths were solved"]
    text = "\n".join(_wide(read_document(data), 120))
    assert "pre: optimizer.lr=0.01, of 3 settings tried" in text
    assert "few: none chosen yet, of 1 setting tried" in text
    assert "widths were solved" in text
    assert "memory: peak of the whole process" in text
    assert "pre: optimizer.lr=0.01, of 3 settings tried" in markdown(read_document(data))


def test_runs_of_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        run(tmp_path / "outputs", "block=pre_norm", seed=seed, figure=0.95 + 0.001 * seed)
        run(tmp_path / "outputs", "block=post_norm", seed=seed, figure=0.90 + 0.002 * seed)
    text = _printed(capsys, "outputs", "--baseline", "block=post_norm")
    assert re.search(r"block=pre_norm +3 .* better", text)
    other = tmp_path / "elsewhere"
    (tmp_path / "outputs").rename(other)
    assert "better" in _printed(capsys, str(other), "--baseline", "block=post_norm")
    assert "block=pre_norm" in _printed(capsys, "encoder_digits", f"outputs={other}")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from blockyard.cli import main; assert main(['compare', '--help']) == 0; "
        "heavy = {'torch', 'scipy', 'statsmodels', 'pandas', 'numpy', 'rich', 'hydra'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--baseline ARM" in done.stdout


@pytest.mark.full
def test_the_tables_of_a_sweep_need_no_torch(plan: SweepPlan) -> None:
    code = (
        "import sys; from blockyard.cli import main; assert main(['compare', 'norms']) == 0; "
        "heavy = {'torch', 'pandas', 'pytorch_lightning', 'hydra'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_settings_of_a_few_runs_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "position=rope", "optimizer.lr=0.01", figure=0.9)
    run(tmp_path, "position=none", "optimizer.lr=0.01", figure=0.8)
    run(tmp_path, "position=none", "optimizer.lr=0.01", "model.depth=3", figure=0.7)
    lines = _printed(capsys, str(tmp_path)).splitlines()
    below = lines[lines.index("settings that differ") + 1 :]
    table = below[: below.index("")]
    rows = {line.split()[0]: sorted(line.split()[1:]) for line in table}
    assert rows.keys() == {"setting", "position", "model.depth"}  # not the rate
    assert rows["position"] == ["none", "none", "rope"]
    assert rows["model.depth"] == ["3", "4", "4"]
    markdown_lines = _printed(capsys, str(tmp_path), "--markdown").splitlines()
    assert any(line.startswith("| position |") for line in markdown_lines)
    for number in range(5, 10):
        run(tmp_path, "position=none", "optimizer.lr=0.01", f"model.depth={number}", figure=0.7)
    assert "settings that differ" not in _printed(capsys, str(tmp_path))


def test_settings_of_a_sweep_are_those_of_its_file(plan: SweepPlan, capsys: pytest.CaptureFixture[str]) -> None:
    assert "settings that differ" not in _printed(capsys, "norms")
