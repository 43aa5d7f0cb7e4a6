"""How old a token is, and when it is too old: integer formulas, nothing else.

Source: InternLM/xtuner pull request 2003. `train_step` counts trainer steps from 1, `model_step` is the number
of train steps in the weights that made a token, so fully synchronous training has a staleness of 0.
"""

from __future__ import annotations


def staleness(model_step: int, train_step: int) -> int:
    """Age in train steps of a token of version `model_step` at `train_step`; negative for a future version."""
    return train_step - model_step - 1


def stale_threshold(max_staleness: int, sync_weights_interval: int) -> int:
    """The staleness, in train steps, at which a response is too old."""
    return (max_staleness + 1) * sync_weights_interval


def token_stale_threshold(max_token_staleness: int | None, sync_weights_interval: int) -> int | None:
    """The staleness, in train steps, at which a token is no longer fresh; None when the token rule is off."""
    if max_token_staleness is None:
        return None
    return (max_token_staleness + 1) * sync_weights_interval


def too_old_from(model_step: int, threshold: int) -> int:
    """The first train step at which a token of version `model_step` has a staleness of `threshold` or more."""
    return model_step + threshold + 1


def newest_too_old(train_step: int, threshold: int) -> int:
    """The largest version whose tokens have a staleness of `threshold` or more at `train_step`."""
    return train_step - threshold - 1


def live_version(model_step: int, sync_weights_interval: int) -> int:
    """The version that would have been live at `model_step` had weights been synced every interval."""
    return model_step // sync_weights_interval * sync_weights_interval
