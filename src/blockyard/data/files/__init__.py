"""Readers of files: what a file holds, and why it cannot be used. They know no model, no tokenizer and no split.

arrays.py          .npy and .npz
tables.py          one file of a table: CSV, TSV, JSON Lines, Parquet, Arrow
table_rows.py      the rows of several tables as one, with columns of text and of numbers
pairs.py           pairs of texts in tab-separated columns
conll.py           sentences with a word and its tag in each line
images.py          image files as pixels
tar_shard.py       samples in tar archives, and their cached index
token_shards.py    token ids in .bin and .npy
sounds.py          sound files as samples
series_records.py  series with a class each: .ts and .npz
molecules.py       molecules as graphs: JSON lines and SMILES
graph.py           an undirected graph
split_names.py     names of splits, in columns and names of files
unpacked.py        refuses archives that unpack to more than memory holds
native_check.py    reads a file once in a process of its own, which may crash
digest.py          the hash of contents
cache.py           the folder of what is expensive to compute again
"""
