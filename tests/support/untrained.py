"""A folder of a run that was never trained, as `blockyard export format=safetensors` writes one."""

from __future__ import annotations

from pathlib import Path

from blockyard.atomic_files import write_json, write_yaml
from blockyard.config.build import Components
from blockyard.contracts import TextTokenizer
from blockyard.runs.folder import SOURCE_TOKENIZER, TOKENIZER
from blockyard.runs.identity import identity
from blockyard.runs.weights_file import WEIGHTS, write_weights
from tests.support.tiny import configured


def untrained(folder: Path, *overrides: str, text: str | None = None) -> Path:
    """Write the initial weights of a config, and return the folder. text: what its tokenizer is fitted to"""
    config, choices = configured("logger=none", *overrides)
    components = Components(config)
    folder.mkdir(parents=True)
    write_yaml(folder / "config.yaml", config)
    write_json(folder / "run.json", {"identity": identity(config), "choices": choices}, checked=True)
    if text is not None:
        for tokenizer, name in ((components.tokenizer, TOKENIZER), (components.source_tokenizer, SOURCE_TOKENIZER)):
            if isinstance(tokenizer, TextTokenizer) and tokenizer.learns:
                tokenizer.fit([text])
                write_json(folder / name, tokenizer.state(), checked=True)
    write_weights(folder / WEIGHTS, components.model(0).state_dict())
    return folder
