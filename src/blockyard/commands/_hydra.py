"""What `train` prints by Hydra: `--cfg`, `--info`.

Hydra's own application, which calls callbacks, launchers and logging classes that a config names, is never started.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from blockyard.config import catalog, user_folders
from blockyard.errors import UserError, refuse

if TYPE_CHECKING:
    from blockyard.commands.train import TrainArgs


def show(args: TrainArgs) -> int:
    """Print what Hydra composes (`--cfg`, `--info`)."""
    from blockyard.config.overrides import sort_overrides
    from blockyard.config.presets import expand

    folders, problems = args.folders(), problems_of(args)
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


def problems_of(args: TrainArgs, multirun: bool = False) -> list[str]:
    """The problems of the overrides, as text. multirun: whether a key may have several values."""
    from blockyard.config.compose import compose

    return [str(issue) for issue in compose(args.overrides, args.config_dirs, multirun=multirun).issues]
