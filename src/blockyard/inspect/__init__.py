"""Look inside a trained model: attention weights, token mixing, and the circuits of attention heads."""
