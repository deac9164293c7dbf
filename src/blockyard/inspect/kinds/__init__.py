"""One file for each kind of inspection, found on the disk: its name is the file's.

Each has `OPTIONS`, the names of its options, and `inspect(loaded, options)`. It returns an `InspectionResult` with
numbers, a table and the pages of figures; `panels.py` draws them.
"""
