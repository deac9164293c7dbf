"""The page of a comparison: one HTML file that opens offline and asks nobody for anything.

document.py  a comparison -> the page's text; what keeps names text is here
thin.py      as many points of each curve as a screen can show
page.html    the frame
*.css        the look, light and dark, on a phone and on paper, joined in the order of STYLES
*.js         the charts and the table, joined in the order of SCRIPTS; no library
watch.py     a comparison that is made again when its runs change
server.py    the page at this machine's own address, for `blockyard board`
"""

from __future__ import annotations

from blockyard.report.page.document import render, write

__all__ = ["render", "write"]
