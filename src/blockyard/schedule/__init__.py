"""Learning rate schedules: one mechanism per file."""
