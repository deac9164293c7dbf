"""From paths and ids on a command line to the arms and runs that a comparison is computed from."""
