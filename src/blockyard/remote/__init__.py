"""Copies of runs and sweeps on a remote storage: `blockyard runs push` and `pull`.

    ADDRESS/NAME-HASH/sSEED/   config.yaml, metrics.csv, checkpoints/best.ckpt, ...
    ADDRESS/NAME-HASH/sSEED/manifest.json     SHA-256 and size of the other files, written last
    ADDRESS/sweeps/NAME/       plan.json, comparison.json, manifest.json

A folder without a manifest is a push that has not ended. Nobody reads it, and the next push of that run writes it
again.

address.py   the storage: any file system of fsspec, and its errors in one sentence
copies.py    which files travel, and the manifest of a folder
push.py      from here to the storage
pull.py      from the storage, as from a stranger: checked in a folder of its own, then moved in place as a whole
"""
