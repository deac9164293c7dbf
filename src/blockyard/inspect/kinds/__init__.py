"""One file for each kind of inspection, found on the disk: its name is the file's.

Each has `OPTIONS`, the names of the options that it takes, and `inspect(loaded, options)`, which returns numbers, table
and the pages of its figures as an `InspectionResult`; `panels.py` draws them.
"""
