"""Splits of images, texts, tokens, pairs, series, graphs, arrays and tables, and what data sets of a kind share.

order.py           the order of samples, a function of seed, epoch and step
columns.py         samples in memory, a column for each part of a batch
split.py           cuts a data set into disjoint splits
row_splits.py      the same for rows of tables, of which some stay together
loaded.py          the base class of data sets
hash.py            random numbers that depend on a key and the sample alone
simple_models.py   models that need no training, as baselines
images.py          images in memory or on disk
augment.py         random shifts, flips, crops, RandAugment and erasing of images
timm_policy.py     augmentation policies of timm
photographs.py     photographs of any size, with random resized crops
image_tokens.py    images as token ids
views.py           several partial views of an image
texts.py           texts cut into windows of tokens
token_stream.py    windows of token shards
labelled_texts.py  texts with a class each
tagged.py          sentences with a tag for each word
pairs.py           pairs of texts
captions.py        images with a caption each
recordings.py      recordings with a text each
series.py          windows of a time series and the steps after them
graphs.py          graphs with a target each
arrays.py          rows of arrays
vectors.py         vectors of numbers
synthetic.py       generated sequences of token ids
mixed.py           several splits as one, and what each step takes of them
own_data.py        datasets of the user's own
"""
