"""The choices on disk. Imports nothing heavy.

catalog.py  the choices of every config group, with the docstrings of their files
"""
