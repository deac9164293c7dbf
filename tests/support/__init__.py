"""What tests of several folders share besides fixtures: small runs, data, models, forked commands, tolerances."""
