"""Valid configs that cost more than they seem to: what is set and what it does in practice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenaudit.config.limits import deciding_key
from tokenaudit.config.model import Config, Policy, TaskPolicy
from tokenaudit.config.toml import dotted
from tokenaudit.contracts.errors import Notice
from tokenaudit.lifecycle.staleness import stale_threshold, token_stale_threshold


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A notice about a config, with the keys and tasks it is about.

    Attributes:
        code: stable name, such as "tail-batch-zero".
        message: what is set, with its values and the tasks it holds for.
        cost: one sentence on what it costs: data lost, stale tokens trained, or GPU time.
        keys: the dotted keys that set it, in the order of the message.
        tasks: the tasks it holds for; empty where it holds for the config as a whole.
    """

    code: str
    message: str
    cost: str
    keys: tuple[str, ...]
    tasks: tuple[str, ...] = ()

    @property
    def notice(self) -> Notice:
        """The notice alone, as results hold it."""
        return Notice(self.code, self.message, self.cost)

    @property
    def where(self) -> str:
        """The keys as one text."""
        return ", ".join(self.keys)


def config_warnings(
    config: Config, recorded_sync_weights_interval: int | None = None, task_names: Sequence[str] = ()
) -> list[ConfigWarning]:
    """What to know about a config before trusting it, in a fixed order.

    Tasks with the same values share a warning.

    Args:
        config: a valid config.
        recorded_sync_weights_interval: what the log was recorded with; None if unknown.
        task_names: tasks seen in the log. Without any, [policy] is judged too, for the tasks yet to be seen.
    """
    names: list[str | None] = [*dict.fromkeys((*config.tasks, *task_names))]
    if not task_names:
        names.insert(0, None)
    warnings = [warning for check in _CHECKS for warning in _check_tasks(check, config, names)]
    if recorded_sync_weights_interval is not None:
        warnings += _sync_interval_differs(config, recorded_sync_weights_interval)
    return warnings


@dataclass(frozen=True, slots=True)
class _Check:
    """One reason to warn about the policy of a task.

    Attributes:
        code: as in `ConfigWarning`.
        keys: the policy keys that the message names.
        judge: (message, cost) for a policy and sync_weights_interval; None where there is nothing to say.
    """

    code: str
    keys: tuple[str, ...]
    judge: Callable[[TaskPolicy, int], tuple[str, str] | None]


def _check_tasks(check: _Check, config: Config, names: Sequence[str | None]) -> list[ConfigWarning]:
    """Warnings of one check; tasks with the same warning share one. None stands for [policy]."""
    sharing_tasks: dict[tuple[str, str], list[str | None]] = {}
    for name in names:
        # [policy] is what a task without a section gets.
        policy = config.task_policy(name) if name is not None else _default_policy(config)
        verdict = check.judge(policy, config.timeline.sync_weights_interval)
        if verdict is not None:
            sharing_tasks.setdefault(verdict, []).append(name)
    return [
        ConfigWarning(
            check.code,
            _for_tasks(message, sharing),
            cost,
            tuple(dict.fromkeys(deciding_key(config, name, key) for name in sharing for key in check.keys)),
            tuple(name for name in sharing if name is not None),
        )
        for (message, cost), sharing in sharing_tasks.items()
    ]


def _default_policy(config: Config) -> TaskPolicy:
    return TaskPolicy(**{name: getattr(config.policy, name) for name in Policy.model_fields})


def _for_tasks(message: str, names: Sequence[str | None]) -> str:
    if list(names) == [None]:
        return message
    tasks = [dotted([name]) for name in names if name is not None]
    parts = ["[policy]"] if None in names else []
    if tasks:
        parts.append(f"task{'s' if len(tasks) > 1 else ''} {', '.join(tasks)}")
    return f"{' and '.join(parts)}: {message}"


def _token_rule_without_effect(policy: TaskPolicy, interval: int) -> tuple[str, str] | None:
    tokens, whole = policy.max_token_staleness, policy.max_staleness
    tokens_from, whole_from = token_stale_threshold(tokens, interval), stale_threshold(whole, interval)
    if tokens_from is None or tokens_from < whole_from:
        return None
    return (
        f"max_token_staleness {tokens} is not below max_staleness {whole}",
        f"no token is ever masked before its response expires: masking begins at {_steps(tokens_from)}, the"
        f" response is gone at {_steps(whole_from)}, and all tokens up to {_steps(whole_from - 1)} old are"
        " trained",
    )


def _token_rule_discards_groups(policy: TaskPolicy, interval: int) -> tuple[str, str] | None:
    tokens_from = token_stale_threshold(policy.max_token_staleness, interval)
    if tokens_from is None or policy.tail_batch_trigger_size != -1:
        return None
    return (
        f"max_token_staleness {policy.max_token_staleness} with tail_batch_trigger_size -1",
        f"a response whose trainable tokens are all {_steps(tokens_from)} old or older takes its whole group"
        " with it, fresh members included, and none of it is generated again",
    )


def _tail_batch_zero(policy: TaskPolicy, interval: int) -> tuple[str, str] | None:
    if policy.tail_batch_trigger_size != 0:
        return None
    return (
        "tail_batch_trigger_size 0 generates expired groups again at once",
        "XTuner changed the meaning of 0 from discard to retry at once: a config from before now spends"
        " GPU time on every expired group again; -1 discards",
    )


def _partial_rollout_restarts(policy: TaskPolicy, interval: int) -> tuple[str, str] | None:
    if not policy.enable_partial_rollout or token_stale_threshold(policy.max_token_staleness, interval) != 1:
        return None
    is_discarded = policy.tail_batch_trigger_size == -1
    fate = "is always discarded with its group" if is_discarded else "always restarts from no tokens"
    return (
        "enable_partial_rollout with max_token_staleness 0 and sync_weights_interval 1",
        f"an aborted response is entirely stale at the next step and {fate}, so partial rollout saves no GPU time",
    )


def _staleness_without_partial_rollout(policy: TaskPolicy, interval: int) -> tuple[str, str] | None:
    if policy.enable_partial_rollout or policy.max_staleness == 0:
        return None
    limit = stale_threshold(policy.max_staleness, interval)
    return (
        f"max_staleness {policy.max_staleness} without enable_partial_rollout",
        "an aborted response restarts from no tokens, so every abort throws away what was being generated;"
        f" only finished responses that wait use the {_steps(limit)} after which one is too old",
    )


def _sync_interval_differs(config: Config, recorded: int) -> list[ConfigWarning]:
    interval = config.timeline.sync_weights_interval
    if interval == recorded or config.timeline.resync:
        return []
    if interval > recorded:
        cost = (
            f"tokens look up to {_steps(interval - 1)} fresher than with weights synced every {interval}"
            " train steps, so too few expire; timeline.resync = true simulates that"
        )
    else:
        cost = (
            f"tokens look up to {_steps(recorded - 1)} staler than with weights synced every"
            f" {_steps(interval)}, so too many expire"
        )
    message = f"sync_weights_interval is {interval}, the log was recorded with {recorded}"
    return [ConfigWarning("sync-interval-differs", message, cost, ("timeline.sync_weights_interval",))]


def _steps(count: int) -> str:
    return f"{count} train step" if count == 1 else f"{count} train steps"


_CHECKS = (
    _Check("token-rule-without-effect", ("max_token_staleness", "max_staleness"), _token_rule_without_effect),
    _Check(
        "token-rule-discards-groups",
        ("max_token_staleness", "tail_batch_trigger_size"),
        _token_rule_discards_groups,
    ),
    _Check("tail-batch-zero", ("tail_batch_trigger_size",), _tail_batch_zero),
    _Check(
        "partial-rollout-restarts",
        ("enable_partial_rollout", "max_token_staleness", "sync_weights_interval"),
        _partial_rollout_restarts,
    ),
    _Check(
        "staleness-without-partial-rollout",
        ("max_staleness", "enable_partial_rollout"),
        _staleness_without_partial_rollout,
    ),
)

WARNING_CODES = tuple(check.code for check in _CHECKS)
"""Codes of what can be said of a config without a log."""
