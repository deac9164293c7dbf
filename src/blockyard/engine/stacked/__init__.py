"""Several runs in one process, whose weights are stacked so that one training step serves all of them."""
