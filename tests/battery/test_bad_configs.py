"""Bad configs, generated from the schema: `check` answers with exit code 2 and one short message for each problem.

Cases run in forks of a process that has imported everything, many in each. A fork may take little memory, whatever
sizes its configs name, and processor time is what is limited, so that a busy machine fails nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from blockyard.config.choices import catalog
from tests.battery.bad_values import OBJECT, BadValue, bad_values, every_option
from tests.battery.cases import battery, cases
from tests.battery.run_catalogue import overrides
from tests.support.fork import forked

pytestmark = battery("bad_configs")

SHARE = 9  # one bad value in so many is tried: the types of options repeat
IN_A_FORK = 40
LONGEST_MESSAGE = 700  # characters
MEDIAN_SECONDS, MOST_SECONDS = 0.5, 20.0  # of processor time; the first use of a library imports it
MEMORY = 400 * 2**20  # bytes that a fork may take in addition, for all its cases and the libraries they import

ALL = bad_values()[::SHARE]
FORKS = [ALL[start :: len(ALL) // IN_A_FORK] for start in range(len(ALL) // IN_A_FORK)]
DEFAULTS = ("model.dim", "optimizer.lr", "data.batch_size", "trainer.max_epochs", "token_mixer.bias", "name", "seed")
UNREADABLE = ("[" * 400 + "]" * 400, "{a:" * 400 + "1" + "}" * 400, "9" * 6000, "[1", "{a", "'a", "${nothing}", "${")
OTHER = (
    *((f"{family}=nonsense", family) for family in catalog.families() if family not in ("experiment", "preset")),
    *((f"{family}={{a:1}}", family) for family in catalog.families()),
    *((f"{family}={OBJECT}", family) for family in catalog.families()),
    *((f"{family}=[attention]", family) for family in catalog.families()),
    *((f"~{family}", family) for family in catalog.families()),
    *((f"{family}.nonsense=1", f"{family}.nonsense") for family in catalog.families() if family != "debug"),
    *((f"{chosen.key}s=1", f"{chosen.key}s") for chosen in every_option() if not chosen.overrides),
    *((f"{key}={value}", key) for key in DEFAULTS for value in UNREADABLE),
    ("model.dimm=64", "model.dimm"),
    ("model.dim.x=64", "model.dim"),
    ("model.dim", "model.dim"),
    ("=5", ""),
    ("model.dim=", "model.dim"),
    ("model.dim=32,64", "model.dim"),
    ("model.dim=range(1,5)", "model.dim"),
    ("model.dim=${model.dim}", "model"),
    ("model.dim='${oc.env:NO_SUCH_VARIABLE}'", "model.dim"),
    ("callbacks.progress=5", "callbacks.progress"),
    ("callbacks.mine._target_=torch.nn.Identity", "callbacks.mine._target_"),
    ("callbacks.mine._target_=pytorch_lightning.callbacks.ModelCheckpoint", "callbacks.mine._target_"),
    ("norm._target_=torchmetrics.text.BERTScore", "norm._target_"),
    ("norm._target_=transformers.BertModel", "norm._target_"),
    ("norm._target_=5", "norm._target_"),
    (f"norm._target_={OBJECT}", "norm._target_"),
    ("norm._partial_=false", "norm._partial_"),
    ("position.rope=true", "position.rope"),
    ("executor.workers=2", "executor.workers"),
    ("x" * 5000 + "=1", "xxxx"),
    ("match.params=nan", "match.params"),
    ("match.params=abc", "match.params"),
    ("match.params=-1", "match.params"),
    ("match.params=[1]", "match.params"),
    (f"match.params={OBJECT}", "match.params"),
    ("match.params=1e30", "match.params"),
    ("match.by=[1]", "match.by"),
    ("match.nonsense=1", "match.nonsense"),
    ("tokenizer.size=7", "tokenizer.size"),
    ("model.heads=7", "model.heads"),
    ("model.dim=65536", "memory"),
    ("data.batch_size=1048576 model.dim=4096", "memory"),
    ("trainer.accumulate=3", "trainer.accumulate"),
    ("trainer.max_epochs=null", "trainer.max_epochs"),
)


def checked(arguments: Sequence[str]) -> dict[str, Any]:
    """The exit code, the messages and the processor time of `blockyard check` in this process."""
    from blockyard.cli import main

    out, err = io.StringIO(), io.StringIO()
    start = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["check", *arguments])
    return {"arguments": arguments, "code": code, "err": err.getvalue(), "seconds": time.process_time() - start}


def built(executor: str, override: str) -> dict[str, Any]:
    """The same for an option of an executor, which is not a part of a run."""
    from blockyard.config.override_grammar import parse_override
    from blockyard.errors import UserError
    from blockyard.sweep.executor import build

    start, message = time.process_time(), ""
    try:
        parsed = parse_override(override)
        build(executor, {parsed.key_or_group: parsed.value()})
    except (UserError, ValueError) as error:
        message = f"blockyard: {error}\n"
    return {
        "arguments": [override],
        "code": 2 if message else 0,
        "err": message,
        "seconds": time.process_time() - start,
    }


def among_companions(bad: BadValue, files: Path) -> list[str]:
    """A bad value in a run that holds its choice and is sound but for it."""
    family, _, name = bad.overrides[0].partition("=")
    key = bad.overrides[-1].partition("=")[0]
    return [
        *(override for override in overrides(family, name, files) if override.partition("=")[0] != key),
        bad.overrides[-1],
    ]


def in_a_fork(tmp_path: Path, work: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What `work` returns in a process of its own, which may take little memory."""

    def report() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        results = work()
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        (tmp_path / "results").write_text(json.dumps([taken, results]), encoding="utf-8")
        return 0

    assert forked(report, limit=1800) == 0
    taken, results = json.loads((tmp_path / "results").read_text(encoding="utf-8"))
    assert taken <= MEMORY, f"{taken / 2**20:.0f} MiB"
    return list(results)


def problem(result: dict[str, Any], key: str, messages: int = 1) -> str | None:
    """What is wrong with an answer, or None."""
    text = result["err"]
    shown = f"{[argument[:60] for argument in result['arguments']]} -> {result['code']}, {text[:600]!r}"
    lines = text.removesuffix("\n").split("\n")
    if messages > 1:
        lines = lines[1:]
    if result["code"] != 2 or len(lines) != messages or len(set(lines)) != messages:
        return f"not {messages} messages: {shown}"
    if any(len(line) > LONGEST_MESSAGE for line in lines) or not all(map(str.isprintable, lines)):
        return f"not short: {shown}"
    if "Traceback" in text or "frame #" in text or key not in text:
        return f"does not name {key}: {shown}"
    return f"took {result['seconds']:.1f} s: {shown}" if result["seconds"] > MOST_SECONDS else None


@pytest.mark.parametrize("case", cases(range(len(FORKS)), short=1))
def test_a_bad_value_is_refused(
    case: int, data_files: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    def refused(bad: BadValue) -> dict[str, Any]:
        if bad.executor:
            return built(bad.executor, *bad.overrides)
        overrides = [*bad.overrides, *([] if bad.overrides[0].startswith("logger") else ["logger=none"])]
        result = checked(overrides)
        if result["err"].count("\n") > 1:  # also why the choice does not go with the defaults
            result = checked(among_companions(bad, data_files))
        return result

    chosen = FORKS[case]
    results = in_a_fork(tmp_path, lambda: [refused(bad) for bad in chosen])
    problems = [issue for bad, result in zip(chosen, results, strict=True) if (issue := problem(result, bad.key))]
    assert not problems, "\n".join(problems)
    assert statistics.median(result["seconds"] for result in results) <= MEDIAN_SECONDS
    record_property("cases", len(chosen))


@pytest.mark.parametrize("case", cases(range(6), short=1))
def test_a_bad_override_is_refused(case: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    chosen = OTHER[case::6]
    results = in_a_fork(tmp_path, lambda: [checked([*text.split(" "), "logger=none"]) for text, _ in chosen])
    problems = [issue for (_, key), result in zip(chosen, results, strict=True) if (issue := problem(result, key))]
    assert not problems, "\n".join(problems)
    record_property("cases", len(chosen))


@pytest.mark.full
@pytest.mark.parametrize("case", cases(range(4), short=1))
def test_every_problem_is_told_once(case: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Three bad values of the defaults together: three messages."""
    random = Random(case)
    families = (
        "model=encoder",
        "optimizer=adamw",
        "trainer=auto",
        "data=digits",
        "token_mixer=attention",
        "norm=layer",
    )
    plain = [bad for bad in bad_values() if not bad.executor and (bad.overrides[:-1] or ["="])[0] in (*families, "=")]
    groups = [random.sample(plain, 3) for _ in range(10)]
    groups = [group for group in groups if len({bad.key for bad in group}) == 3]
    results = in_a_fork(
        tmp_path, lambda: [checked(["logger=none", *(bad.overrides[-1] for bad in group)]) for group in groups]
    )
    problems = [
        issue
        for group, result in zip(groups, results, strict=True)
        for bad in group
        if (issue := problem(result, bad.key, messages=3))
    ]
    assert not problems, "\n".join(problems)
    record_property("cases", len(groups))


@pytest.mark.full
@pytest.mark.parametrize("case", cases(range(8), short=1))
def test_choices_that_do_not_go_together_are_refused(
    case: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Choices drawn for every family, of which few go together: each pair that cannot is told once."""
    random = Random(case)
    families = [family for family in catalog.families() if family not in ("experiment", "preset", "debug")]
    combinations = [
        [f"{family}={random.choice(list(catalog.choices(family)))}" for family in families if family != "trainer"]
        for _ in range(25)
    ]
    results = [each for each in in_a_fork(tmp_path, lambda: [checked(row) for row in combinations]) if each["code"]]
    assert results
    for result in results:
        count = len(result["err"].splitlines()) - 1 or 1
        assert problem(result, "", messages=count) is None, result
    record_property("cases", len(results))
