"""What other trainers write in, a log out: one module per format, found by name or by looking at the files.

`write.py` is the front door, `detect.py` knows the formats. Importers know no replay and no config.
"""
