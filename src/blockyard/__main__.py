"""`python -m blockyard` is `blockyard`."""

from blockyard.cli import entry

if __name__ == "__main__":
    entry()
