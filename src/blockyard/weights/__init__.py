"""Weights from elsewhere and to elsewhere: libraries' checkpoints as weights of ours, and back."""
