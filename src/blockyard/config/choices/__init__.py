"""The choices on disk. Imports nothing heavy.

catalog.py  the choices of every config group, with what the docstrings of their files say
"""
