"""The importance of the options of a search, of tuned settings and of a grid, as rows and as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockyard.config.tree import is_number
from blockyard.errors import fold
from blockyard.report.load.arms import ComparisonInput, format_value
from blockyard.report.load.document import ImportanceRow, SettingRow
from blockyard.report.stats.importance import grid_importance, search_importance
from blockyard.sweep.spec.keys import Search, space_of


def importance_rows(data: ComparisonInput, means: Mapping[str, float | None]) -> list[ImportanceRow]:
    """Return a row for each arm whose settings were searched or tuned, else one row for a grid of arms.

    means: arm -> mean of the comparison's metric
    """
    if not data.tuning:
        return _of_grid(data, means)
    search = (data.question or {}).get("search")
    importances = []
    for arm in data.arms:
        tried = []
        for setting in data.tuning:
            is_complete = setting.state in (None, "complete") and is_number(setting.mean)
            if setting.arm == arm.name and is_complete:
                tried.append(setting)
        importance = _of_search(arm.name, tried, search) if search else _of_tuning(arm.name, tried)
        if importance is not None:
            importances.append(importance)
    return importances


def _of_grid(data: ComparisonInput, means: Mapping[str, float | None]) -> list[ImportanceRow]:
    """Return the row of a grid in which every arm has a mean; none of other arms, and of sizes, whose laws say more."""
    if (data.question or {}).get("ladder"):
        return []
    measured = {arm: mean for arm, mean in means.items() if mean is not None}
    if len(measured) < len(means):
        return []
    shares = grid_importance(measured, {arm.name: arm.levels for arm in data.arms})
    if shares is None:
        return []
    return [ImportanceRow(arm=None, count=len(measured), shares=shares)]


def _of_search(arm: str, tried: Sequence[SettingRow], search: Search) -> ImportanceRow | None:
    results = [row.mean for row in tried if row.mean is not None]
    importance = search_importance([row.setting for row in tried], results, space_of(search, arm))
    if importance is None:
        return None
    return ImportanceRow(arm=arm, count=len(tried), shares=importance.shares, fit=importance.fit)


def _of_tuning(arm: str, tried: Sequence[SettingRow]) -> ImportanceRow | None:
    means = {}
    levels = {}
    for index, row in enumerate(tried):
        if row.mean is not None:
            means[str(index)] = row.mean
            levels[str(index)] = {key: format_value(value) for key, value in row.setting.items()}
    shares = grid_importance(means, levels)
    if shares is None:
        return None
    return ImportanceRow(arm=arm, count=len(tried), shares=shares)


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
