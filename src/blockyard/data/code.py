"""Source code of the installed Python's standard library, about 1.6 MB: a corpus that is always there.

Source: the Python Software Foundation's CPython, Lib/ (PSF licence)

A fixed list of modules that Python 3.11 to 3.14 all have. The text is the same on every machine
with the same Python version, up to a distributor's patches; its hash is recorded with the run.
Whole modules are dealt to the parts by `split_seed`.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Literal

from blockyard.contracts import Count, CountOrZero
from blockyard.data._split import Fraction, by_size
from blockyard.data._text import Documents, TextData

# All plain ASCII in Python 3.11 to 3.13.
MODULES = (
    "argparse ast base64 bdb bisect calendar cmd codecs codeop contextlib copy csv dataclasses difflib "
    "filecmp fileinput fnmatch getpass gettext glob graphlib gzip hashlib hmac json/decoder json/encoder "
    "keyword linecache logging/__init__ logging/config logging/handlers lzma mimetypes netrc numbers "
    "operator pickle pkgutil plistlib pprint profile pstats pyclbr queue quopri reprlib sched "
    "selectors shelve shutil socketserver string struct symtable tabnanny tempfile textwrap threading "
    "timeit tokenize trace traceback tracemalloc types uuid warnings wave weakref zipapp"
)


class Code(TextData):
    """The standard library as text; needs no file beyond Python's own and no network.

    Options:
        validation_fraction: share of the text that is the validation part
        test_fraction: share of the text that is the test part
        split_seed: deals the modules; not the run's seed, so that all seeds share one split
    """

    def __init__(
        self,
        *,
        validation_fraction: Fraction = 0.1,
        test_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        batch_size: Count = 32,
        eval_batch_size: Count = 64,
        context: Count = 128,
        sample: Literal["window", "line"] = "window",
        packed: bool = False,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            context=context,
            sample=sample,
            packed=packed,
        )
        if validation_fraction + test_fraction >= 1:
            raise ValueError(
                f"data.validation_fraction={validation_fraction} and data.test_fraction={test_fraction} "
                "leave nothing to train on; together they must stay under 1"
            )
        self.fractions, self.split_seed = (validation_fraction, test_fraction), split_seed

    def missing(self) -> str | None:
        """Whether Python came with its sources."""
        absent = [str(file) for file in self._files() if not file.is_file()]
        if not absent:
            return None
        return (
            f"this Python came without {len(absent)} library sources, {absent[0]} among them; "
            "use data=text_file data.path=FILE, or a Python with its Lib folder"
        )

    def documents(self) -> Documents:
        """One document per module."""
        texts = [file.read_bytes().decode("utf-8") for file in self._files()]
        validation, test, train = by_size([len(text) for text in texts], self.fractions, self.split_seed)
        return Documents(*([texts[i] for i in part] for part in (train, validation, test)))

    def _files(self) -> list[Path]:
        library = Path(sysconfig.get_path("stdlib"))
        return [library / f"{module}.py" for module in MODULES.split()]
