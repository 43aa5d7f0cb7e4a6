"""Files of `torch.save` in, plain data out, without torch and without running anything. `TorchFile` is the one door.

Nothing that a file names is looked up or called. Knows no trainer.
"""
