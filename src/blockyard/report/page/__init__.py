"""The page of a comparison: one self-contained HTML file that opens offline.

document.py  renders a comparison as HTML; escaping and the content security policy are here
thin.py      reduces each curve to as many points as a screen can show
page.html    the frame
*.css        the style, light and dark, for phones and for print, joined in the order of STYLES
*.js         the charts and the table, joined in the order of SCRIPTS; no library
watch.py     recomputes a comparison when its runs change
server.py    serves the page on a loopback address, for `blockyard board`
"""

from __future__ import annotations

from blockyard.report.page.document import render, write

__all__ = ["render", "write"]
