"""What `tools/measures.py` counts by running the package of a checkout: its files in a forward pass, and its options.

    PYTHONPATH=TREE/src python tools/traced_files.py MEASURE TREE

MEASURE is a function of this file. It imports `blockyard` from PYTHONPATH, so that another checkout can be measured.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SETTINGS = ["experiment=vit_digits", "logger=none", "trainer=cpu"]
STEP = "training_step"


def forward_files(tree: Path) -> str:
    """Files with a function that runs in one forward pass, and their lines."""
    import torch

    from blockyard.config.build import Components
    from blockyard.config.compose import compose

    model = Components(compose(SETTINGS).config).model(0)
    images = torch.zeros(2, 1, 8, 8)
    model(images)  # what is computed once is computed here
    with _calls() as calls, torch.no_grad():
        model(images)
    return _summary(calls, tree)


def step_files(tree: Path) -> str:
    """Files with a function that runs from the start of one training step to the start of the next."""
    from blockyard.cli import main

    with tempfile.TemporaryDirectory() as outputs, _calls() as calls:
        output, sys.stdout = sys.stdout, sys.stderr
        code = main(["train", *SETTINGS, f"outputs={outputs}", "trainer.max_steps=4", "trainer.eval_every=4"])
        sys.stdout = output
    if code:
        raise RuntimeError(f"the run ended with exit code {code}")
    starts = [number for number, (_, function) in enumerate(calls) if function == STEP]
    return _summary(calls[starts[1] : starts[2]], tree)


def repeated_defaults(_: Path) -> str:
    """Options in the YAML of a choice that equal the default of its constructor, and all options there."""
    from blockyard.config import tree
    from blockyard.config.build import CONTRACTS, RUNTIME_CONTRACTS
    from blockyard.config.choices import catalog
    from blockyard.config.schema import RESERVED, options
    from blockyard.config.untrusted.targets import locate

    try:
        from blockyard.config.defaults import plain_default
    except ImportError:  # in the tree of the column before, e60ca2d0
        from blockyard.config.placed_nodes import plain_default  # type: ignore[attr-defined,no-redef]

    repeated = total = 0
    families = (*CONTRACTS, *RUNTIME_CONTRACTS, *catalog.OUTSIDE_RUN)
    for choice in (choice for family in families for choice in catalog.choices(family).values()):
        for _, node in tree.nodes(catalog.content(choice.path)):
            declared = options(locate(node["_target_"]))
            for name in node.keys() - set(RESERVED):
                total += 1
                repeated += node[name] == plain_default(declared[name].default)
    return f"{repeated} of {total}"


@contextmanager
def _calls() -> Iterator[list[tuple[str, str]]]:
    """The file and the name of every Python function that is called inside, in this thread."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def _summary(calls: list[tuple[str, str]], tree: Path) -> str:
    package = str(tree.resolve() / "src" / "blockyard")
    files = {Path(name) for name, function in calls if name.startswith(package) and function != "<module>"}
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in files)
    return f"{len(files)} / {lines:,}"


if __name__ == "__main__":
    measures = {function.__name__: function for function in (forward_files, step_files, repeated_defaults)}
    sys.stdout.write(measures[sys.argv[1]](Path(sys.argv[2])) + "\n")
