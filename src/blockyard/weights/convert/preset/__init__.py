"""One converter a file, named as its preset."""
