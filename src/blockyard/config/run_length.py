"""The keys of a config of which each ends a run, whichever is reached first."""

LENGTHS = ("trainer.max_steps", "trainer.max_epochs", "trainer.max_seconds", "trainer.max_flops")
