"""What mixes tokens. One file each."""
