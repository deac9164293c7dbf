"""Checks that heads share."""

from __future__ import annotations

from blockyard.contracts import Head, Seq


def check_one_document(head: Head, seq: Seq) -> None:
    """Raises ValueError where one answer a row is asked of a row of several documents."""
    if seq.segment is not None:
        raise ValueError(
            f"head {type(head).__name__} gives one answer a row and this row holds several documents; "
            "give one document a row, or use head=token"
        )
