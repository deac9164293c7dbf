"""The declarations of data sets and tokenizers as text, to compare two processes that read them."""

from __future__ import annotations

from blockyard.config.alternatives import default_pick
from blockyard.config.choices import catalog
from blockyard.config.untrusted.placeholders import NeedsTorchError

UNREAD = "needs torch"


def declared_specs() -> dict[str, str]:
    """The DataSpec of every data set, and the TokenSpec of every tokenizer for it, by their choices."""
    result = {}
    tokenizers = [default_pick(choice) for choice in catalog.choices("tokenizer").values()]
    for choice in catalog.choices("data").values():
        data = default_pick(choice)
        if data is None:
            continue
        try:
            spec = data.target(**data.options).spec
        except ValueError:  # of a file that is not here
            continue
        result[str(data)] = repr(spec)
        for tokenizer in tokenizers:
            if tokenizer is None or tokenizer.target.modality != spec.modality:
                continue
            try:
                tokens = repr(tokenizer.target(**tokenizer.options).spec(spec))
            except ValueError as error:
                tokens = str(error)
            except NeedsTorchError:
                tokens = UNREAD
            result[f"{data} {tokenizer}"] = tokens
    return result
