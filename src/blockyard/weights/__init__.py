"""First weights of a run, the parts that it trains, its teacher, and checkpoints of libraries in both directions."""
