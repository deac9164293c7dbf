"""Services that show a comparison too, such as W&B: a folder of `report/` for each, found on the disk.

Its `summary_run.py` has `mirror`, which logs the comparison of a sweep, and its `workspace.py` has `workspace`, which
shows the page's panels there.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockyard.report.load.document import ComparisonDocument
    from blockyard.sweep.plan.sweep_plan import SweepPlan

SERVICES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/workspace.py")))


def mirror(comparison: ComparisonDocument, plan: SweepPlan) -> list[str]:
    """Log the comparison of a sweep to the services that its arms log to; return messages for the user."""
    messages = (_module(service, "summary_run").mirror(comparison, plan) for service in SERVICES)
    return [message for message in messages if message is not None]


def workspace(service: str, comparison: ComparisonDocument, *, outputs: str) -> str:
    """Show a comparison of runs below `outputs` at a service; return the address. Raises UserError if it refuses."""
    address: str = _module(service, "workspace").workspace(comparison, outputs=outputs)
    return address


def _module(service: str, name: str) -> Any:
    return import_module(f"{__package__}.{service}.{name}")
