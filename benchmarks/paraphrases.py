"""Paraphrases of sentences, a file of pairs on which translation is compared with copying.

    python benchmarks/paraphrases.py PAIRS.tsv out=paraphrases.tsv [column=en] [pairs=31000] [held=1000] [seed=0]

Reads one column of a table of sentences (tab-separated with a header, plain or gzipped) and writes the columns
`source`, `target` and `split`. A target is its source with about a third of the words rewritten. Of the words that
occur at least 5 times in the training sentences, every third in the order of their frequency is exchanged with the next
of these: where "to" and "and" are a couple, each stands for the other everywhere. Rarer words, numbers and signs stay.
So a model has to copy most words, those never seen in training among them, and to learn a table of a thousand others.

The splits are those of the table's column `split`; without one, `held` sentences each are drawn for validation and
test.
"""

from __future__ import annotations

import csv
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from blockyard.data.files.pairs import read_pairs

WORD = re.compile(r"[^\W\d_]+")
LEAST = 5  # occurrences of a word that is rewritten
EVERY, FIRST = 3, 1  # of the words by frequency, the second, fifth, eighth ...


def exchanges(sentences: Sequence[str]) -> dict[str, str]:
    """Return the words that are rewritten, in lower case, each with the one that replaces it."""
    counts = Counter(word.lower() for sentence in sentences for word in WORD.findall(sentence))
    frequent = sorted(
        (word for word, count in counts.items() if count >= LEAST), key=lambda word: (-counts[word], word)
    )
    chosen = frequent[FIRST::EVERY]
    couples = zip(chosen[::2], chosen[1::2], strict=False)
    return {word: other for couple in couples for word, other in (couple, couple[::-1])}


def rewritten(sentence: str, exchanged: Mapping[str, str]) -> str:
    """Return a sentence with the words exchanged; a capital stays a capital."""

    def replace(match: re.Match[str]) -> str:
        word = match[0]
        other = exchanged.get(word.lower(), word)
        if other == word:
            return word
        if len(word) > 1 and word.isupper():
            return other.upper()
        return other[0].upper() + other[1:] if word[0].isupper() else other

    return WORD.sub(replace, sentence)


def split(path: Path, column: str, held: int, seed: int) -> list[list[str]]:
    """Return the different sentences of the training, validation and test split, each in random order."""
    pairs, splits = read_pairs(path, column, column)
    sentences = [sentence for sentence, _ in pairs]
    order = random.Random(seed).sample(range(len(sentences)), len(sentences))
    if splits is None:
        parts = [order[2 * held :], order[:held], order[held : 2 * held]]
    else:
        parts = [[index for index in order if splits[index] == number] for number in range(3)]
    return [list(dict.fromkeys(sentences[index] for index in part)) for part in parts]


def main(arguments: Sequence[str]) -> int:
    """Write the file."""
    path, *rest = arguments
    options = {"out": "paraphrases.tsv", "column": "en", "pairs": "31000", "held": "1000", "seed": "0"}
    options |= dict(option.split("=", 1) for option in rest)
    parts = split(Path(path), options["column"], int(options["held"]), int(options["seed"]))
    parts[0] = parts[0][: int(options["pairs"])]
    exchanged = exchanges(parts[0])
    with open(options["out"], "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
        table.writerow(("source", "target", "split"))
        for name, sentences in zip(("train", "val", "test"), parts, strict=True):
            table.writerows((sentence, rewritten(sentence, exchanged), name) for sentence in sentences)
    words = [word.lower() for sentence in parts[0] for word in WORD.findall(sentence)]
    share = sum(word in exchanged for word in words) / len(words)
    sys.stdout.write(
        f"{options['out']}: {' + '.join(f'{len(part):,}' for part in parts)} pairs; {len(exchanged):,} words are "
        f"exchanged, {share:.3f} of all that are read\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
