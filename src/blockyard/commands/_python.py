"""The functions of `import blockyard`: the commands, for scripts and notebooks.

Overrides are texts, as on the command line, or mappings: `train("experiment=vit_digits", {"optimizer.lr": 1e-3})`.
"""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.config.override_grammar import packages_typed, to_override, to_text
from blockyard.config.untrusted.package_finder import importable
from blockyard.errors import UserError, fold, quoted
from blockyard.terminal import NOTEBOOK_ROWS, notebook_table

if TYPE_CHECKING:
    import pandas

    from blockyard.config.build import Components
    from blockyard.config.compose import Composed
    from blockyard.engine.plain_trainer import TrainerData, TrainerModule
    from blockyard.report.comparison import Comparison
    from blockyard.runs.folder import RunFolder
    from blockyard.runs.record import RunRecord

Overrides = str | Mapping[str, Any]


class RunFailed(RuntimeError):  # noqa: N818 - a public name
    """A run, or a cell of a sweep, ended as failed; the message says where and why."""


def train(
    *overrides: Overrides,
    config: Mapping[str, Any] | None = None,
    config_dirs: Sequence[str | os.PathLike[str]] = (),
    outputs: str | os.PathLike[str] | None = None,
) -> RunFolder:
    """Train the config that overrides describe, or find the finished run of the same config, and return its folder.

    config: the config that a Hydra application of your own composed, in place of overrides; see `hydra_groups`
    outputs: the folder of the runs; by default the one of the overrides or of the config, "outputs" if they name none
    A run that was interrupted goes on where it stopped. Raises UserError with every problem of the config, or RunFailed
    where the run ends before its last step.
    """
    arguments = as_texts(overrides)
    if outputs is not None:
        refuse_outputs(arguments)
        if config is None:
            arguments.append(to_override("outputs", os.fspath(outputs)))
        else:
            config = {**config, "outputs": os.fspath(outputs)}
    with importable(_packages(arguments, config)):
        return _train(arguments, config_dirs, config)


def _packages(arguments: Sequence[str], config: Mapping[str, Any] | None) -> list[str]:
    """Return the packages that may be imported: the user has typed them, or his own application names them."""
    return [*packages_typed(arguments), *((config or {}).get("allow") or ())]


def _checked(
    arguments: Sequence[str],
    config_dirs: Sequence[str | os.PathLike[str]],
    config: Mapping[str, Any] | None,
) -> Composed:
    """Return the composed config. Raises UserError with all its problems."""
    from blockyard.config.check import check as check_config

    composed = _composed(arguments, config_dirs, config)
    problems = [str(issue) for issue in check_config(composed)]
    if problems:
        raise UserError("\n  - ".join(problems))
    return composed


def _composed(
    arguments: Sequence[str],
    config_dirs: Sequence[str | os.PathLike[str]],
    config: Mapping[str, Any] | None,
) -> Composed:
    """Return the config of overrides, or the one that a Hydra application composed, with the problems of composing."""
    if config is None:
        from blockyard.config.compose import compose

        return compose(arguments, [os.fspath(folder) for folder in config_dirs])
    if arguments or config_dirs:
        raise UserError("config=... is what a Hydra application composed, in which overrides and folders are already")
    from blockyard.config.hydra_groups import composed_by_hydra

    return composed_by_hydra(config)


@dataclass(frozen=True)
class CheckedConfig:
    """The answer of `check`.

    problems: everything that a run would be refused for; empty for a config that can be trained
    notes: what the user should know before training
    config: complete, as plain data; empty where the overrides cannot be composed
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    config: Mapping[str, Any]


def check(
    *overrides: Overrides,
    config: Mapping[str, Any] | None = None,
    config_dirs: Sequence[str | os.PathLike[str]] = (),
) -> CheckedConfig:
    """Return every problem of the config that overrides describe, as `blockyard check` reports them. Starts nothing.

    config: the config that a Hydra application of your own composed, in place of overrides; see `hydra_groups`
    The data of a config without other problems is read, unless it is large or would have to be downloaded.
    """
    arguments = as_texts(overrides)
    with importable(_packages(arguments, config)):
        from blockyard.config.check import check as check_config
        from blockyard.engine.data_reader import DataReader
        from blockyard.runs.redact import redact_text, remember

        composed = _composed(arguments, config_dirs, config)
        remember(composed.config)  # a secret of the wrong type is not shown
        problems = [redact_text(str(issue)) for issue in check_config(composed)]
        notes: tuple[str, ...] = ()
        if not problems:
            facts = DataReader().read(composed.config)
            notes = tuple(facts.notes)
            if facts.problem:
                problems = [redact_text(facts.problem)]
        return CheckedConfig(tuple(problems), notes, composed.config)


def build(config: Mapping[str, Any]) -> Components:
    """Return the components of the config that a Hydra application of your own composed; see `hydra_groups`.

    `build(cfg).model(seed=0)` is its model, `.load()` reads its data, `.optimizer.build(model)` makes its optimizer.
    Raises UserError with every problem of the config.
    """
    with importable(_packages((), config)):
        from blockyard.config.build import Components

        return Components(_checked((), (), config).config)


def hydra_groups() -> None:
    """Let the Hydra applications of this process compose blockyard's groups.

    Call it before the function with `@hydra.main`. `blockyard` in the defaults list of the application then stands for
    all groups with their defaults. The composed config goes to `build`, `lightning(config=...)` or `train(config=...)`.
    """
    from blockyard.config.hydra_groups import register

    register()


def _train(
    arguments: Sequence[str],
    config_dirs: Sequence[str | os.PathLike[str]],
    config: Mapping[str, Any] | None,
) -> RunFolder:
    from blockyard.engine.run import train as train_in
    from blockyard.runs.not_started import AlreadyDoneError
    from blockyard.runs.start import create_run, discard

    composed = _checked(arguments, config_dirs, config)
    try:
        folder = create_run(composed.config, command=["blockyard.train", *arguments], choices=composed.choices)
    except AlreadyDoneError as done:
        return done.folder
    with folder:
        try:
            code = train_in(folder, resume=folder.resumes)
        except UserError:
            discard(folder)
            raise
    if code:
        raise RunFailed(f"{folder.path} is {folder.status.state}: {folder.status.reason}")
    return folder


def lightning(
    *overrides: Overrides,
    config: Mapping[str, Any] | None = None,
    config_dirs: Sequence[str | os.PathLike[str]] = (),
) -> tuple[TrainerModule, TrainerData]:
    """Return the LightningModule and the LightningDataModule of a config, for a Trainer of your own.

    `Trainer(**module.trainer_arguments())` trains as long as a run does, and on one process to the same weights. The
    data is read, and downloaded where the config allows it.

    config: the config that a Hydra application of your own composed, in place of overrides; see `hydra_groups`
    Raises UserError with every problem of the config, and with every option that only the loop of a run has.
    """
    arguments = as_texts(overrides)
    with importable(_packages(arguments, config)):
        checked = _checked(arguments, config_dirs, config).config
        from blockyard.objective._torchmetrics import import_torchmetrics

        import_torchmetrics(checked.get("allow") or ())  # before Lightning does
        from blockyard.engine.plain_trainer import lightning_pair

        return lightning_pair(checked)


def sweep(
    file: str | os.PathLike[str] | Mapping[str, Any],
    *overrides: Overrides,
    outputs: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    seeds: int | None = None,
    name: str | None = None,
) -> Comparison:
    """Run the missing cells of a sweep file on this machine, and return the comparison of its arms.

    file: a path, the name of a shipped sweep, or the content of a file: `{"claim": ..., "arms": {...}}`, in which
        relative `config_dirs` start at the working directory
    outputs: the folder of the runs; by default the one of the overrides, or "outputs"
    workers: the number of cells that run in parallel
    seeds: the number of seeds, in place of the file's seeds
    name: the name of the sweep's folder, where `file` is a content; it is kept there as NAME.yaml
    Raises UserError with every problem of a bad file, RunFailed where a cell failed.
    """
    texts = as_texts(overrides)
    folder = "outputs"
    if outputs is not None:
        refuse_outputs(texts)
        folder = os.fspath(outputs)
    arguments = []
    for text in texts:
        key, _, value = text.partition("=")
        if key == "outputs":
            folder = value
        else:
            arguments.append(text)
    if workers is not None:
        arguments += ["--workers", str(workers)]
    if seeds is not None:
        arguments += ["--seeds", str(seeds)]
    with importable(packages_typed(arguments)):
        return _sweep(_path_of(file, name, folder), arguments, folder)


def refuse_outputs(texts: Sequence[str]) -> None:
    """Raise UserError where overrides name a folder of runs, beside the argument `outputs`."""
    for text in texts:
        if text.startswith("outputs="):
            raise UserError(f"the override {text} and the argument outputs= both name a folder: leave one out")


def _path_of(file: str | os.PathLike[str] | Mapping[str, Any], name: str | None, outputs: str) -> Path:
    """Return the path of a sweep file, which is written first where `file` is a content. Raises UserError."""
    from blockyard.sweep.plan.sweep_plan import FOLDER
    from blockyard.sweep.spec.locate import find_sweep

    if isinstance(file, Mapping):
        return _written(file, name, os.path.join(outputs, FOLDER))
    if not isinstance(file, str | os.PathLike):
        raise UserError(f"sweep takes a path, a name or a mapping like the content of a sweep file, not {quoted(file)}")
    if name is not None:
        raise UserError(f"name={name!r} is for the content of a sweep file; {os.fspath(file)} has its own name")
    return find_sweep(os.fspath(file))


def _sweep(path: Path, typed: Sequence[str], outputs: str) -> Comparison:
    from blockyard.commands import _reader
    from blockyard.report.comparison import compare
    from blockyard.sweep.plan.sweep_plan import FOLDER

    code = _reader.run("sweep", [str(path), *typed, f"outputs={outputs}", "--no-compare"])
    folder = os.path.join(outputs, FOLDER, path.stem)
    if code:
        raise RunFailed(f"a cell of {folder} failed; `blockyard sweep {path} --dry-run` says which")
    return compare(folder)


def _written(content: Mapping[str, Any], name: str | None, folder: str) -> Path:
    """Write the content of a sweep file to FOLDER/NAME/NAME.yaml. Raises UserError where it cannot be a sweep."""
    import yaml

    from blockyard.atomic_files import write_text
    from blockyard.sweep.spec.question import parse

    if name is None:
        raise UserError('the content of a sweep file needs a name for its folder: sweep({...}, name="mine")')
    try:
        plain = json.loads(json.dumps(dict(content), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"the content of a sweep file is plain data: {error}") from error
    folders = plain.get("config_dirs")
    if isinstance(folders, list):
        # Relative ones in a file start at the file's folder, which the user of a content does not know.
        for index, config_dir in enumerate(folders):
            if isinstance(config_dir, str) and config_dir:
                folders[index] = os.path.abspath(os.path.expanduser(config_dir))
    parse(plain, name=name)
    path = Path(folder) / name / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    return path


@dataclass(frozen=True, repr=False)
class Runs(Sequence["RunRecord"]):
    """Records of runs, newest first: a sequence with a table."""

    records: tuple[RunRecord, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self.records)

    def __repr__(self) -> str:
        names = [f"{record.run} ({record.state})" for record in self.records]
        if not names:
            return "<0 runs>"
        noun = "run" if len(names) == 1 else "runs"
        return f"<{len(names)} {noun}: {fold(names)}>"

    def _repr_html_(self) -> str:
        """Return the table of `blockyard runs`, for a notebook."""
        from blockyard.commands.runs import as_text, default_columns

        columns = list(filter(None, default_columns(self.records, self.records[:NOTEBOOK_ROWS])))
        rows = []
        for record in self.records[:NOTEBOOK_ROWS]:
            rows.append([record.run, *(as_text(record.value(key)) for key in columns)])
        noun = "run" if len(self.records) == 1 else "runs"
        title = f"{len(self.records)} {noun}"
        if len(rows) < len(self.records):
            title = f"the first {len(rows)} of {title}"
        return notebook_table(title, ["run", *columns], rows)

    def to_frame(self) -> pandas.DataFrame:
        """Return a table with a row for each run: its facts, its choice in each family, and its metrics.

        Raises UserError without the package pandas.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("to_frame() needs the package pandas: pip install pandas") from None
        from blockyard.runs.record import FACTS

        rows = []
        for record in self.records:
            facts = {fact: record.value(fact) for fact in FACTS}
            rows.append({**facts, **record.choices, **record.metrics})
        return pandas.DataFrame(rows)


def runs(*conditions: str, outputs: str | os.PathLike[str] = "outputs", archived: bool = False) -> Runs:
    """Return the runs under `outputs` that meet every condition: `runs("sweep=quickstart", "test/accuracy>0.9")`.

    archived: include the runs that `blockyard runs archive` took out of listings
    Raises UserError for a key that no run has.
    """
    with importable(()):
        from blockyard.runs.index import records
        from blockyard.runs.query import parse, select
        from blockyard.sweep.plan.cell_names import cell_names

        every = cell_names(records(outputs), outputs)
        selected = select(every, [parse(condition) for condition in conditions])
        return Runs(tuple(record for record in selected if archived or not record.archived))


def as_texts(overrides: Sequence[Overrides]) -> list[str]:
    """Return overrides as the command line has them: texts of mappings as they are, all else in Hydra's grammar.

    Texts may thus hold interpolations; paths of `pathlib` do not.

    Raises UserError for a value that no config has, and for a list in the place of its items.
    """
    texts = []
    for override in overrides:
        if isinstance(override, str):
            texts.append(override)
            continue
        if not isinstance(override, Mapping):
            raise UserError(
                f"{override!r} is neither a text nor a mapping; overrides of a list are passed as *overrides"
            )
        for key, value in override.items():
            text = value
            if not isinstance(value, str):
                text = to_text(_plain(key, value))
            texts.append(f"{key}={text}")
    return texts


def _plain(key: str, value: Any) -> Any:
    """Return a value as a YAML file has it. Raises UserError."""
    if isinstance(value, Mapping):
        return {str(name): _plain(key, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value).replace("${", "\\${")  # a path is no interpolation
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise UserError(f"{key}: {quoted(value)} is a {type(value).__name__}; a config has texts, numbers, lists, mappings")
