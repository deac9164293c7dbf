"""Writes shards of token ids from text files: `blockyard tokenize`."""
