"""The commands, one file each: `run(arguments) -> exit code`."""

from __future__ import annotations

VERBS = {
    "train": "train a run:            blockyard train experiment=vit_digits block=post_norm seed=1",
    "eval": "test a run again:       blockyard eval run=last",
    "generate": "stream text from a run: blockyard generate run=last prompt='def ' max_tokens=200",
    "inspect": "look inside a run:      blockyard inspect run=last attention",
    "sweep": "answer a question:      blockyard sweep quickstart",
    "compare": "judge any runs:         blockyard compare outputs --by block",
    "board": "watch in a browser:     blockyard board quickstart",
    "check": "judge, build nothing:   blockyard check block=parallel token_mixer=fourier",
    "explain": "one choice in full:     blockyard explain token_mixer=attention",
    "list": "what there is:          blockyard list position",
    "completion": 'for your shell:         eval "$(blockyard completion bash)"',
}
HIDDEN = {"_cell": "cell", "_complete": "completion"}
