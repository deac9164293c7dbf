"""One file for each kind of inspection, found on the disk: its name is the file's.

Each has `OPTIONS`, the names of the options that it takes, and `inspect(loaded, options, folder)`, which computes,
draws and returns the table and the numbers as an `InspectionResult`.
"""
