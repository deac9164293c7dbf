"""Short measurements of a choice.

cost.py     FLOPs, time and memory of token mixers over the number of tokens
rates.py    the learning rates at which a model trains
"""
