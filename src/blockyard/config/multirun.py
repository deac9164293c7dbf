"""Expands the overrides of a multirun (`seed=1,2 norm=glob(*)`) into overrides of runs, without composing a config.

The meaning is that of Hydra's basic sweeper: every combination, the last key varies fastest, and a key that is given
twice has its last value.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import DecimalException
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.config.choices import catalog
from blockyard.config.override_grammar import parse_override
from blockyard.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MAX_RUNS = 10_000


def expand(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> list[list[str]]:
    """Return the overrides of each run.

    Raises UserError for too many runs, and ValueError for overrides that cannot be swept.
    """
    by_key: dict[str, list[str]] = {}
    for text in overrides:
        override = parse_override(text)
        key = override.get_key_element()
        if override.is_sweep_override():
            by_key[key] = [f"{key}={value}" for value in swept_values(override, folders)]
        else:
            by_key[key] = [text]
    count = 1
    for alternatives in by_key.values():
        count *= len(alternatives)
    if count > MAX_RUNS:
        raise UserError(f"-m: {count:,} runs are too many; at most {MAX_RUNS:,}")
    return [list(run) for run in itertools.product(*by_key.values())]


def swept_values(override: Override, folders: tuple[Path, ...]) -> list[str]:
    """Return the values of a swept override, as they would be typed.

    Raises ValueError where there are none, or too many.
    """
    from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep
    from hydra.errors import HydraException

    value, key = override.value(), override.key_or_group
    if isinstance(value, IntervalSweep):
        raise ValueError("interval() has no end of values; use choice() or range(), or `search:` of `blockyard sweep`")
    if isinstance(value, Glob):
        if key not in catalog.run_keys():
            raise ValueError("glob() matches the choices of a family, and this is none")
        values = value.filter(sorted(catalog.choices(key, folders)))
    else:
        try:
            if isinstance(value, RangeSweep):  # counted first: shuffle() would make a list of all
                count = sum(1 for _ in itertools.islice(value.range(), MAX_RUNS + 1))
                if count > MAX_RUNS:
                    raise ValueError(f"more than {MAX_RUNS:,} values")
            values = list(override.sweep_string_iterator())
        except (HydraException, DecimalException) as error:
            raise ValueError(str(error) or type(error).__name__) from error
    if not values:
        raise ValueError("it matches no value")
    return values
