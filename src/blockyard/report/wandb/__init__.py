"""A comparison at Weights & Biases: a summary run next to the sweep's runs, and a workspace."""
