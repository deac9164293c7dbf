"""The drawings of docs/architecture.md: core and outbuildings, floors, and who calls whom.

The calls are those for a batch, an override, a cell and a result.

    python tools/walks.py            compares the page with the drawings, and the drawings with the source: each
                                     function is there, and its caller's file uses its name
    python tools/walks.py --write    writes them into the page

A walk is an indented list. Each line names a file below src/blockyard and a function in it, then what happens
there; the function one level up calls it. `via NAME` says by which name the caller reaches it, where that is not
the function's own (a protocol's method, an import under another name); `^` marks a call back up, into the object
that the call came from.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools import import_graph as layers  # noqa: E402

PACKAGE = ROOT / "src" / "blockyard"
PAGE = ROOT / "docs" / "architecture.md"

# The network is one hop here; `network` goes inside.
WALKS = {
    "batch": """
engine/loader.py BatchDataset.__getitem__ | in a worker process: batch n of the run
  data/splits/order.py step_indices | the sample numbers of this step, process and micro-batch
  data/splits/order.py take | asks the split for them
    data/splits/images.py ImageSplit.batch | gathers all samples at once: inputs, targets, lengths as one `Batch`
  contracts/objective.py Objective.ready | the batch for the model and the loss; dummy samples do not count
    objective/masked_token.py MaskedToken.prepare | what is predicted; a classifier leaves the batch as it is
engine/module.py Learner.training_step | in the training process, called by Lightning
  model/_transformer.py Transformer.forward via model | inputs to predictions, below
  objective/_classes.py ClassObjective.loss | predictions and targets to one number
engine/module.py Learner.on_before_optimizer_step | after the backward pass, which is PyTorch's
  engine/faults/nan_guard.py NanGuard.check | refuses a loss or a gradient that is not finite
engine/module.py Learner.optimizer_step | the optimizer's step, then the learning rate of the next
  schedule/_warmup.py WarmedUp.factor | the learning rate's factor, a function of the step
""",
    "network": """
model/_transformer.py Transformer.forward | features, then the head
  model/_transformer.py Tower.forward_features | tokens, positions, prefix, blocks, final norm
    model/_embedding.py Embeds.embed_tokens | embedder, mask token, and absolute positions added or concatenated
      tokenizer/_grid.py GridEmbedder.forward via embed | inputs to tokens x (B, N, D) and their facts, `Seq`
    block/pre_norm.py PreNorm.forward via block | one block after another
      norm/layer.py Layer via token_norm | normalises (B, N, D)
      token_mixer/attention.py Attention.forward via _token | queries, keys and values
        ops/rotate.py rotate | relative positions rotate queries and keys
        ops/attend.py attend | the one place that knows masks and picks a kernel
      channel_mixer/mlp.py MLP.forward via channel_mixer | each token alone
  head/_pooled.py Pooled.forward via head | tokens to predictions (B, V) or (B, N, V)
""",
    "override": """
cli.py main | finds the command by its file name
  commands/_reader.py run | reads the command line by the signature of the command's function
commands/train.py start | a run from the overrides
  commands/check.py compose_and_check | what `blockyard check` does too
    config/compose.py compose | from overrides to one nested dictionary
      config/overrides.py sort_overrides | choices (`block=parallel`) apart from values (`model.dim=64`)
      config/merge.py merge | the files of the choices become one dictionary, in which the values are set
        config/presets.py expand | a preset becomes the choices that it stands for
        config/known_keys.py KnownKeys | each key exists
      config/size_matching.py solve | `match.params=N` becomes a width
    config/check.py check | every rule, every problem at once
      config/rules/__init__.py RULES | two declarations at a time
      config/trial_build.py BuiltModels.issues via models | a model that several configs have is built once
        config/trial_build.py build_model | shapes, without weights
  runs/start.py create_run | the folder of the config's hash, locked
  engine/run.py train_and_print | trains in it, and prints the result
    engine/setup.py prepare | builds data, model, objective and optimizer from the frozen config
""",
    "cell": """
commands/sweep.py sweep | plans, shows, runs, compares
  sweep/plan/planner.py make_plan | the file becomes a frozen plan: one full config a cell
  sweep/execution/runner.py run_plan | hands out what is missing, until nothing is
    sweep/executor/local.py LocalExecutor.submit | a warm process forks; Ray and SLURM have their own
sweep/cell/execute.py execute | in the process that runs the cell
  runs/start.py create_run | the same folder that `blockyard train` would use
  engine/run.py train | the same training
""",
    "result": """
commands/compare.py compare | or the end of `blockyard sweep`
  report/comparison.py compare | everything that the tables and the page show, as plain data
    report/load/resolve.py load_selection | the runs, from their folders
    report/stats/verdict.py compare_arms | means, paired differences, intervals, p-values, verdicts
    report/stats/expectations.py evaluate | whether what was expected holds
    report/arms/answer.py answer | the verdict in a sentence
  report/render/terminal.py show | the table
  report/page/document.py write | one HTML file
""",
}


@dataclass(frozen=True)
class Call:
    """One line of a walk: a function, how deep it lies, and the name its caller uses."""

    depth: int
    path: str
    function: str
    name: str
    up: bool
    text: str
    caller: Call | None = None

    @property
    def changes_file(self) -> bool:
        """Whether a reader who follows this call opens another file."""
        return self.caller is not None and self.caller.path != self.path


def read(text: str) -> list[Call]:
    """The calls of a walk, in order."""
    calls: list[Call] = []
    stack: list[Call] = []
    for line in text.strip("\n").splitlines():
        match = re.fullmatch(r"( *)(\S+) (\S+)(?: via (\S+))?( \^)? \| (.*)", line)
        if match is None:
            raise ValueError(f"not a line of a walk: {line!r}")
        indent, path, function, name, up, what = match.groups()
        del stack[len(indent) // 2 :]
        name = name or function.rpartition(".")[2]
        call = Call(len(indent) // 2, path, function, name, bool(up), what, stack[-1] if stack else None)
        stack.append(call)
        calls.append(call)
    return calls


def problems(calls: list[Call], package: Path) -> Iterator[str]:
    """What of a walk is not in the source: files, functions, calls."""
    for call in calls:
        if _source(package, call) is None:
            yield f"{call.path} has no {call.function}"
        elif call.caller is not None and (package / call.caller.path).is_file():
            # Helpers of the caller's own file may stand between.
            used = _names_in_code((package / call.caller.path).read_text(encoding="utf-8"))
            if call.name not in used:
                yield f"{call.caller.path} does not use {call.name}"


def _names_in_code(text: str) -> set[str]:
    """The names that a file's code reads or defines, and the attributes; docstrings and comments do not count."""
    nodes = list(ast.walk(ast.parse(text)))
    return (
        {node.id for node in nodes if isinstance(node, ast.Name)}
        | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        | {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    )


def _source(package: Path, call: Call) -> str | None:
    """The source of a function, a class or a module's name; None where there is none."""
    path = package / call.path
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for part in call.function.split("."):
        node = next((n for n in body if part in _names(n)), None)
        if node is None:
            return None
        body = getattr(node, "body", [])
    return ast.get_source_segment(text, node) if node is not None else None


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def hops(calls: list[Call]) -> tuple[int, int]:
    """How many calls change the file, and how many of them go back up."""
    changing = [call for call in calls if call.changes_file]
    return len(changing), sum(call.up for call in changing)


def drawn(calls: list[Call]) -> str:
    """A walk as nested Markdown lists."""
    lines = []
    for call in calls:
        path = call.path.replace("_", r"\_")  # two of them would read as bold
        back = " (a call back)" if call.up else ""
        lines.append(f"{'    ' * call.depth}- `{call.function}` <small>{path}</small>{back}: {call.text}")
    return "\n".join(lines)


def floors() -> str:
    """The folders from the top floor down, each with the first line of its docstring."""
    lines = ["| floor | | |", "|---|---|---|"]
    for number, rooms in reversed(list(enumerate(layers.FLOORS))):
        names = [name for name in rooms.split() if not name.startswith("__")]
        for name in names:
            path = PACKAGE / name / "__init__.py" if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"
            doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            shown = str(number) if name == names[0] else ""
            lines.append(
                f"| {shown} | `{name}{'/' if path.name == '__init__.py' else '.py'}` | {doc.splitlines()[0]} |"
            )
    return "\n".join(lines)


def core_and_outbuildings() -> str:
    """The folders of the core from the top floor down, and the files of each outbuilding."""
    whole = {start.rstrip("/") for starts in layers.OUTBUILDINGS.values() for start in starts if start.endswith("/")}
    lines = ["CORE: read this to train and compare; imports point down"]
    for number, rooms in reversed(list(enumerate(layers.FLOORS))):
        names = [name for name in rooms.split() if not name.startswith("__") and name not in whole]
        shown = " ".join(f"{name}/" if (PACKAGE / name).is_dir() else f"{name}.py" for name in names)
        lines += _indented(f"{number:>4}  ", shown) if shown else []
    lines += ["", "OUTBUILDINGS: ignore one until you need it; the core imports none of them"]
    for building, starts in layers.OUTBUILDINGS.items():
        shown = " ".join(_files(start) for start in starts)
        lines += _indented(f"    {building:<12}", shown)
    return "\n".join(["```text", *lines, "```"])


def _files(start: str) -> str:
    """Return a folder or file of an outbuilding; with a star where several files begin so."""
    if start.endswith("/"):
        return start
    return f"{start}.py" if len(list(PACKAGE.glob(f"{start}*.py"))) == 1 else f"{start}*"


def _indented(start: str, text: str) -> list[str]:
    """Text behind a start, its further lines below the first."""
    return textwrap.wrap(text, 110, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False)


def page(text: str) -> str:
    """A page with each drawing between its markers."""
    drawings = {name: f'<div class="walk" markdown>\n\n{drawn(read(walk))}\n\n</div>' for name, walk in WALKS.items()}
    for name, body in (drawings | {"rooms": core_and_outbuildings(), "floors": floors()}).items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        drawing = f"{begin}\n{body}\n{end}"
        text = re.sub(rf"{begin}.*?{end}", lambda _, drawing=drawing: drawing, text, flags=re.S)
    return text


def main() -> int:
    """Compare, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the walks into docs/architecture.md")
    args = parser.parse_args()
    wrong = [f"{name}: {what}" for name, walk in WALKS.items() for what in problems(read(walk), PACKAGE)]
    text = PAGE.read_text(encoding="utf-8")
    if args.write:
        PAGE.write_text(page(text), encoding="utf-8")
    elif page(text) != text:
        wrong.append("docs/architecture.md is not what `python tools/walks.py --write` writes")
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
