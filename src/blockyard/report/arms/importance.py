"""The importance of the options of a search, of tuned settings and of a grid, as rows and as a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from blockyard.errors import fold
from blockyard.report.load.arms import ComparisonInput, format_value
from blockyard.report.load.document import ImportanceRow, SettingRow
from blockyard.report.stats.importance import grid_importance, search_importance
from blockyard.sweep.spec.keys import space_of


def importance_rows(data: ComparisonInput, means: Mapping[str, float | None]) -> list[ImportanceRow]:
    """Return a row for each arm whose settings were searched or tuned, else one row for a grid of arms.

    means: arm -> mean of the comparison's metric
    """
    question = data.question or {}
    if not data.tuning:
        grid = {arm: mean for arm, mean in means.items() if mean is not None}
        levels = {arm.name: arm.levels for arm in data.arms}
        shares = grid_importance(grid, levels) if len(grid) == len(means) else None
        return [] if shares is None else [ImportanceRow(arm=None, count=len(grid), shares=shares)]
    rows = []
    search = question.get("search")
    for arm in data.arms:
        tried = [row for row in data.tuning if row.arm == arm.name and _is_complete(row)]
        if search:
            results = [row.mean for row in tried if row.mean is not None]
            searched = search_importance([row.setting for row in tried], results, space_of(search, arm.name))
            if searched:
                rows.append(ImportanceRow(arm=arm.name, count=len(tried), shares=searched.shares, fit=searched.fit))
            continue
        means_of_settings = {str(index): row.mean for index, row in enumerate(tried) if row.mean is not None}
        texts = {str(index): _texts(row) for index, row in enumerate(tried)}
        shares = grid_importance(means_of_settings, texts)
        if shares:
            rows.append(ImportanceRow(arm=arm.name, count=len(tried), shares=shares))
    return rows


def _is_complete(row: SettingRow) -> bool:
    return row.state in (None, "complete") and row.mean is not None and math.isfinite(row.mean)


def _texts(row: SettingRow) -> dict[str, str]:
    return {key: format_value(value) for key, value in row.setting.items()}


def importance_answer(rows: Sequence[ImportanceRow]) -> str:
    """Return the option that matters most in the search of each arm, as a sentence; "" where none was searched."""
    most: dict[str, list[str]] = {}
    for row in rows:
        if row.fit is None or not row.shares:
            continue
        (key, share), *_ = row.shares.items()
        most.setdefault(key, []).append(f"{100 * share:.0f} % for {row.arm}")
    if not most:
        return ""
    parts = [f"{key} explains most ({fold(shares)})" for key, shares in most.items()]
    return f"Of the differences between the trials of an arm, {' and '.join(parts)}."
