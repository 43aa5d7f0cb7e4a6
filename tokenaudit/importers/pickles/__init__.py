"""Files of `torch.save` and bare pickles in, plain data out, without torch and without running anything.

`torch_file.py` has the doors. Nothing that a file names is looked up or called. Knows no trainer.
"""
