"""What prime-rl trains of a trace, a branch and a token at a time, as `help import prime-rl` words it."""

from __future__ import annotations

from typing import Any, NamedTuple


class SlowSample(NamedTuple):
    """A branch that is trained: its number, its tokens, which of them are trained, and log-probabilities of those."""

    branch: int
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]


def slow_samples(nodes: list[dict[str, Any]]) -> list[SlowSample]:
    """All branches with something to train; a message is trained in the first of them that has it."""
    found: list[SlowSample] = []
    trained: set[int] = set()
    ends = [place for place in range(len(nodes)) if all(node["parent"] != place for node in nodes)]
    for branch, end in enumerate(ends):
        path = [end]
        while nodes[path[0]]["parent"] is not None:
            path.insert(0, nodes[path[0]]["parent"])
        sample = SlowSample(branch, [], [], [])
        for place in path:
            node = nodes[place]
            sampled = iter(node["logprobs"])
            for token, is_sampled in zip(node["token_ids"], node["mask"], strict=True):
                sample.token_ids.append(token)
                sample.mask.append(is_sampled and place not in trained)
                logprob = next(sampled) if is_sampled else 0.0
                sample.logprobs.append(logprob)
        trained |= {*path}
        if any(sample.mask):
            found.append(sample)
    return found


def slow_in_loss(data: dict[str, Any]) -> list[bool] | None:
    """Which tokens of an exported sequence are in the loss; None where it isn't said what the loss masked."""
    in_loss: list[bool] = []
    for place, is_trainable in enumerate(data["loss_mask"]):
        rl, ce, reference, is_masked = (data[name][place] for name in WEIGHTS)
        learns = is_trainable and (rl is None or rl != 0)
        if learns and is_masked is None:
            return None
        others = (ce is not None and ce != 0) or (reference is not None and reference != 0)
        in_loss.append((learns and not is_masked) or others)
    return in_loss


WEIGHTS = ("rl_weights", "ce_weights", "ref_kl_weights", "is_masked")
