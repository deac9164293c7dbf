"""Libraries that weights come from, one file each: `init.from=hf:NAME` is a model of `hf.py`. Found on the disk."""
