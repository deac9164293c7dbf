"""Scores of written texts against one reference each, as fractions: 1 is 100 %.

Source: Papineni et al. 2002, BLEU: a Method for Automatic Evaluation of Machine Translation; Popovic 2015, chrF:
    character n-gram F-score for automatic MT evaluation; Levenshtein 1966 for the error rates
Reference: torchmetrics SacreBLEUScore (tokenizer 13a) and rapidfuzz's weighted Levenshtein distance, both used here;
    sacrebleu for chrF; torchmetrics CharErrorRate and WordErrorRate
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from blockyard.objective._torchmetrics import import_torchmetrics

# The direction in which each score is better.
DIRECTIONS = {"exact": "max", "bleu": "max", "chrf": "max"} | dict.fromkeys(
    ("cer", "wer", "insertions", "char_insertions"), "min"
)


def scores(written: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return exact match, BLEU, chrF, character and word error rates, and insertions, of all texts.

    `insertions` are written words that are not in the reference, over the words of the references: the part of the word
    errors that grows if a model hallucinates. `char_insertions` are the same for characters, for texts of one word or
    without blanks.
    """
    cer, char_insertions = _rates(written, references)
    wer, insertions = _rates([text.split() for text in written], [text.split() for text in references])
    exact = sum(text == reference for text, reference in zip(written, references, strict=True)) / len(written)
    return {
        "exact": exact,
        "bleu": bleu(written, references),
        "chrf": chrf(written, references),
        "cer": cer,
        "wer": wer,
        "insertions": insertions,
        "char_insertions": char_insertions,
    }


def bleu(written: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU of n-grams up to 4, counted over all texts."""
    import_torchmetrics()
    from torchmetrics.text import SacreBLEUScore

    return float(SacreBLEUScore()(written, [[reference] for reference in references]))


def edits(text: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
    """Return the smallest number of edits that turn the reference into the text, and the insertions among them.

    Edits are insertions, deletions and replacements. Of the shortest edits, the ones with the fewest insertions count.
    """
    # Fewest edits first, then fewest insertions: an edit weighs more than all insertions together.
    weight = len(text) + len(reference) + 1
    distance = Levenshtein.distance(reference, text, weights=(weight + 1, weight, weight))
    return divmod(distance, weight)


def _rates(written: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Return all edits, and the insertions among them, over the length of the references."""
    pairs = [edits(text, reference) for text, reference in zip(written, references, strict=True)]
    length = max(sum(map(len, references)), 1)
    wrong = sum(count for count, _ in pairs)
    added = sum(count for _, count in pairs)
    return wrong / length, added / length


def chrf(written: Sequence[str], references: Sequence[str], order: int = 6, beta: float = 2.0) -> float:
    """Return the F score of precision and recall of character n-grams over all texts, means over n up to `order`.

    Spaces do not count. An n that no written text or no reference reaches is left out, as in sacrebleu.
    """
    # Not torchmetrics' CHRFScore: it leaves out the reference of a text without any of its n-grams, such as an empty
    # text, and so rewards writing nothing.
    precisions, recalls = [], []
    for n in range(1, order + 1):
        matches = written_count = reference_count = 0
        for text, reference in zip(written, references, strict=True):
            text_ngrams = _ngrams(text, n)
            reference_ngrams = _ngrams(reference, n)
            matches += (text_ngrams & reference_ngrams).total()
            written_count += text_ngrams.total()
            reference_count += reference_ngrams.total()
        if not reference_count or not written_count:  # all texts are shorter
            break
        precisions.append(matches / written_count)
        recalls.append(matches / reference_count)
    if not any(precisions):
        return 0.0
    p = sum(precisions) / len(precisions)
    r = sum(recalls) / len(recalls)
    return (1 + beta**2) * p * r / (beta**2 * p + r)


def _ngrams(text: str, n: int) -> Counter[str]:
    letters = "".join(text.split())
    return Counter(letters[i : i + n] for i in range(len(letters) - n + 1))
