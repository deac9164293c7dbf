"""The config of a run, checked before anything that it names is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RunFolder

if TYPE_CHECKING:
    pass


def check_allowed(folder: RunFolder, allow: tuple[str, ...] | list[str] = ()) -> None:
    """Raises UserError if the run uses packages that are not in `allow`. Imports nothing."""
    packages = [str(package) for package in folder.config.get("allow") or ()]
    missing = [package for package in packages if package not in allow]
    if missing:
        raise UserError(
            f"{folder.path} uses components of {', '.join(missing)}; if you trust the folder, add "
            f"allow=[{','.join(missing)}]"
        )


def trusted_config(
    folder: RunFolder,
    allow: tuple[str, ...] | list[str] = (),
    position: Mapping[str, Any] | None = None,
    metrics: Any = None,
    *,
    training: bool = False,
) -> dict[str, Any]:
    """The frozen config with the user's own `allow` and with options of `position` replaced.

    training: whether the run goes on, and so must fit into the memory of this machine with its gradients

    Raises UserError with every problem that `check` reports.
    """
    from blockyard.config.check import check
    from blockyard.config.compose import Composed

    check_allowed(folder, allow)
    config = folder.config | {"allow": list(allow)}
    if folder.moved:
        config["data"] = {**config["data"], **folder.moved}
    if position:
        config["position"] = {**config["position"], **position}
    if metrics is not None:
        config["objective"] = {**config["objective"], "metrics": metrics}
    choices = dict(folder.facts().get("choices") or {})
    issues = check(Composed(config, choices), training=training, starts=False)
    if issues:
        raise UserError(f"{folder.path} cannot be rebuilt from its {CONFIG}: " + "; ".join(map(str, issues)))
    return config
