"""From finished runs to an answer: tidy figures, statistics, tables, the page."""
