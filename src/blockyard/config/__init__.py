"""From a command line to a checked config, and from that to a model: catalog, composition, check, build."""
