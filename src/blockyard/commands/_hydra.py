"""What `train` takes from Hydra: multirun, `--cfg`, `--info`.

The runs of a multirun are expanded and started here; Hydra's own application, which calls callbacks, launchers and
logging classes that a config names, is never started. Each run is a process of its own: one that dies, even by a
signal, ends no other, and DDP inside a run sees a plain command line.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockyard.config import catalog, user_folders
from blockyard.errors import UserError, refuse

if TYPE_CHECKING:
    from blockyard.commands.train import TrainArgs
    from blockyard.sweep.execution.stop_signals import StopSignals


def show(args: TrainArgs) -> int:
    """Print what Hydra composes (`--cfg`, `--info`)."""
    from blockyard.config.overrides import sort_overrides
    from blockyard.config.presets import expand

    folders, problems = args.folders(), _problems(args)
    if problems:
        return refuse(problems)
    # The choices that an experiment keeps with a preset are passed on to Hydra.
    groups = sort_overrides(args.overrides, folders, []).groups
    expanded, replaced = expand(groups, folders)
    if replaced:
        sys.stderr.write(f"this shows the preset's options of {', '.join(replaced)}, which a run leaves out\n")
    own = [text for text in args.overrides if text.partition("=")[0] != user_folders.KEY]
    _print(args, [*own, *(group for group in expanded if group not in groups), *user_folders.searchpath(folders)])
    return 0


def _print(args: TrainArgs, overrides: list[str]) -> None:
    """Let Hydra print the config, or what it was composed of."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        try:
            if args.cfg is not None:
                hydra.show_cfg("config", overrides, args.cfg, args.package, resolve=args.resolve)
            else:
                hydra.show_info(str(args.info), "config", overrides)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(" ".join(str(error).split())) from error
        except SystemExit:  # `--package` that is not there; Hydra has written so
            raise UserError(f"--package: {args.package} is not in the config") from None


def multirun(args: TrainArgs) -> int:
    """Run every combination and print the exit code of each; 0 only if all of them succeeded."""
    from blockyard.config.multirun import expand
    from blockyard.sweep.execution.stop_signals import StopSignals

    flag = next((flag for flag in args.hydra_flags() if flag in ("--cfg", "--info")), None)
    if flag is not None:
        raise UserError(f"{flag} shows one config; leave out -m")
    folders, problems = args.folders(), _problems(args, multirun=True)
    if problems:
        return refuse(problems)
    codes = []
    with StopSignals() as signals:
        for overrides in expand(args.overrides, folders):
            code = _run([*overrides, *(text for name in args.config_dirs for text in ("--config-dir", name))], signals)
            codes.append((code, " ".join(overrides)))
            if signals.signum is not None:
                break
    for code, overrides in codes:
        sys.stdout.write(f"exit {code}  {overrides}\n")
    return signals.code or max((code for code, _ in codes), default=0)


def _run(arguments: Sequence[str], signals: StopSignals) -> int:
    """Train one combination in a process of its own. A SIGTERM is passed on; Ctrl-C reaches it by itself."""
    process = subprocess.Popen([sys.executable, "-m", "blockyard", "train", *arguments])
    passed_on = False
    try:
        while process.poll() is None:
            try:
                process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if signals.signum == signal.SIGTERM and not passed_on:
                    process.terminate()
                    passed_on = True
    finally:
        if process.poll() is None:  # a second signal
            process.terminate()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _problems(args: TrainArgs, multirun: bool = False) -> list[str]:
    """The problems of the overrides, found before the first run."""
    from blockyard.config.compose import compose

    return [str(issue) for issue in compose(args.overrides, args.config_dirs, multirun=multirun).issues]
