"""The command line: parsing it, one run of it, and its output.

`output` is the only module that prints, and all text for a terminal is sanitized there.
"""
