"""Several runs in one process: their weights are stacked so that one training step serves all of them."""
