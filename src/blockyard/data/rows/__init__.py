"""The part of a table row that a model reads: one kind of row a module, for data=table and data=hf.

kind.py       what a kind of row offers, and rows that are assigned to splits
texts.py      a text, or two joined by the start token
images.py     an image
captions.py   an image, whose text is written
questions.py  a text about an image
numbers.py    columns of numbers
new_inputs.py inputs of a trained run: texts, images, sounds and rows of arrays
"""
