"""Compare finished runs: loading, statistics, tables and the page."""
