"""Checks that heads share."""

from __future__ import annotations

from blockyard.contracts import Head, Seq


def check_one_document(head: Head, seq: Seq) -> None:
    """Raises ValueError for packed sequences, where one prediction per sequence would mix documents."""
    if seq.segment is not None:
        raise ValueError(
            f"head {type(head).__name__} makes one prediction per sequence and this sequence packs several documents; "
            "pass one document per sequence, or use head=token"
        )
