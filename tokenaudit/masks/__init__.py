"""Effective token masks of many responses at a time, on numpy or torch, with equal bits on both.

A token is trained when its semantic mask is not 0 and it is fresh: `train_step - version - 1` is below the token
stale threshold. Where the token rule doesn't apply to a response (no threshold, an agentic member in its group),
the mask is the semantic mask. An empty response has an empty mask, and an all-zero mask stays all zero.

Trainers call `tokenaudit.masks.torch_backend.effective_mask` on their own tensors.
"""
