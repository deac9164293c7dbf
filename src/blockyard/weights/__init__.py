"""Weights from elsewhere and to elsewhere: what a run starts from and trains, and libraries' checkpoints as ours."""
