"""The commands: one module each, with functions that `_signature.command` marks and `_reader` calls."""

from __future__ import annotations

COMMANDS = {
    "train": "train a model:            blockyard train experiment=vit_digits block=post_norm seed=1",
    "tokenize": "texts to token shards:    blockyard tokenize corpus/ out=data/tokens tokenizer=bpe",
    "eval": "evaluate a run:           blockyard eval run=last",
    "predict": "classify new inputs:      blockyard predict run=last mails.csv",
    "embed": "vectors of inputs:        blockyard embed run=last mails.csv out=vectors.npz",
    "generate": "generate text with a run: blockyard generate run=last prompt='def ' max_tokens=200",
    "forecast": "forecast a time series:   blockyard forecast run=last file=new.csv",
    "inspect": "look inside a run:        blockyard inspect run=last attention",
    "import": "weights from a library:   blockyard import checkpoints/gpt2 out=imported/gpt2",
    "export": "weights to a library:     blockyard export run=last to=exported/gpt format=hf",
    "soup": "average weights of runs:  blockyard soup tuned_a tuned_b out=soups/tuned weights=greedy",
    "ask": "plan from a file:        blockyard ask reviews.tsv arms=rope,learned hours=1",
    "sweep": "run a question file:      blockyard sweep quickstart",
    "campaign": "many tries, one error:    blockyard campaign try small rms norm=rms",
    "runs": "list, tag, delete runs:   blockyard runs position=rope --best test/accuracy",
    "compare": "compare runs:             blockyard compare outputs --by block",
    "bundle": "results for others:      blockyard bundle quickstart out=quickstart.zip",
    "verify-bundle": "check such results:      blockyard verify-bundle quickstart.zip --rerun 1",
    "board": "watch runs in a browser:  blockyard board quickstart",
    "check": "validate a config:        blockyard check block=parallel token_mixer=fourier",
    "bench": "measure what it costs:    blockyard bench cost token_mixer=attention,conv tokens=[64,128,256]",
    "verify": "check a component:        blockyard verify token_mixer=attention position=rope",
    "init": "start a project:          blockyard init mystudy",
    "new": "start a component:        blockyard new token_mixer running_mean",
    "explain": "describe a choice:        blockyard explain token_mixer=attention",
    "list": "list choices:             blockyard list position",
    "schema": "schemas for your editor:  blockyard schema",
    "completion": 'complete in your shell:   eval "$(blockyard completion bash)"',
}
# The module of a command of another name; `import` is a keyword of Python, and a module has no hyphen.
MODULES = {"import": "import_weights", "verify-bundle": "verify_bundle"}
