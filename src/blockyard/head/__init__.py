"""From vectors to predictions. One file each."""
