"""Synthetic tasks: sizes and components that do not fit are refused."""

from __future__ import annotations

import pytest

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.data.associative_recall import AssociativeRecall
from blockyard.data.compression import Compression
from blockyard.data.context_recall import ContextRecall
from blockyard.data.copy import Copy
from blockyard.data.induction import Induction
from blockyard.data.listops import ListOps
from blockyard.data.long_agreement import LongAgreement
from blockyard.data.memorisation import Memorisation
from blockyard.data.needle import Needle


def test_sizes_that_do_not_fit_are_refused() -> None:
    for make, message in (
        (lambda: AssociativeRecall(pairs=17), "to be 68 or more"),
        (lambda: AssociativeRecall(symbols=8), "too few for 8 keys"),
        (lambda: Copy(held=40), "to be 80 or more"),
        (lambda: LongAgreement(length=30), "a multiple of 4"),
        (lambda: LongAgreement(length=16, clauses=4), "room for 3"),
        (lambda: ContextRecall(pairs=17), "too short for 17 pairs"),
        (lambda: ContextRecall(pairs=6, compositional=True), "must be a square"),
        (lambda: ContextRecall(motif=2, compositional=True, length=200), "must be 1"),
        (lambda: ContextRecall(updates=5), "more than data.pairs=4"),
        (lambda: ContextRecall(keys=3), "too few different keys"),
        (lambda: ContextRecall(values=1), "no other value"),
        (lambda: Memorisation(length=31), "must be even"),
        (lambda: Compression(length=1), "need 2"),
        (lambda: Induction(length=3), "need 4"),
        (lambda: Needle(length=57, needles=5), "too short for 5 needles"),
        (lambda: ListOps(max_args=1), "two arguments or more"),
        (lambda: ListOps(least=65), "more than data.length=64"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def refusal(*overrides: str) -> str:
    return " ".join(map(str, check(compose(["logger=none", *overrides]))))


def test_what_does_not_go_together_is_refused() -> None:
    assert "objective=masked_token needs a bidirectional model" in refusal("experiment=bert_code", "model=decoder")
    assert "tokenizer=char reads texts, but data=associative_recall gives symbols " in refusal(
        "experiment=recall", "tokenizer=char"
    )
    assert "objective=next_token is for texts" in refusal("experiment=recall", "objective=next_token")
    assert "objective=answer needs target tokens for each sequence" in refusal(
        "experiment=gpt_code", "objective=answer"
    )
    assert "has a source sequence" in refusal("experiment=translate_dates", "model=decoder")
