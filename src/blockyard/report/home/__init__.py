"""The home page of an outputs folder: every sweep with its claim and verdict, every run, and runs side by side."""
