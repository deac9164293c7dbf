"""The cost of a choice over the number of tokens, and the learning rates at which it trains.

cost.py     FLOPs, time and memory of token mixers over the number of tokens
rates.py    the learning rates at which a model trains
"""
