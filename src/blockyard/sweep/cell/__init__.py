"""One cell in the process that runs it: training, pruning by the trials of a search, and its state on the disk."""
