"""A run as a model of transformers, by AutoTokenizer and AutoModel. `python examples/load_export.py`

Where the folder is read, nothing of blockyard is needed; here it compares the predictions. Overrides on the command
line are those of blockyard: `python examples/load_export.py preset=llama trainer.max_steps=200`.
"""

import sys

import torch
import transformers

import blockyard
from blockyard.cli import main as command

SMALL = ("data=code", "data.context=64", "model.dim=32", "model.depth=2", "trainer.max_steps=40", "logger=none")


def main() -> None:
    """Train, export, load and write."""
    run = blockyard.train("preset=gpt2", "tokenizer=byte", *SMALL, "name=export", *sys.argv[1:])
    assert command(["export", f"run={run.path}", "to=exported", "format=hf", "license=apache-2.0"]) == 0

    tokenizer = transformers.AutoTokenizer.from_pretrained("exported")
    model = transformers.AutoModelForCausalLM.from_pretrained("exported")
    inputs = tokenizer("def forward(self, x):\n", return_tensors="pt")

    loaded = blockyard.load(run)
    assert inputs["input_ids"][0].tolist() == loaded.tokenizer.encode("def forward(self, x):\n")
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, loaded.model(inputs["input_ids"]), atol=1e-4, rtol=1e-4)

    tokens = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    print("transformers writes", repr(tokenizer.decode(tokens[0])))


if __name__ == "__main__":
    main()
