"""slime's and miles' corrections: truncated importance sampling, icepop, off-policy sequence masks, the MIS helper."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from tokenaudit.corrections.arrays import Array
from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens
from tokenaudit.corrections.trainers import mis

SETTINGS = {
    "vanilla_tis": ("use_tis", "tis_clip", "tis_clip_low"),
    "icepop": ("use_tis", "tis_clip", "tis_clip_low"),
    "opsm": ("opsm_delta",),
    "mis": tuple(mis.MisOptions.model_fields),
}
"""What each function looks at."""


class Slime(Correction, mis.MisOptions):
    """One of its functions; all of them take their settings from the same arguments."""

    TRAINER: ClassVar = "slime"
    SOURCE: ClassVar = (
        "THUDM/slime 624b824a898a, slime/backends/megatron_utils/loss.py, slime/utils/ppo_utils.py, "
        "examples/train_infer_mismatch_helper/mis.py"
    )
    DIVIDES_BY: ClassVar = "tokens in the loss before any is dropped"

    function: Literal["vanilla_tis", "icepop", "opsm", "mis"] = "vanilla_tis"
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0
    opsm_delta: float = 1e-4

    @model_validator(mode="after")
    def _as_the_helper_takes_them(self) -> Self:
        if self.function == "mis":
            mis.check(self)
        return self

    @property
    def needs_advantage(self) -> bool:  # noqa: D102 - see the base
        return self.function == "opsm"

    @property
    def over_batch(self) -> bool:  # noqa: D102
        return self.function == "mis" and self.use_tis and self.tis_batch_normalize

    def notes(self) -> tuple[str, ...]:  # noqa: D102
        ignored = sorted(self.model_fields_set - {"function", *SETTINGS[self.function]})
        found = [f"{name} is not looked at by {self.function}" for name in ignored]
        if self.function == "mis":
            found += mis.notes(self)
        if self.function in ("vanilla_tis", "icepop"):
            if not self.use_tis:
                found.append("use_tis: false leaves no weight, and drops nothing")
            elif self.tis_clip_low > self.tis_clip:
                found.append("tis_clip_low is above tis_clip, which the trainer doesn't check")
        if self.function == "icepop" and self.use_tis and self.tis_clip_low <= 0:
            found.append("with a tis_clip_low of 0 no token is dropped for a small ratio")
        if self.function == "opsm":
            found.append("without use_rollout_logprobs the trainer compares its own log-probabilities only")
        return tuple(found)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        if self.function == "mis":
            return mis.apply(self, tokens)
        if self.function == "opsm":
            return self._masked_sequences(tokens)
        if not self.use_tis:
            return Applied(tokens.mask, tokens.mask, None, {"count": tokens.count})
        ratio = tokens.ratio
        low, high = ratio < self.tis_clip_low, ratio > self.tis_clip
        if self.function == "icepop":
            inside = ~(low | high)
            weight = tokens.xp.where(inside, ratio, 0)
            return Applied(tokens.mask & inside, tokens.mask, weight, self._ratio_stats(tokens, weight))
        weight = tokens.xp.clip(ratio, self.tis_clip_low, self.tis_clip)
        at_low = low if self.tis_clip_low > 0 else None
        return Applied(tokens.mask, tokens.mask, weight, self._ratio_stats(tokens, weight), at_low, high)

    def mean_weight(self, parts: Iterable[Tokens]) -> float | None:  # noqa: D102
        return mis.mean_weight(self, parts) if self.over_batch else None

    def apply_part(self, tokens: Tokens, mean_weight: float) -> Applied:  # noqa: D102
        return mis.apply(self, tokens, mean_weight)

    @staticmethod
    def _ratio_stats(tokens: Tokens, weight: Array) -> dict[str, Array]:
        xp, ratio = tokens.xp, tokens.ratio
        return {
            "count": tokens.count,
            "ratio": tokens.once("ratio_sum", lambda: tokens.sum(ratio)),
            "distance_to_1": tokens.once("distance_to_1_sum", lambda: tokens.sum(xp.absolute(ratio - 1))),
            "clipped": tokens.count_of(weight != ratio),
        }

    def _masked_sequences(self, tokens: Tokens) -> Applied:
        """OPSM: responses with a negative advantage that the trainer has become too unlikely to write."""
        xp = tokens.xp
        negative = xp.of(tokens.advantage < 0, "bool")
        dropped = negative & (-tokens.log_ratio_mean > self.opsm_delta)
        kept = tokens.spread(~dropped)
        stats = {"count": tokens.count, "dropped": dropped, "length": xp.of(tokens.lengths, "int64")}
        return Applied(tokens.mask & kept, tokens.mask, xp.cast(kept, "float32"), stats)

    def metrics(self, stats: Stats) -> dict[str, float]:
        """As the trainer's reducer makes them: sums over responses of their means; opsm_clipfrac may exceed 1."""
        if self.function == "mis":
            return mis.metrics(self, stats)
        count = np.maximum(stats["count"], 1)
        if self.function == "opsm":
            return {"opsm_clipfrac": float((stats["length"] / count)[stats["dropped"]].sum())}
        names = {"ratio": "tis", "distance_to_1": "tis_abs", "clipped": "tis_clipfrac"}
        return {
            logged: float((stats[name].astype(np.float64) / count).sum())
            for name, logged in names.items()
            if name in stats
        }


class SlimeMis(Slime):
    """slime with its MIS helper."""

    TRAINER: ClassVar = "slime-mis"

    function: Literal["vanilla_tis", "icepop", "opsm", "mis"] = "mis"


class Miles(Slime):
    """The same functions, in miles."""

    TRAINER: ClassVar = "miles"
    SOURCE: ClassVar = (
        "radixark/miles 31f1ca961a94, miles/backends/training_utils/loss_hub/corrections.py and math_utils.py, "
        "examples/infra_features/train_infer_mismatch_helper/mis.py"
    )
