"""Types of options with a range. `check` reads them from a constructor's signature."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Lt
from pydantic import AllowInfNan

Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), AllowInfNan(False)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
Rate = Annotated[float, Ge(0), Lt(1)]  # of dropout
