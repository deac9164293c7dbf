"""Text from a trained decoder or encoder-decoder, token by token or by beam search."""
