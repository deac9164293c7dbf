"""Real schedulers, installed and started by the tests that use them; `make schedulers` runs them."""
