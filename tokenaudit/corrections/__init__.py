"""Off-policy corrections of trainers, computed on recorded tokens: which they drop, how they weigh the others.

In come the log-probabilities of engine and trainer, the mask and the advantage of responses; out go, for every
correction, the tokens kept, the weights, and the figures that its trainer logs. `Tokens` holds what corrections share,
a module in `trainers` the formulas of one trainer. Arrays are flat: responses stand one after the other, unpadded.
"""
