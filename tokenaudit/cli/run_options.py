"""How `diff` and `gate` run a log: replay it, or simulate the workload behind it."""

from __future__ import annotations

from dataclasses import dataclass

from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.log.cache import DigestCache
from tokenaudit.replay.request import PromptOrder, TimelineKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says about a run, besides its log and its config.

    Attributes:
        timeline: where refreshes and takes come from; None: the log, if it has them.
        quarantine: leave out groups with structural faults.
        isolated: look for no config file.
        simulate: simulate the workload behind the log instead of replaying the log.
        prompt_order: the order of the prompts of a workload that is derived from the log.
        token_time_us: time per token of all its responses, microseconds; None: told from the log.
        cache: where digests of replayed logs are kept.
    """

    timeline: TimelineKind | None = None
    quarantine: bool = False
    isolated: bool = False
    simulate: bool = False
    prompt_order: PromptOrder | None = None
    token_time_us: int | None = None
    cache: DigestCache | None = None

    def need_log(self) -> dict[str, object]:
        """The options that mean nothing for a saved result, with their values."""
        return {
            "--timeline": self.timeline,
            "--quarantine": self.quarantine,
            "--isolated": self.isolated,
            "--simulate": self.simulate,
            "--prompt-order": self.prompt_order,
            "--token-time-us": self.token_time_us,
        }

    def check(self) -> None:
        """Refuse options of replays for a simulation, and the other way round.

        Raises:
            UsageError: there is one.
        """
        if self.simulate:
            if self.timeline is not None:
                raise UsageError(Problem("--timeline is for replays", None, "leave it out, or leave out --simulate"))
            return
        simulating = {"--prompt-order": self.prompt_order, "--token-time-us": self.token_time_us}
        given = [name for name, value in simulating.items() if value is not None]
        if given:
            raise UsageError(
                Problem(f"{name} is for simulations", None, "leave it out, or add --simulate") for name in given
            )
