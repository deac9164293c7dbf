"""Texts that runs wrote for the sources of the test split, for the page: captions, translations, transcripts.

`eval write=true` writes the file, a line of JSON for each source after a line of scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.atomic_files import read_member
from blockyard.report.load.document import WrittenRow, WrittenTable
from blockyard.report.load.run_record import LoadedRun

FILE = "written-test.jsonl"
MAX_BYTES = 50_000_000
MAX_ARMS = 12
MAX_ROWS = 24  # those that most arms get wrong first
MAX_TEXT = 300  # characters


@dataclass(frozen=True)
class WrittenSample:
    """A line of the file."""

    source: str
    reference: str
    written: str

    @property
    def exact(self) -> bool:
        """Return whether the text is the reference."""
        return self.written == self.reference


def written_texts(records: Iterable[LoadedRun]) -> WrittenTable | None:
    """Return the texts of each arm's first run that has any, side by side; None without any.

    Only arms that wrote for the same sources stand side by side; the others are named in `left_out`.
    """
    by_arm: dict[str, tuple[LoadedRun, list[WrittenSample]]] = {}
    left_out: list[str] = []
    for record in records:
        if not record.done or record.arm in by_arm or len(by_arm) >= MAX_ARMS:
            continue
        try:
            by_arm[record.arm] = record, _read_samples(record)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            left_out.append(f"{record.run}: {error}")
    if not by_arm:
        if left_out:
            return WrittenTable(arms={}, rows=[], of=0, left_out=left_out)
        return None
    first = next(iter(by_arm.values()))[1]
    same = {arm: samples for arm, (_, samples) in by_arm.items() if _sources(samples) == _sources(first)}
    left_out += [f"{record.run}: other sources" for arm, (record, _) in by_arm.items() if arm not in same]
    wrong = [sum(not samples[index].exact for samples in same.values()) for index in range(len(first))]
    order = sorted(range(len(first)), key=lambda index: -wrong[index])[:MAX_ROWS]
    rows = []
    for index in order:
        row = WrittenRow(
            source=first[index].source[:MAX_TEXT],
            reference=first[index].reference[:MAX_TEXT],
            written={arm: [own[index].written[:MAX_TEXT], own[index].exact] for arm, own in same.items()},
        )
        rows.append(row)
    seeds = {arm: by_arm[arm][0].seed for arm in same}
    return WrittenTable(arms=seeds, rows=rows, of=len(first), left_out=left_out)


def _read_samples(record: LoadedRun) -> list[WrittenSample]:
    """Return the lines of the file after the line of scores. Raises ValueError for damage and for other weights."""
    content = read_member(record.path / FILE, MAX_BYTES).decode("utf-8")
    head, *lines = content.removesuffix("\n").split("\n")  # not `splitlines`: a text may hold other ends of lines
    scores, own = json.loads(head), record.summary.get("weights")
    weights = scores.get("weights", own) if isinstance(scores, dict) else None
    if own and weights != own:
        raise ValueError(f"{FILE} is of {weights}, and the run's results are of {own}")
    samples = []
    for number, line in enumerate(lines, start=2):
        row = json.loads(line)
        if not isinstance(row, dict) or not all(
            isinstance(row.get(key), str) for key in ("source", "reference", "written")
        ):
            raise ValueError(f"{FILE} is damaged in line {number}")
        samples.append(WrittenSample(row["source"], row["reference"], row["written"]))
    return samples


def _sources(samples: list[WrittenSample]) -> list[tuple[str, str]]:
    return [(row.source, row.reference) for row in samples]
