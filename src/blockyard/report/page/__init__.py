"""The page of a comparison: one HTML file that opens offline and asks nobody for anything.

render.py    a comparison -> the page's text; security lives here
thin.py      as many points of each curve as a screen can show
page.html    the frame
style.css    the look, light and dark, on a phone and on paper
*.js         the charts and the table, joined in the order of SCRIPTS; no library
"""

from __future__ import annotations

from blockyard.report.page.render import render, write

__all__ = ["render", "write"]
