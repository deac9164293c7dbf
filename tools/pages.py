"""The fenced blocks of the Markdown pages: files to write, commands to type.

A block ```` ```yaml title="mine.yaml" ```` is a file of that name. Every line of a `bash` block that begins with
`blockyard`, and every line of a `console` block that begins with `$ `, is a command; what follows in a `console` block
is what it prints. `<!-- not typed: REASON -->` before a block leaves its commands out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"(?:^<!-- ([^\n]*?) -->\n+)?^(```+)(\w*) *([^\n]*)\n(.*?)^\2$\n?", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the text after it, the comment on the line before, the body and its place."""

    language: str
    info: str
    comment: str
    body: str
    start: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block is."""
        title = re.search(r'title="([^"]+)"', self.info)
        return title[1] if title else None

    @property
    def typed(self) -> bool:
        """Whether its commands can be typed anywhere."""
        return self.language in ("bash", "console") and not self.comment.startswith("not typed: ")

    def commands(self) -> Iterator[str]:
        """Its commands, without prompt and comment."""
        for line in self.body.splitlines():
            if self.language == "console" and line.startswith("$ "):
                yield line.removeprefix("$ ")
            elif self.language == "bash" and line.startswith("blockyard "):
                yield re.sub(r"\s+#.*", "", line)


def blocks(path: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = path.read_text(encoding="utf-8")
    return [Block(match[3], match[4], match[1] or "", match[5], match.start(5)) for match in FENCE.finditer(text)]


def write_files(path: Path, folder: Path) -> list[str]:
    """Write the files that a page shows; their names."""
    files = [block for block in blocks(path) if block.file is not None]
    for block in files:
        target = folder / str(block.file)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.body, encoding="utf-8")
    return [str(block.file) for block in files]


def pages() -> list[Path]:
    """The pages that people write: README, CONTRIBUTING, those of docs/ and of sweeps/; generated ones left out."""
    written = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "sweeps/README.md", *(ROOT / "docs").glob("*.md")]
    return sorted(written)


def by_name() -> dict[str, Path]:
    """These pages by their path from the top of the checkout."""
    return {str(path.relative_to(ROOT)): path for path in pages()}
