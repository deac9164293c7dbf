"""What a choice costs: FLOPs, time and memory of token mixers over the number of tokens.

subject.py    what is measured: a mixer, a training step, a decoding step
cost.py       measures it at every length, for every mixer and attention kernel
growth.py     the exponent of the number of tokens, and where one choice becomes cheaper than another
output.py     tables, a CSV file and a figure
"""
