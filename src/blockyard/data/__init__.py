"""Data sets, one per file.

files/   readers of files, which know no model, no tokenizer and no split
rows/    what a model reads of a row of a table, one kind a module
splits/  splits of images, texts, series and so on, and what data sets of a kind share
"""
