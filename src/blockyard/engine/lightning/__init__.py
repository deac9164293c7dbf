"""Lightning's trainer for a run: below callbacks and engine, above faults.

processes    starts the other processes of a run
patches      every private part of Lightning and torch that is used or replaced
"""
