"""The cost of a choice over the number of tokens, the learning rates at which it trains, and the sources of its noise.

cost.py     FLOPs, time and memory of token mixers over the number of tokens
noise.py    the share of first weights, order of the data and draws in the variance of a run
rates.py    the learning rates at which a model trains
"""
