"""Standard: nothing depends on the size of the model beyond its own options.

Source: none; a config without a parametrization has it
Reference: torch.nn
Equation: every factor is 1
Cost: nothing
"""

from __future__ import annotations

from blockyard.contracts import Parametrization


class Standard(Parametrization):
    """Initial weights of maps, and vectors that enter the stream, have a standard deviation of 1 / sqrt(D).

    Options:
    """
