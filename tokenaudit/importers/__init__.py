"""What other trainers write in, a log out. Read `write.py` first; `detect.py` knows the formats, one module each.

Shared: `base` and `fields` for all, `files` for text and tables, `dumps` for torch.save, `batch` for trained batches.
"""
