"""Looking inside a trained run: attention maps, who reads from whom, the circuits of heads."""
