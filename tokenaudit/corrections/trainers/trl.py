"""TRL's importance sampling for vLLM, and its mask of off-policy responses."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from tokenaudit.corrections.correction import Applied, Correction, Stats
from tokenaudit.corrections.tokens import Tokens

PREFIX = "sampling/"


class Trl(Correction):
    """Ratios of tokens, or their products over responses, as weights; clipped, or 0 out of bounds."""

    TRAINER: ClassVar = "trl"
    SOURCE: ClassVar = "huggingface/trl f2cd57710ae3, trl/trainer/grpo_trainer.py"
    DIVIDES_BY: ClassVar = "all tokens in the loss, those with a weight of 0 included"

    vllm_importance_sampling_correction: bool = True
    vllm_importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "sequence_mask"
    )
    vllm_importance_sampling_clip_max: float | None = 3.0
    vllm_importance_sampling_clip_min: float | None = None
    off_policy_mask_threshold: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _mask_alone(cls, options: Any) -> Any:
        """The mask of responses stands alone where no option of the importance sampling is given."""
        if isinstance(options, dict) and options.get("off_policy_mask_threshold") is not None and len(options) == 1:
            return options | {"vllm_importance_sampling_correction": False}
        return options

    @model_validator(mode="after")
    def _as_the_trainer_checks(self) -> Self:
        low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        if low is not None and high is not None and low >= high:
            raise ValueError(
                f"vllm_importance_sampling_clip_min: the trainer takes less than vllm_importance_sampling_clip_max, "
                f"{high}, not {low}"
            )
        truncates = self.vllm_importance_sampling_mode.endswith("truncate")
        if self.vllm_importance_sampling_correction and truncates and low is None and high is None:
            raise ValueError(
                f"vllm_importance_sampling_clip_max: the trainer needs it or vllm_importance_sampling_clip_min "
                f"in mode {self.vllm_importance_sampling_mode}"
            )
        return self

    @property
    def needs_advantage(self) -> bool:
        """Whether responses are masked, which spares those with an advantage of 0 or more."""
        return self.off_policy_mask_threshold is not None

    def notes(self) -> tuple[str, ...]:  # noqa: D102 - see the base
        found = []
        if self.off_policy_mask_threshold is not None:
            found.append("off_policy_mask_threshold is held against the current policy, not the one before the step")
        if not self.vllm_importance_sampling_correction:
            switch = {"vllm_importance_sampling_correction", "off_policy_mask_threshold"}
            found += [f"{name} does nothing here" for name in sorted(self.model_fields_set - switch)]
            if self.off_policy_mask_threshold is not None:
                found.append(
                    "the importance sampling, which the trainer has on by default, is left out; "
                    "vllm_importance_sampling_correction: true takes it in"
                )
            return tuple(found)
        if self.vllm_importance_sampling_mode.startswith("sequence"):
            found.append("the ratio of a response is the product over its tokens, so long ones drift out of any bounds")
        if self.vllm_importance_sampling_clip_min is None:
            found.append("without vllm_importance_sampling_clip_min nothing is cut or dropped for a small ratio")
        return tuple(found)

    def apply(self, tokens: Tokens) -> Applied:  # noqa: D102
        xp, keep, weight, at_low, at_high = tokens.xp, tokens.mask, None, None, None
        stats = {"count": tokens.count}
        if self.vllm_importance_sampling_correction:
            low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
            sequence = self.vllm_importance_sampling_mode.startswith("sequence")
            # the log ratio is 0 for tokens out of the loss
            ratio = xp.exp(tokens.log_ratio_sum) if sequence else tokens.one_outside(tokens.ratio)
            at_low = None if low is None else ratio < low
            at_high = None if high is None else ratio > high
            if self.vllm_importance_sampling_mode.endswith("truncate"):
                weight, dropped = xp.clip(ratio, low, high), None
            else:
                flags = [flag for flag in (at_low, at_high) if flag is not None]
                dropped = flags[0] if len(flags) == 1 else flags[0] | flags[1] if flags else None
                weight = ratio if dropped is None else xp.where(dropped, 0.0, ratio)
                at_low = at_high = None
            stats["distance"] = tokens.once("distance_sum", lambda: tokens.sum(tokens.distance))
            stats["distance_max"] = tokens.once("distance_max", lambda: tokens.largest(tokens.distance))
            if sequence:
                stats["weight"] = weight
                weight, dropped, at_low, at_high = (
                    None if values is None else tokens.spread(values) for values in (weight, dropped, at_low, at_high)
                )
            else:
                stats["weight"] = tokens.sum(weight)
                stats["weight_max"] = tokens.largest(weight, -np.inf)
                stats["weight_min"] = tokens.smallest(weight, np.inf)
            if dropped is not None:
                keep = keep & ~dropped
        if self.off_policy_mask_threshold is not None:
            near = -tokens.log_ratio_mean <= self.off_policy_mask_threshold
            kept = tokens.spread(near | xp.of(tokens.advantage >= 0, "bool"))
            keep = keep & kept
            weight = xp.cast(kept, tokens.dtype) if weight is None else xp.where(kept, weight, 0.0)
        return Applied(keep, tokens.mask, weight, stats, at_low, at_high)

    def metrics(self, stats: Stats) -> dict[str, float]:
        """As its `sampling/` figures, after clipping; of responses in the modes of sequences."""
        if "weight" not in stats:
            return {}
        tokens = int(stats["count"].sum())
        weight = stats["weight"]
        if self.vllm_importance_sampling_mode.startswith("sequence"):
            low, high, parts = weight, weight, len(weight)
        else:
            low, high, parts = stats["weight_min"], stats["weight_max"], tokens
        with np.errstate(over="ignore"):
            ratios = (
                {"min": low.min(), "mean": weight.sum(dtype=np.float64) / parts, "max": high.max()} if parts else {}
            )
        return {
            f"{PREFIX}sampling_logp_difference/mean": float(stats["distance"].sum(dtype=np.float64) / max(tokens, 1)),
            f"{PREFIX}sampling_logp_difference/max": float(stats["distance_max"].max()) if tokens else 0.0,
            **{
                f"{PREFIX}importance_sampling_ratio/{name}": float(ratios.get(name, 0.0))
                for name in ("min", "mean", "max")
            },
        }
