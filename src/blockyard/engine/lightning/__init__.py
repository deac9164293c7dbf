"""Support for Lightning's callbacks, loggers and `Trainer` flags in addition to our own."""
