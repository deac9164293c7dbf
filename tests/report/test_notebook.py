"""The tables that objects show in a notebook: small, escaped, without scripts."""

from __future__ import annotations

import re
from pathlib import Path

import blockyard
from blockyard.report.comparison import compare
from blockyard.runs.folder import RunFolder
from blockyard.terminal import NOTEBOOK_ROWS, notebook_table
from tests.report.page_data import HOSTILE
from tests.report.report_runs import norms_sweep, run

TAGS = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p"}


def test_all_text_is_escaped_and_long_tables_are_cut() -> None:
    rows = [[name, 1] for name in HOSTILE] + [["arm", None]] * NOTEBOOK_ROWS
    text = notebook_table(HOSTILE[0], [HOSTILE[1], "n"], rows, [HOSTILE[2], None, ""])
    assert set(re.findall(r"<(\w+)", text)) == TAGS
    assert "<tr><td>&lt;script&gt;window.hit=1&lt;/script&gt;</td><td>1</td></tr>" in text
    assert text.count("<tr>") == NOTEBOOK_ROWS + 1
    assert f"<p>and {len(HOSTILE)} more</p><p>&lt;/script&gt;" in text


def test_comparisons_plans_runs_and_lists_have_a_table(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path)
    failed = RunFolder.open(run(tmp_path, "block=sandwich", figure="failed"))
    done = RunFolder.open(plan.path(plan.cells[0]))
    expected = [
        (
            compare(plan, changes=False),
            ["norms: test/accuracy, more is better", "<td>pre</td>", "pre (+0.035) is better"],
        ),
        (plan, ["plan norms: 12 cells of 3 arms", "<td>pre</td><td>block=pre_norm</td><td>4</td>"]),
        (done, ["/s0: done", "<td>test/accuracy</td><td>0.9</td>", "block=post_norm"]),
        (failed, ["/s0: failed", "RuntimeError: out of memory"]),
        (blockyard.runs(outputs=tmp_path), ["13 runs", "<th>block</th>", "<td>alibi</td>"]),
    ]
    for shown, texts in expected:
        text = shown._repr_html_()
        assert set(re.findall(r"<(\w+)", text)) <= TAGS
        for part in texts:
            assert part in text, (part, text)
