"""Options that an experiment sets for a choice which an override or a preset replaces.

`experiment=speech_ctc` masks bands of its spectrogram. With `source_tokenizer=waveform` there are none, and these
options do not apply. What both choices have, such as a learning rate, does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockyard.config import catalog, presets

EXPERIMENT = "experiment"


def remove_options(config: dict[str, Any], choices: dict[str, str | None], folders: tuple[Path, ...] = ()) -> None:
    """Removes in place the options that only the experiment's choice of a family has.

    choices: the name chosen in each family. An option that neither choice has stays in the config, which is refused.
    """
    experiment = choices.get(EXPERIMENT)
    if not experiment:
        return
    of_experiment = presets.choices(EXPERIMENT, experiment, folders)
    for family, present in choices.items():
        former, node = of_experiment.get(family, catalog.default_choices().get(family)), config.get(family)
        if present == former or family in catalog.SEVERAL or not isinstance(node, dict):
            continue
        of_family = catalog.choices(family, folders)
        if former in of_family and present in of_family:
            for option in {*of_family[former].options} - {*of_family[present].options}:
                node.pop(option, None)
