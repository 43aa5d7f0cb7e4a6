"""How much each setting binds: the same run with one setting loosened, and nothing else changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tokenaudit.config.limits import Looser, Setting, looser_values, setting_of, setting_text
from tokenaudit.config.model import Config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import Problem, TokenauditError, UsageError
from tokenaudit.explain.losses import Losses, Place
from tokenaudit.lifecycle.events import GroupPut
from tokenaudit.replay.cost import HOUR_US, held_gpus
from tokenaudit.replay.events import RunEvent
from tokenaudit.replay.result import TRAIN_STEP, Result
from tokenaudit.replay.session import LoadedLog, settings_for
from tokenaudit.simulate.session import simulate_loaded, workload_of_log

MOST_RESPONSES = 1_000_000
"""Responses that are put in all trials together: some ten seconds of simulation."""
MOST_TRIALS = 24
"""Trials that are made at most."""
_MOST_REASONS = 3
_MOST_GROWTH = 8
"""How many times the responses of the base run a trial may put before it is given up."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to, in tokens.

    Attributes:
        produced: generated.
        dropped: lost as stale.
        restarted: held, and not continued from.
        trained: in the loss.
        staleness_p95: 95th percentile of the staleness of the trained tokens, in train steps; None without any.
        wall_time_us: simulated time; None for a replay.
        counterfactual: tokens that rest on the rules for puts that went another way in the log.
        counterfactual_of: produced and avoided tokens, of which they are a share.
    """

    produced: int
    dropped: int
    restarted: int
    trained: int
    staleness_p95: int | None
    wall_time_us: int | None
    counterfactual: int
    counterfactual_of: int

    @property
    def lost(self) -> int:
        """Tokens that a setting may be behind."""
        return self.dropped + self.restarted

    @property
    def lost_share(self) -> Fraction:
        """Those as a share of the produced ones."""
        return Fraction(self.lost, max(1, self.produced))


@dataclass(frozen=True, slots=True)
class Trial:
    """A run with one setting loosened.

    Attributes:
        setting: the setting as it is in the base run.
        looser: how far it is loosened.
        value: to what.
        figures: what the run came to; None where it came to no end.
        problem: why it came to none.
    """

    setting: Setting
    looser: Looser
    value: int | bool | None
    figures: Figures | None = None
    problem: str = ""

    @property
    def override(self) -> str:
        """The change as `-s` takes it."""
        return f"{self.setting.key}={setting_text(self.value)}"


@dataclass(frozen=True, slots=True)
class Trials:
    """What was tried.

    Attributes:
        is_simulated: whether the closed loop was simulated; else the log was replayed.
        not_simulated: why it wasn't simulated.
        base: the run without a change, simulated or replayed in the same way.
        trials: the changes, those of the most costly setting first.
        possible: how many there are; more than `trials` where there wasn't time for all.
        gpus: GPUs that the run holds as long as it takes; None where the config doesn't say.
    """

    is_simulated: bool
    not_simulated: str
    base: Figures
    trials: tuple[Trial, ...]
    possible: int
    gpus: int | None = None

    def gpu_hours_saved(self, figures: Figures) -> Fraction | None:
        """GPU-hours by which a simulated run ends earlier than the base run; None where that isn't known."""
        if self.gpus is None or self.base.wall_time_us is None or figures.wall_time_us is None:
            return None
        return Fraction(self.gpus * (self.base.wall_time_us - figures.wall_time_us), HOUR_US)

    @property
    def best(self) -> Trial | None:
        """The change to try next: of those by one step, else of all, the one that saves the largest share of tokens."""
        base = self.base.lost_share
        for wanted in ((Looser.STEP,), tuple(Looser)):
            finished = [trial for trial in self.trials if trial.looser in wanted and trial.figures is not None]
            best = min(finished, key=_lost_share, default=None)
            if best is not None and _lost_share(best) < base:
                return best
        return None


def _lost_share(trial: Trial) -> Fraction:
    assert trial.figures is not None
    return trial.figures.lost_share


def tried(loaded: LoadedLog, replayed: Result, losses: Losses) -> Trials:
    """Loosen one setting after the other.

    The closed loop is simulated where the log says how long its tokens took and the config how long training takes;
    else the log is replayed, which follows puts that the change might have spared. A setting that lost nothing in the
    base run isn't tried.

    Args:
        loaded: the log.
        replayed: its replay under its own config.
        losses: what that replay lost.
    """
    not_simulated, run, base = "", _replayer(loaded), replayed
    try:
        simulator = _Simulator(loaded)
    except TokenauditError as error:
        not_simulated = "; ".join(problem.what for problem in error.problems[:_MOST_REASONS])
    else:
        run, base, losses = simulator.run, simulator.base, simulator.losses
    last_step = max((row[TRAIN_STEP] for row in base.steps), default=0)
    wanted = list(_wanted(losses, loaded.settings.config, last_step))
    samples = max(1, base.totals[m.PRODUCED_SAMPLES.name])
    chosen = wanted[: max(2, min(MOST_TRIALS, MOST_RESPONSES // samples))]
    on_progress = loaded.request.stage("loosening one setting at a time", len(chosen)) or _ignore
    trials: list[Trial] = []
    for trial in chosen:
        on_progress(len(trials))
        trials.append(_made(trial, run))
    gpus = held_gpus(loaded.settings.config)
    return Trials(not not_simulated, not_simulated, figures_of(base), tuple(trials), len(wanted), gpus)


def figures_of(result: Result) -> Figures:
    """What a run came to."""
    totals, coverage = result.totals, result.coverage
    return Figures(
        totals[m.PRODUCED_TOKENS.name],
        totals[m.DROPPED_TOKENS.name],
        totals[m.RESTARTED_TOKENS.name],
        totals[m.TRAINED_TOKENS.name],
        totals[m.TOKEN_STALENESS_P95.name],
        totals.get(m.WALL_TIME_US.name),
        coverage.counterfactual_tokens,
        coverage.counterfactual_of_tokens,
    )


def _wanted(losses: Losses, config: Config, last_step: int) -> Iterator[Trial]:
    """The trials that may save something, those of the most costly setting first."""
    settings = list(losses.by_setting())
    waiting = {cause.key.task for cause in losses.causes() if cause.key.place is Place.WAITING}
    # A group that waits for others to expire goes on ageing: what it loses meanwhile rests on the trigger too.
    settings += [setting_of(config, task, "tail_batch_trigger_size") for task in sorted(waiting)]
    for setting in dict.fromkeys(settings):
        for looser, value in looser_values(setting, last_step):
            yield Trial(setting, looser, value)


def _made(trial: Trial, run: Callable[[str], Result]) -> Trial:
    try:
        result = run(trial.override)
    except _TooLongError:
        return replace(trial, problem=f"given up: it generates more than {_MOST_GROWTH} times as much")
    stuck = result.simulation.stuck if result.simulation else ()
    if stuck:
        return replace(trial, problem=f"the run can't go on: {stuck[0].message}")
    return replace(trial, figures=figures_of(result))


def _replayer(loaded: LoadedLog) -> Callable[[str], Result]:
    given = loaded.request.overrides
    return lambda override: loaded.replay(overrides=(*given, override), on_progress=None)


class _TooLongError(Exception):
    """Ends a trial from the inside; never leaves this module."""


class _Simulator:
    """Simulates the workload behind a log.

    Attributes:
        base: the result under the config as it is.
        losses: what it lost.

    Raises:
        TokenauditError: the log or the config doesn't say enough, or the run can't go on.
    """

    def __init__(self, loaded: LoadedLog) -> None:
        self._loaded = loaded
        self._workload = workload_of_log(loaded.log, loaded.digest, loaded.request)
        self.losses = Losses(loaded.settings.config)
        self.base = simulate_loaded(self._workload, loaded.settings, loaded.request, observe=self.losses.observe)
        if self.base.simulation is not None and self.base.simulation.stuck:
            what = f"as configured, the simulated run can't go on: {self.base.simulation.stuck[0].message}"
            raise UsageError(Problem(what))

    def run(self, override: str) -> Result:
        """The result with one value changed."""
        loaded = self._loaded
        request = replace(loaded.request, overrides=(*loaded.request.overrides, override), on_progress=None)
        most = _MOST_GROWTH * self.base.totals[m.PRODUCED_SAMPLES.name]
        samples = 0

        def bounded(event: RunEvent) -> None:
            nonlocal samples
            if isinstance(event, GroupPut):
                samples += event.responses.measures.samples
                if samples > most:
                    raise _TooLongError

        return simulate_loaded(self._workload, settings_for(loaded.log, request), request, observe=bounded)


def _ignore(_: int) -> None:
    """Nobody wants to know."""
