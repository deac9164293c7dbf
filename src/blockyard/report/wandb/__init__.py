"""A comparison at Weights & Biases: a summary run beside the sweep's runs, and a workspace."""
