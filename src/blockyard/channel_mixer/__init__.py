"""What mixes the channels of each token. One file each."""
