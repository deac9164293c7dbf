"""`blockyard train`: train a model."""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from blockyard.commands._signature import command
from blockyard.commands._types import (
    ConfigDirs,
    Flag,
    FlagForm,
    Override,
    TypedLine,
    Value,
    check_config_dirs,
    run_names,
)
from blockyard.config.choices import catalog
from blockyard.config.override_grammar import parse_value
from blockyard.config.tree import Node
from blockyard.config.untrusted.placeholders import require_torch
from blockyard.errors import UserError, printable, refuse

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder
    from blockyard.sweep.execution.runner import StopSignals
    from blockyard.sweep.executor._server_process import ServerProcess

log = logging.getLogger("blockyard")

# Families whose choices the first line of a run shows.
SHOWN = (
    *("experiment", "preset", "recipe", "data", "tokenizer", "position", "token_mixer", "channel_mixer", "block"),
    *("model", "head", "objective", "optimizer"),
)
MODULES = (  # what `blockyard train` imports besides what every cell of a sweep needs
    "blockyard.commands.train",
    "blockyard.commands.check",
    "blockyard.config.check",
    "blockyard.config.compose",
    "hydra.core.override_parser.overrides_parser",
)
_LOST = 143  # exit code of a run whose server died: the kernel has sent it SIGTERM
_PATIENCE = 10.0  # seconds that a run has to end after a second signal


def _is_part(text: str) -> bool:
    return not text.startswith("-") and "=" not in text


@dataclass(frozen=True)
class HydraFlags:
    """The flags that Hydra's own application has too.

    Options:
        multirun: several values per key; each combination is a run of its own, one after the other
        cfg: print the composed config and exit
        package: print this part of the config only, with --cfg
        resolve: print the config with its interpolations resolved, with --cfg
        info: print what Hydra composes from, or a part
    """

    multirun: Annotated[bool, FlagForm("-m")] = False
    cfg: Annotated[Literal["job", "hydra", "all"], FlagForm("-c")] | None = None
    resolve: Flag[bool] = False
    package: Annotated[str, FlagForm("-p"), Value("KEY")] | None = None
    info: (
        Annotated[
            Literal["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
            FlagForm("-i", bare="all", follows=_is_part),
        ]
        | None
    ) = None


@command()
def train(
    *overrides: Override,
    resume: Annotated[str, Value("RUN", values=run_names)] | None = None,
    flags: HydraFlags = HydraFlags(),
    config_dirs: ConfigDirs = (),
    typed: TypedLine = (),
) -> int:
    """Train a model: compose and check the config, create a run folder, fit, test, and write a summary.

    The folder lies under outputs/ and is addressed by the config. A finished run is not trained again unless
    force=true; an interrupted one continues where it stopped, with the same command or with resume=RUN.

    Options:
        overrides: choices and options of the config. match.params=N solves model.dim (match.by: depth, expansion) for N
            parameters; match.flops=N for forward FLOPs per sample, match.active=N for parameters that a token uses,
            match.state=N for bytes of cache after match.tokens tokens, or a full sequence
        resume: continue a run: a path, an id, a unique part of its name, or `last`; with trainer.max_steps=N, or
            another limit of its length, (and schedule=...) a finished run is trained longer, as a new run

    Examples:
        blockyard train experiment=vit_digits block=post_norm seed=1
        blockyard train -m block=pre_norm,post_norm seed=1,2,3
        blockyard train experiment=gpt_code trainer.max_steps=100 logger=none
    """
    if flags.cfg is None and (flags.resolve or flags.package is not None):
        raise UserError("--resolve and --package say how --cfg=job prints the config; add it, or leave them out")
    if flags.cfg is not None and flags.info is not None:
        raise UserError("one of --cfg and --info can be given")
    if flags.cfg is not None:
        shown = "--cfg"
    elif flags.info is not None:
        shown = "--info"
    else:
        shown = None
    if flags.multirun and shown is not None:
        raise UserError(f"{shown} shows one config; leave out -m")
    if flags.multirun:
        return run_multirun(overrides, config_dirs)
    if shown is not None:
        return show(overrides, config_dirs, flags)
    if resume is not None:
        return continue_run(resume, overrides, config_dirs)
    return start(overrides, config_dirs, typed)


def start(overrides: Sequence[str], config_dirs: Sequence[str], typed: Sequence[str]) -> int:
    """Start a run, or continue it where it was interrupted; one that is finished is only reported."""
    from blockyard.commands.check import compose_and_check
    from blockyard.config.size_matching import describe_match
    from blockyard.errors import refuse
    from blockyard.runs.not_started import AlreadyDoneError
    from blockyard.runs.rank import rank_in
    from blockyard.runs.start import create_run

    composed, problems = compose_and_check(overrides, config_dirs)
    if problems:
        return refuse(problems)
    try:
        folder = create_run(composed.config, command=["blockyard", "train", *typed], choices=composed.choices)
    except AlreadyDoneError as done:
        sys.stdout.write(printable(f"{done}\n"))
        return 0
    if composed.matched and not rank_in(composed.config):
        sys.stdout.write(f"matched {describe_match(composed.matched)}\n")
        folder.add_facts({"match": composed.matched})
    if folder.created:
        folder.first_line = first_line(folder, composed.choices)
    from blockyard.engine.run import train_and_print

    return train_and_print(folder, resume=folder.resumes)


def first_line(folder: RunFolder, choices: Mapping[str, str | None]) -> str:
    """Return the line that a new run begins with: its main choices, typed or not, and its folder."""
    shown = []
    for family in SHOWN:
        if choices.get(family) is not None:
            shown.append(f"{family}={choices[family]}")
    return f"training {' '.join(shown)} in {folder.path}"


def continue_run(name: str, overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> int:
    """Continue a run exactly where it stopped."""
    from blockyard.runs.not_started import AlreadyDoneError
    from blockyard.runs.resume import reopen
    from blockyard.weights.continuation import is_longer

    if not name:
        raise UserError("resume= is empty; expected a path, an id, part of a name, or last")
    check_config_dirs(config_dirs, overrides)  # refuses a folder that cannot be trusted
    require_torch()
    if is_longer(name, list(overrides)):
        return train_longer(name, overrides, config_dirs)
    try:
        folder = reopen(name, list(overrides), config_dirs=list(config_dirs))
    except AlreadyDoneError as done:
        sys.stdout.write(printable(f"{done}\n"))
        return 0
    from blockyard.engine.run import train_and_print

    return train_and_print(folder, resume=True)


def train_longer(name: str, overrides: Sequence[str], config_dirs: Sequence[str]) -> int:
    """Start a run that goes on where a finished one ended, or continue it where it was interrupted."""
    from blockyard.runs.not_started import AlreadyDoneError
    from blockyard.runs.start import create_run
    from blockyard.weights.continuation import longer

    config, choices, message = longer(name, list(overrides), list(config_dirs))
    line = ["blockyard", "train", f"resume={name}", *overrides]
    try:
        folder = create_run(config, command=line, choices=choices)
    except AlreadyDoneError as done:
        sys.stdout.write(printable(f"{done}\n"))
        return 0
    folder.message = folder.message or message
    from blockyard.engine.run import train_and_print

    return train_and_print(folder, resume=folder.resumes)


def show(overrides: Sequence[str], config_dirs: Sequence[str], flags: HydraFlags) -> int:
    """Print the config of a run (`--cfg job`), Hydra's own (`hydra`), both (`all`), or Hydra's sources (`--info`).

    Hydra's own application is never started: it calls callbacks, launchers and logging classes that a config names.
    """
    from blockyard.config.compose import compose
    from blockyard.config.hydra_sources import as_hydra_names_it, searchpath
    from blockyard.config.overrides import sort_overrides
    from blockyard.config.presets import expand

    composed = compose(overrides, config_dirs)
    if composed.issues:
        return refuse([str(issue) for issue in composed.issues])
    groups, replaced = expand(sort_overrides(overrides, composed.folders, []).groups, composed.folders)
    if replaced and flags.info is not None:
        sys.stderr.write(f"this shows the preset's options of {', '.join(replaced)}, which a run leaves out\n")
    choices = [*map(as_hydra_names_it, groups), *searchpath(composed.folders)]
    _print(flags, choices, composed.config)
    return 0


def _print(flags: HydraFlags, choices: list[str], job: Node) -> None:
    """Let Hydra print its sources for the choices, or the run's config in place of its own."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, flag_override
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        composed_by_hydra = hydra.compose_config

        def compose_job(*arguments: Any, **options: Any) -> DictConfig:
            config = composed_by_hydra(*arguments, **options)
            with flag_override(config, ["struct", "readonly"], False):
                for key in [key for key in config if key != "hydra"]:
                    del config[key]
                for key, value in job.items():
                    config[key] = value
            return config

        hydra.compose_config = compose_job  # type: ignore[method-assign]
        try:
            if flags.cfg is not None:
                hydra.show_cfg("config", choices, flags.cfg, flags.package, resolve=flags.resolve)
            else:
                hydra.show_info(str(flags.info), "config", choices)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(" ".join(str(error).split())) from error
        except SystemExit:  # `--package` that is not there; Hydra has written so
            raise UserError(f"--package: {flags.package} is not in the config") from None


def run_multirun(overrides: Sequence[str], config_dirs: Sequence[str]) -> int:
    """Run every combination and print the exit code of each; return 0 only if all of them succeeded.

        this process ---- socket ---- a server that has imported everything ---- fork ---- blockyard train ...

    Each run is forked from the server of `blockyard sweep`, so that it starts without importing anything, and is
    otherwise the command `blockyard train` in a process of its own: it composes its config, begins with the random
    state and torch settings of a new process, and one that dies, even by a signal, ends no other.
    """
    from blockyard.config.compose import compose
    from blockyard.config.multirun import expand
    from blockyard.sweep.execution.runner import StopSignals
    from blockyard.sweep.executor._server_process import ServerProcess

    dirs = [text for name in config_dirs for text in ("--config-dir", name)]
    codes: list[tuple[int, list[str]]] = []
    server = ServerProcess(None, MODULES)
    with StopSignals() as signals:
        try:
            folders = check_config_dirs(config_dirs, overrides)
            issues = compose(overrides, config_dirs, multirun=True).issues
            if issues:
                return refuse([str(issue) for issue in issues])
            combinations = expand(list(overrides), folders)
            require_torch()
            server.start()  # no process before the overrides are known to be right, and few enough
            for number, combination in enumerate(combinations):
                code = _train(server, number, [*combination, *dirs], signals)
                codes.append((code, list(combination)))
                if signals.signum is not None:
                    break
        finally:
            server.close(idle=True)
    for code, combination in codes:
        sys.stdout.write(f"exit {code}  {' '.join(combination)}\n")
    line = comparison([combination for code, combination in codes if code == 0])
    if line:
        sys.stdout.write(f"{line} shows them side by side\n")
    return signals.code or max((code for code, _ in codes), default=0)


def comparison(runs: Sequence[Sequence[str]]) -> str | None:
    """Return the command that compares runs by the key in which they differ; None for fewer than two arms.

    runs: the overrides of each run that ended well; runs that differ in their seed alone are one arm
    """
    from blockyard.config import model_size

    settings = [dict(override.partition("=")[::2] for override in overrides) for overrides in runs]
    values: dict[str, set[str | None]] = {}
    for key in {key for setting in settings for key in setting if key != "seed"}:
        values[key] = {setting.get(key) for setting in settings}
    differing = [key for key in values if len(values[key]) > 1]
    if not differing or "outputs" in differing:  # `compare` takes the runs of one folder
        return None
    folder = str(parse_value(settings[0].get("outputs", "outputs")))
    line = f"blockyard compare {shlex.quote(folder)}"
    if len(differing) == 1 and differing[0] != model_size.KEY:  # a frozen config has what the dial has set
        line += f" --by {differing[0].lstrip('+')}"
    return line


def be_train(arguments: Sequence[str]) -> int:
    """Be the process of `blockyard train ARGUMENTS` to its end, and return its exit code."""
    import runpy
    import threading
    import traceback

    sys.argv = ["blockyard", "train", *arguments]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = 1
    try:
        runpy.run_module("blockyard", run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as Python ends a process
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does at its end
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


def _train(server: ServerProcess, number: int, arguments: Sequence[str], signals: StopSignals) -> int:
    """Run one combination and return its exit code. A SIGTERM is passed on; Ctrl-C reaches the run by itself."""
    from blockyard.sweep.executor._fork_messages import CellEnded, Request
    from blockyard.sweep.executor._server_process import ServerLostError

    sys.stdout.flush()
    passed_on = False
    try:
        server.send(Request(number, command=partial(be_train, tuple(arguments))))
        while True:
            for news in server.receive(0.2):
                if isinstance(news, CellEnded) and news.code < 0:  # by a signal: as a shell counts
                    return 128 - news.code
                if isinstance(news, CellEnded):
                    return news.code
            if signals.signum == signal.SIGTERM and not passed_on:
                server.send(Request(number, signum=signal.SIGTERM))
                passed_on = True
    except ServerLostError:
        log.warning("the process that starts the runs of -m was killed; the run was told to save and stop")
        server.close(idle=False)
        return _LOST
    except KeyboardInterrupt:  # a second signal
        _end(server, number)
        raise


def _end(server: ServerProcess, number: int) -> None:
    """Tell a run to end now, and kill it if it does not."""
    from blockyard.sweep.executor._fork_messages import CellEnded, Request
    from blockyard.sweep.executor._server_process import ServerLostError

    with contextlib.suppress(ServerLostError):
        for signum in (signal.SIGTERM, signal.SIGKILL):
            server.send(Request(number, signum=signum))
            until = time.monotonic() + _PATIENCE
            while time.monotonic() < until:
                if any(isinstance(news, CellEnded) for news in server.receive(0.2)):
                    return
