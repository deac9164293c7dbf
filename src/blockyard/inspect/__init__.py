"""Look inside a trained model: attention weights, token mixing, circuits of attention heads, restored inputs."""
