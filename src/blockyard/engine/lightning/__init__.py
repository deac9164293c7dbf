"""Lightning's callbacks, loggers and `Trainer` flags beside our own."""
