"""What trainers do by default, as a config says it, and how they call what it sets.

Read from their sources in the summer of 2026. Only XTuner's rules can all be spelled; of the others, the limit on age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint

NO_LIMIT = 1_000_000
"""max_staleness of a trainer that expires nothing: no run has as many weight syncs."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer with its defaults.

    Attributes:
        title: its name.
        about: what a person should know about its rules.
        values: its defaults where they differ from those of a config, as nested tables.
        options: what it calls a key, by dotted key as in `commented_toml`.
    """

    title: str
    about: str
    values: Mapping[str, Any]
    options: Mapping[str, str]

    @property
    def remarks(self) -> dict[str, str]:
        """The options, as remarks on keys."""
        return {key: f"{self.title}: {option}." for key, option in self.options.items()}


def trainer_named(name: str) -> Trainer:
    """The trainer of a name in `TRAINERS`.

    Raises:
        UsageError: there is none; names the nearest one.
    """
    if name not in TRAINERS:
        raise UsageError(Problem(f"there is no trainer {name!r:.80}", None, nearest_hint(name, TRAINERS, "trainers")))
    return TRAINERS[name]


def _expiring(max_staleness: int, replay_policy: str = "fifo") -> dict[str, Any]:
    """Side by side, nothing begun anew at a sync, groups that are too old are dropped whole."""
    return {
        "mode": "disaggregated",
        "buffer": {"replay_policy": replay_policy},
        "policy": {"max_staleness": max_staleness, "enable_partial_rollout": True},
    }


_PRODUCER = "of its DisaggAsyncProduceStrategyConfig or AsyncProduceStrategyConfig"
_TRAINER = "of its RLDisaggregatedTrainerConfig"
_DROPPED = "A group that is too old is dropped whole; tokens are never masked for their age."
_KEEPS_ALL = "Nothing expires and no token is masked for its age, so max_staleness is out of reach here."
TRAINERS: dict[str, Trainer] = {
    "xtuner": Trainer(
        "XTuner",
        "All of its rules can be set here, and every value is its default.",
        {"mode": "disaggregated", "timeline": {"poll_interval_us": 1_000_000}},
        {
            "mode": "RLDisaggregatedTrainerConfig or RLColocateTrainerConfig",
            "timeline.sync_weights_interval": f"sync_weights_interval {_TRAINER}",
            "timeline.train_batch_size": "train_batch_size of its trainer config",
            "timeline.steps": "total_train_steps of its trainer config",
            "timeline.poll_interval_us": "fixed at a second",
            "buffer.replay_policy": "AsyncReplayBufferConfig is staleness, SyncReplayBufferConfig is fifo",
            "policy.max_staleness": f"max_staleness {_PRODUCER}",
            "policy.max_token_staleness": f"max_token_staleness {_PRODUCER}, None for off",
            "policy.tail_batch_trigger_size": f"tail_batch_trigger_size {_PRODUCER}",
            "policy.over_sample_threshold": f"over_sample_threshold {_PRODUCER}",
            "policy.enable_partial_rollout": f"enable_partial_rollout {_PRODUCER}",
            "tasks.NAME.weight": "weight of the task's spec",
            "tasks.NAME.group_size": "prompt_repeat_k of its SamplerConfig",
        },
    ),
    "areal": Trainer(
        "AReaL",
        f"{_KEEPS_ALL} It bounds staleness where prompts begin (max_head_offpolicyness), which no replay decides anew.",
        _expiring(NO_LIMIT),
        {
            "timeline.train_batch_size": "consumer_batch_size",
            "policy.enable_partial_rollout": "always, aborted requests go on from their tokens",
        },
    ),
    "prime-rl": Trainer(
        "prime-rl",
        f"{_DROPPED} Its ages count from the version at the start of a group.",
        _expiring(8),
        {
            "policy.max_staleness": "max_off_policy_steps of [orchestrator]",
            "tasks.NAME.group_size": "group_size of the environment",
        },
    ),
    "slime": Trainer(
        "slime",
        f"{_KEEPS_ALL} Its partial rollouts may mask earlier tokens whatever their age"
        " (--mask-offpolicy-in-partial-rollout).",
        _expiring(NO_LIMIT),
        {
            "timeline.sync_weights_interval": "--update-weights-interval",
            "timeline.train_batch_size": "--rollout-batch-size",
            "policy.enable_partial_rollout": "--partial-rollout; without it, what is cut off is lost",
            "tasks.NAME.group_size": "--n-samples-per-prompt",
        },
    ),
    "miles": Trainer(
        "miles",
        "A group whose oldest token is too old is dropped whole, or begun anew with --async-unused-samples-handler"
        " retry; tokens are never masked for their age. By default nothing is too old, so max_staleness is out of"
        " reach here.",
        _expiring(NO_LIMIT),
        {
            "timeline.sync_weights_interval": "--update-weights-interval",
            "timeline.train_batch_size": "--rollout-batch-size",
            "policy.max_staleness": "--max-weight-staleness, in weight syncs too",
            "tasks.NAME.group_size": "--n-samples-per-prompt",
        },
    ),
    "verl": Trainer(
        "verl",
        f"{_DROPPED} Its ages count from the step in which a prompt was submitted, and a step is one weight sync of"
        " parameter_sync_step updates. The fully asynchronous trainer expires nothing:"
        f" max_staleness = {NO_LIMIT} there.",
        _expiring(7, "staleness"),
        {
            "policy.max_staleness": "trainer.v1.sampler.max_off_policy_threshold (8) - 1, with strategy drop",
            "tasks.NAME.group_size": "actor_rollout_ref.rollout.n",
        },
    ),
    "nemo-rl": Trainer(
        "NeMo-RL",
        f"{_DROPPED} Its ages count from the version at the start of a group. The single controller calls its limit"
        " max_staleness_versions or max_lookahead_versions.",
        _expiring(1),
        {
            "timeline.train_batch_size": "grpo.num_prompts_per_step",
            "policy.max_staleness": "grpo.async_grpo.max_trajectory_age_steps",
            "tasks.NAME.group_size": "grpo.num_generations_per_prompt",
        },
    ),
    "skyrl": Trainer(
        "SkyRL",
        f"{_KEEPS_ALL} It bounds staleness where prompts begin (trainer.fully_async.max_staleness_steps), which no"
        " replay decides anew; what is older all the same is only counted.",
        _expiring(NO_LIMIT),
        {
            "timeline.train_batch_size": "trainer.policy_mini_batch_size, of the fully asynchronous trainer",
            "policy.enable_partial_rollout": "always, requests pause at a sync and go on",
            "tasks.NAME.group_size": "generator.n_samples_per_prompt",
        },
    ),
    "roll": Trainer(
        "ROLL",
        f"{_DROPPED} Its ages count from the step in which a prompt began, and no prompt begins that would be too old.",
        _expiring(0),
        {
            "timeline.train_batch_size": "rollout_batch_size",
            "policy.max_staleness": "async_generation_ratio, rounded up; 0, its default, is synchronous",
            "policy.enable_partial_rollout": "always, aborted requests go on from their tokens",
            "tasks.NAME.group_size": "num_return_sequences_in_group",
        },
    ),
    "tinker": Trainer(
        "tinker-cookbook",
        f"{_DROPPED} Its prompt is drawn again. A group keeps the weights that it began with.",
        {"mode": "disaggregated", "buffer": {"replay_policy": "fifo"}, "policy": {"enable_partial_rollout": True}},
        {
            "timeline.train_batch_size": "groups_per_batch of AsyncConfig",
            "policy.max_staleness": "max_steps_off_policy of AsyncConfig, which has no default: fill it in",
        },
    ),
    "trl": Trainer(
        "TRL",
        "AsyncGRPO drops single responses that are too old; here the whole group goes. Its ages count from the version"
        " at the start of a group, and tokens are never masked for their age.",
        _expiring(4),
        {
            "timeline.sync_weights_interval": "weight_sync_steps",
            "policy.max_staleness": "max_staleness, in weight syncs too",
            "tasks.NAME.group_size": "num_generations",
        },
    ),
}
"""Trainers by name, as `tokenaudit help import` calls them."""
