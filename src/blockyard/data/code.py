"""Source code of the installed Python's standard library, about 1.6 MB: a corpus that is always available.

Source: the Python Software Foundation's CPython, Lib/ (PSF licence)

A fixed list of modules that Python 3.11 to 3.14 all have. The text is the same on every machine
with the same Python version, up to a distributor's patches; its hash is recorded with the run.
`split_seed` assigns whole modules to the splits.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from blockyard.data.splits.texts import SplitDocuments, TextData

# All plain ASCII in Python 3.11 to 3.13.
MODULES = (
    "argparse ast base64 bdb bisect calendar cmd codecs codeop contextlib copy csv dataclasses difflib "
    "filecmp fileinput fnmatch getpass gettext glob graphlib gzip hashlib hmac json/decoder json/encoder "
    "keyword linecache logging/__init__ logging/config logging/handlers lzma mimetypes netrc numbers "
    "operator pickle pkgutil plistlib pprint profile pstats pyclbr queue quopri reprlib sched "
    "selectors shelve shutil socketserver string struct symtable tabnanny tempfile textwrap threading "
    "timeit tokenize trace traceback tracemalloc types uuid warnings wave weakref zipapp"
)


@dataclass(kw_only=True, eq=False)
class Code(TextData):
    """The standard library as text; needs no file beyond Python's own and no network."""

    published_under = "PSF-2.0"

    def missing(self) -> str | None:
        """Return a message that names the sources that this Python lacks and the remedy, or None."""
        absent = [str(file) for file in self._files() if not file.is_file()]
        if not absent:
            return None
        return (
            f"this Python lacks {len(absent)} library sources, {absent[0]} among them; "
            "use data=text_file data.path=FILE, or a Python with its Lib folder"
        )

    def documents(self) -> SplitDocuments:
        """Read one document per module."""
        return self.split_by_size([file.read_bytes().decode("utf-8") for file in self._files()])

    def _files(self) -> list[Path]:
        library = Path(sysconfig.get_path("stdlib"))
        return [library / f"{module}.py" for module in MODULES.split()]
