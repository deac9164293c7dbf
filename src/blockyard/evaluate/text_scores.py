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

DIRECTIONS = {"exact": "max", "bleu": "max", "chrf": "max", "cer": "min", "wer": "min"}


def scores(written: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Exact match, BLEU, chrF, and error rates of characters and words; each over all texts together."""
    import_torchmetrics()
    from torchmetrics.text import CharErrorRate, SacreBLEUScore, WordErrorRate

    exact = sum(text == reference for text, reference in zip(written, references, strict=True)) / len(written)
    return {
        "exact": exact,
        "bleu": float(SacreBLEUScore()(written, [[reference] for reference in references])),
        "chrf": chrf(written, references),
        "cer": float(CharErrorRate()(written, references)),
        "wer": float(WordErrorRate()(written, references)),
    }


def chrf(written: Sequence[str], references: Sequence[str], order: int = 6, beta: float = 2.0) -> float:
    """The mean over n up to `order` of the F score of character n-grams without spaces, counted over all texts.

    Not torchmetrics' CHRFScore: it leaves out the reference of a text that has no n-gram of it, an empty one for
    example, and so rewards writing nothing.
    """
    values = []
    for n in range(1, order + 1):
        hits = ours = theirs = 0
        for text, reference in zip(written, references, strict=True):
            left, right = _ngrams(text, n), _ngrams(reference, n)
            hits, ours, theirs = hits + (left & right).total(), ours + left.total(), theirs + right.total()
        if not theirs:  # every reference is shorter
            break
        values.append((1 + beta**2) * hits / (beta**2 * theirs + ours))
    return sum(values) / len(values) if values else 0.0


def _ngrams(text: str, n: int) -> Counter[str]:
    letters = "".join(text.split())
    return Counter(letters[i : i + n] for i in range(len(letters) - n + 1))
