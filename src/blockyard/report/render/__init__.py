"""A comparison as text: terminal tables, Markdown, LaTeX and CSV, one file each."""
