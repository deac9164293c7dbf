"""Scores of written texts against one reference each, as fractions: 1 is 100 %.

Source: Papineni et al. 2002, BLEU: a Method for Automatic Evaluation of Machine Translation; Popovic 2015, chrF:
    character n-gram F-score for automatic MT evaluation; Levenshtein 1966 for the error rates
Reference: torchmetrics SacreBLEUScore (tokenizer 13a), CharErrorRate and WordErrorRate, which compute them here;
    sacrebleu for chrF
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from blockyard.objective._torchmetrics import import_torchmetrics

# Of each score, whether more or less of it is better.
DIRECTIONS = {"exact": "max", "bleu": "max", "chrf": "max"} | dict.fromkeys(
    ("cer", "wer", "insertions", "char_insertions"), "min"
)


def scores(written: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Exact match, BLEU, chrF, character and word error rates, and inserted words and characters, of all texts."""
    import_torchmetrics()
    from torchmetrics.text import CharErrorRate, WordErrorRate

    exact = sum(text == reference for text, reference in zip(written, references, strict=True)) / len(written)
    return {
        "exact": exact,
        "bleu": bleu(written, references),
        "chrf": chrf(written, references),
        "cer": float(CharErrorRate()(written, references)),
        "wer": float(WordErrorRate()(written, references)),
        "insertions": insertions(written, references),
        "char_insertions": char_insertions(written, references),
    }


def bleu(written: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of n-grams up to 4, counted over all texts."""
    import_torchmetrics()
    from torchmetrics.text import SacreBLEUScore

    return float(SacreBLEUScore()(written, [[reference] for reference in references]))


def insertions(written: Sequence[str], references: Sequence[str]) -> float:
    """The words that are written and not in the source, over the words of the references: the part of the word errors
    that grows where a model hallucinates. Of the shortest edits, those with the fewest insertions count.
    """
    added = sum(_added(text.split(), reference.split()) for text, reference in zip(written, references, strict=True))
    return added / max(sum(len(reference.split()) for reference in references), 1)


def char_insertions(written: Sequence[str], references: Sequence[str]) -> float:
    """The same of characters, for texts of one word or without blanks."""
    added = sum(_added(text, reference) for text, reference in zip(written, references, strict=True))
    return added / max(sum(map(len, references)), 1)


def _added(text: Sequence[str], reference: Sequence[str]) -> int:
    above = [(column, 0) for column in range(len(reference) + 1)]  # edits, and those that are insertions
    for row, token in enumerate(text, start=1):
        here = [(row, row)]
        for column, other in enumerate(reference, start=1):
            replaced = (above[column - 1][0] + (token != other), above[column - 1][1])
            inserted = (above[column][0] + 1, above[column][1] + 1)
            here.append(min(replaced, inserted, (here[-1][0] + 1, here[-1][1])))
        above = here
    return above[-1][1]


def chrf(written: Sequence[str], references: Sequence[str], order: int = 6, beta: float = 2.0) -> float:
    """The F score of the means over n up to `order` of precision and recall of character n-grams, over all texts.

    Without spaces; an n that no written text or no reference reaches is left out, as in sacrebleu. Not
    torchmetrics' CHRFScore: it leaves out the reference of a text that has no n-gram of it, an empty one for example,
    and so rewards writing nothing.
    """
    precisions, recalls = [], []
    for n in range(1, order + 1):
        hits = ours = theirs = 0
        for text, reference in zip(written, references, strict=True):
            left, right = _ngrams(text, n), _ngrams(reference, n)
            hits, ours, theirs = hits + (left & right).total(), ours + left.total(), theirs + right.total()
        if not theirs or not ours:  # all are shorter
            break
        precisions.append(hits / ours)
        recalls.append(hits / theirs)
    if not any(precisions):
        return 0.0
    p, r = (sum(values) / len(values) for values in (precisions, recalls))
    return (1 + beta**2) * p * r / (beta**2 * p + r)


def _ngrams(text: str, n: int) -> Counter[str]:
    letters = "".join(text.split())
    return Counter(letters[i : i + n] for i in range(len(letters) - n + 1))
