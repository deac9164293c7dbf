"""A sweep or a run as one file for others: written without the machine's paths, read as a stranger's, recomputed.

archive.py     the ZIP file: the same bytes for the same content; what could do harm is refused
crate.py       the description of its files for other tools, as an RO-Crate
scrubbing.py   paths, the machine's name and accounts out of what is written
write.py       `blockyard bundle`
verify.py      `blockyard verify-bundle`: checksums, configs, and the comparison, computed again
rerun.py       a run of a bundle repeated, and compared bit by bit
"""
