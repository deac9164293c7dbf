"""Options that tell runs of the same choices apart: two arms may differ in `token_mixer.qk_norm` alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from blockyard.report.load.arms import flatten, format_value
from blockyard.runs.record import RunRecord

MAX_OPTIONS = 3
# Options of the machine, the replicate and the logger: no part of the question.
OTHER = ("seed", "outputs", "allow", "name", "logger")


def is_other(key: str) -> bool:
    """Return whether an option is of the machine, the replicate or a logger, and no part of the question."""
    return key.partition(".")[0] in OTHER


def telling_apart(records: Sequence[RunRecord], shown: Sequence[str], most: int = MAX_OPTIONS) -> list[str]:
    """Return at most `most` options that tell configs with the same values of the keys `shown` apart.

    The option that tells most configs apart comes first. Runs of one config differ in the seed only.
    """
    configs = {record.run.rpartition("/")[0]: record for record in records}
    shown_values: dict[str, list[Hashable]] = {}
    for name, record in configs.items():
        shown_values[name] = [_hashable(record.value(key)) for key in shown]
    if len(set(map(tuple, shown_values.values()))) == len(configs):
        return []
    options: dict[str, dict[str, Hashable]] = {}
    counts: Counter[str] = Counter()
    for name, record in configs.items():
        options[name] = {}
        for key, value in flatten(record.config).items():
            if not is_other(key):
                options[name][key] = _hashable(value)
        counts.update(options[name].keys())
    candidates = []
    for key in counts:
        if not key.endswith("_target_") and len({values.get(key) for values in options.values()}) > 1:
            candidates.append(key)
    # An option that some configs lack, such as those of `init`, names only the others.
    everywhere = [key for key in candidates if counts[key] == len(configs)]
    chosen: list[str] = []
    while len(chosen) < most:
        key = _best(everywhere, options, shown_values) or _best(candidates, options, shown_values)
        if not key:
            break
        chosen.append(key)
        for name, values in shown_values.items():
            values.append(options[name].get(key))
    return chosen


def _best(
    keys: Sequence[str], options: Mapping[str, Mapping[str, Hashable]], shown_values: Mapping[str, list[Hashable]]
) -> str:
    """Return the key that tells most configs apart beside the values that are shown; "" where none does."""
    best = ""
    most_groups = len(set(map(tuple, shown_values.values())))
    for key in keys:
        groups = {(*values, options[name].get(key)) for name, values in shown_values.items()}
        if len(groups) > most_groups:
            best = key
            most_groups = len(groups)
    return best


def _hashable(value: object) -> Hashable:
    if isinstance(value, list | dict):
        return format_value(value)
    return value
