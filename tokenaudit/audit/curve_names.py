"""Which of the log's series the curves of trainers are, by the names that the trainers log them under.

Read in InternLM/xtuner b934f46, verl-project/verl 1dda039, THUDM/slime 624b824, radixark/miles 31f1ca9,
areal-project/AReaL cbff54d, PrimeIntellect-ai/prime-rl 559b447, NovaSky-AI/SkyRL a956457, NVIDIA-NeMo/RL 7ea279a,
huggingface/trl f2cd577 and alibaba/ROLL 8eb27cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tokenaudit.audit.curve_definitions import DEFINITIONS
from tokenaudit.audit.curve_points import STEP
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint, shortened, shown


class KnownCurve(NamedTuple):
    """A curve that a trainer logs.

    Attributes:
        trainer: who logs it; empty for one that the user or this tool named.
        name: the name it logs it under.
        ours: name of the series that it is.
        first_step: the number of the trainer's first step.
        plus: what the trainer's definition adds to ours.
        inexact: why its values need not be those of the log though nothing is wrong; empty where they have to be.
    """

    trainer: str
    name: str
    ours: str
    first_step: int = 1
    plus: int = 0
    inexact: str = ""


_MICRO_BATCHES = "the trainer logs a mean over micro-batches and ranks"
_KL = "the trainer's rewards hold the KL penalty where the run has one"
_EVICTED = "verl evicts by the step at which a prompt was fetched"
_MEAN_OF_STEPS = "the trainer logs a mean over logging_steps"
_PUSHES = "miles counts pushes of weights, and groups that it filtered too"


def _stats(trainer: str, name: str, ours: str, first_step: int = 1, plus: int = 0, why: str = "") -> list[KnownCurve]:
    """The curves of mean, maximum and minimum, whose place in the name is `{}`."""
    return [
        KnownCurve(trainer, name.format(stat), f"{ours}_{stat}", first_step, plus, why)
        for stat in ("mean", "max", "min")
    ]


KNOWN: tuple[KnownCurve, ...] = (
    # Groups, though the names say samples.
    KnownCurve("xtuner", "async/completed_samples", m.LEFTOVER_COMPLETED.name),
    KnownCurve("xtuner", "async/aborted_samples", m.LEFTOVER_ABORTED.name),
    KnownCurve("xtuner", "async/expired_samples", m.LEFTOVER_EXPIRED.name),
    KnownCurve("xtuner", "async/failed_samples", m.FAILED_SAMPLES.name),
    KnownCurve("xtuner", "async/filtered_samples", m.FILTERED_SAMPLES.name),
    KnownCurve("xtuner", "response/batch_size", "taken_rows"),
    KnownCurve("xtuner", "response/raw_rewards/mean", "raw_reward_mean"),
    *_stats("xtuner", "response/rewards/{}", "reward"),
    *_stats("xtuner", "response/response_len/{}", "response_len"),
    *_stats("xtuner", "response/prompt_len/{}", "prompt_len"),
    *_stats("verl", "training/off_policy/trajectory_staleness/{}", "newest_staleness"),
    *_stats("verl", "training/off_policy/trajectory_staleness_worst/{}", "oldest_staleness"),
    *_stats("verl", "training/off_policy/trajectory_spans/{}", "version_span"),
    KnownCurve("verl", "training/off_policy/evicted_samples", m.EXPIRED_GROUPS.name, inexact=_EVICTED),
    *_stats("verl", "response_length/{}", "response_len"),
    *_stats("verl", "prompt_length/{}", "prompt_len"),
    *_stats("verl", "critic/score/{}", "reward"),
    *_stats("verl", "critic/rewards/{}", "reward", why=_KL),
    KnownCurve("verl", "perf/total_num_tokens", "taken_all_tokens"),
    *_stats("slime, miles", "rollout/response_len/{}", "trainable_len", 0),
    *_stats("miles", "rollout/weight_version/{}", "oldest_version", 0),
    KnownCurve("miles", "rollout/weight_version/mixed_version_ratio", "mixed_version_share", 0),
    KnownCurve("miles", "rollout/fully_async/avg_staleness", "group_staleness_mean", 0, inexact=_PUSHES),
    KnownCurve("miles", "rollout/fully_async/max_staleness", "group_staleness_max", 0, inexact=_PUSHES),
    KnownCurve("areal", "ppo_actor/update/version_stats/sample_staleness_theta_avg", "token_staleness_mean", 0, 0,
               _MICRO_BATCHES),
    KnownCurve("areal", "ppo_actor/update/version_stats/sample_staleness_proximal_avg", "token_staleness_mean", 0, -1,
               _MICRO_BATCHES),
    KnownCurve("prime-rl", "off_policy/mean", "start_staleness_mean"),
    KnownCurve("prime-rl", "off_policy/max", "start_staleness_max"),
    KnownCurve("prime-rl", "off_policy/in_queue/mean", "newest_staleness_mean"),
    KnownCurve("prime-rl", "off_policy/in_queue/max", "newest_staleness_max"),
    KnownCurve("prime-rl", "off_policy/in_flight/mean", "version_span_mean", 1, -1),
    KnownCurve("prime-rl", "off_policy/in_flight/max", "version_span_max", 1, -1),
    *_stats("skyrl", "async/staleness_{}", "group_start_staleness"),
    KnownCurve("skyrl", "async/staleness_ratio", "stale_group_share"),
    KnownCurve("nemo-rl", "train/avg_trajectory_age", "group_start_staleness_mean"),
    KnownCurve("nemo-rl", "train/total_num_tokens", "taken_all_tokens"),
    KnownCurve("nemo-rl", "train/global_valid_toks", m.TRAINED_TOKENS.name, inexact=_MICRO_BATCHES),
    KnownCurve("nemo-rl", "train/mean_prompt_length", "prompt_len_mean"),
    KnownCurve("nemo-rl, trl", "train/reward", "reward_mean", inexact=_MEAN_OF_STEPS),
    KnownCurve("trl", "completions/mean_length", "trainable_len_mean", inexact=_MEAN_OF_STEPS),
    KnownCurve("trl", "train/completions/mean_length", "trainable_len_mean", inexact=_MEAN_OF_STEPS),
    KnownCurve("roll", "scheduler/off_policy_ratio", "start_staleness_mean", 0),
    *(KnownCurve("", name, name) for name in DEFINITIONS),
)  # fmt: skip
"""The curves that are known by name; ours go by their own."""


_LONGEST = 500
"""Characters of a name that may have something around it."""


def _plain(name: str) -> str:
    """A name whose letters and digits only count: file names have an underscore for a slash."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


_BY_NAME = {_plain(known.name): known for known in KNOWN}


class CurveNames:
    """Says which curves are known: those that the user mapped, else those of trainers.

    Args:
        mapped: name of a series by the name of a curve in the files.

    Raises:
        UsageError: names that no series has; all of them at once.
    """

    def __init__(self, mapped: Mapping[str, str]) -> None:
        problems = [
            Problem(f"{shown(ours)} is no series of a log", _option(theirs, ours), _hint(ours))
            for theirs, ours in mapped.items()
            if ours not in DEFINITIONS and ours != STEP
        ]
        columns = [theirs for theirs, ours in mapped.items() if ours == STEP]
        if len(columns) > 1:
            problems.append(Problem(f"--map names {len(columns)} columns of steps", None, "name one"))
        if problems:
            raise UsageError(problems)
        self.step_column = next(iter(columns), None)
        self._mapped = {name: ours for name, ours in mapped.items() if ours != STEP}

    def known(self, name: str) -> KnownCurve | None:
        """What a curve is, by the name that a file gives it; None where that is unknown."""
        for form in _forms(name):
            if form in self._mapped:
                return KnownCurve("", name, self._mapped[form])
        return next((_BY_NAME[_plain(form)] for form in _forms(name) if _plain(form) in _BY_NAME), None)

    def unused(self, names: list[str], others: list[str]) -> list[Problem]:
        """Curves that the user mapped and no file has, given those that were read and those that weren't."""
        found = {form for name in names for form in _forms(name)}
        return [
            Problem(f"the curves have no {shown(name)}", _option(name, ours), nearest_hint(name, others, "curves"))
            for name, ours in self._mapped.items()
            if name not in found
        ]


def _option(theirs: str, ours: str) -> str:
    return f"--map {shortened(theirs)}={shortened(ours)}"


def _hint(ours: str) -> str:
    return nearest_hint(ours, (*DEFINITIONS, STEP), "series")


def _forms(name: str) -> Iterator[str]:
    """A name as it is and without what exports put around it: `RUN - METRIC`, `RUN-METRIC_step`, `run-RUN-tag-TAG`."""
    yield name
    if len(name) > _LONGEST:
        return
    yield name.rpartition(" - ")[2]
    bare = name.removesuffix("_step")
    for place, letter in enumerate(bare):
        if letter == "-":
            yield bare[place + 1 :]
