"""For every audit rule: a smallest log that triggers it, one that just does not, and what the finding says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders import put, refresh, sample, sync, take, write_log
from tokenaudit.audit.checks import RULES
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.session import audit_log
from tokenaudit.contracts.schema import RUN_FIELDS

Row = dict[str, Any]

LIMIT_3 = ("policy.max_staleness=2",)
TOKEN_0 = ("policy.max_staleness=3", "policy.max_token_staleness=0")
ALONE = (*LIMIT_3, "timeline.train_batch_size=1")
BY_STALENESS = "; 100 % of what was dropped is by policy.max_staleness = 2"
FIFO = ("policy.max_staleness=20", "buffer.replay_policy=fifo")
RETRY = ("policy.max_staleness=2", "policy.tail_batch_trigger_size=0")


@dataclass(frozen=True)
class Case:
    """Rows that a rule finds something in, rows in which it just doesn't, and what it says."""

    found: list[Row]
    clean: list[Row]
    message: str
    config: tuple[str, ...] = ()
    severity: str = "error"
    subject: str = ""
    clean_config: tuple[str, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def audited(path: Path, rows: list[Row], config: tuple[str, ...] = (), **options: Any) -> AuditReport:
    written = write_log(path, rows, **options)
    return audit_log([written], overrides=config, isolated=True)


def findings_of(report: AuditReport, name: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.name == name]


def one(tokens: int = 3, **others: Any) -> list[Row]:
    """A single put of one response."""
    return [put(1, 3, 12, tokens=tokens, **others)]


def pair(first: Row, second: Row) -> list[Row]:
    return [first, second | {"event_id": 2}]


def members(event_id: int, group_id: int, *rollouts: Row, **common: Any) -> list[Row]:
    """A put of several responses."""
    return [put(event_id, group_id, 10 * group_id + n, **(common | own)) for n, own in enumerate(rollouts)]


def lived(versions: list[int], put_step: int, take_step: int, **others: Any) -> list[Row]:
    """A response that is put and taken, with no refresh in between."""
    row = put(1, 3, 12, train_step=put_step, tokens=len(versions), response_model_steps=versions, **others)
    return [row, *taking(2, take_step, 12)]


def cut_off(*groups: int) -> list[Row]:
    """Groups of one response that are put as aborted."""
    return [put(group, group, status="aborted") for group in groups]


def taking(event_id: int, train_step: int, *rollouts: int, **others: Any) -> list[Row]:
    """A take that names what it took."""
    return [take(event_id, train_step, rollout_id=rollout, **others) for rollout in rollouts]


def many(count: int, **others: Any) -> list[Row]:
    return [put(n, n, **others) for n in range(count)]


def repeatedly(expiries: int) -> list[Row]:
    """Group 30 is put again and again and expires each time."""
    rows: list[Row] = []
    for n in range(expiries):
        step = 4 + 3 * n
        rows.append(put(3 * n, 30, train_step=step - 3, model_step=step - 4))
        rows.append(refresh(3 * n + 1, step))
        rows.append(sample(3 * n + 2, 30, "expired"))
    return rows


def lengths(taken: int, expired: int) -> list[Row]:
    """Ten groups that are taken, and ten longer ones that expire."""
    rows = [put(n, n, train_step=1, model_step=0, tokens=taken) for n in range(10)]
    rows.append(take(20, 1, 10))
    rows += [put(30 + n, 100 + n, train_step=2, model_step=0, tokens=expired) for n in range(10)]
    return [*rows, refresh(60, 9), take(61, 9, 0)]


def runs(*parts: tuple[int, int, int]) -> list[dict[str, int]]:
    """Version runs: version, tokens, trainable tokens."""
    return [dict(zip(RUN_FIELDS, part, strict=True)) for part in parts]


def ended(end_id: int, count: int, first: int = 0, **others: Any) -> list[Row]:
    """Responses that end in one id and say stop."""
    common = {"tokens": 3, "finish_reason": "stop"} | others
    return [put(n, n, response_ids=[n, 9, end_id], **common) for n in range(first, first + count)]


def went_on(before: int, after: int, *ids: list[int], **others: Any) -> list[Row]:
    """A response that is aborted with some tokens, and put again with more."""
    kept, now = ({"response_ids": own} for own in ids) if ids else ({}, {})
    rows = [put(90, 90, tokens=before, status="aborted", **kept)]
    return [*rows, put(91, 90, tokens=after, **({"prior_len": before} | now | others))]


def alike(tokens: int) -> Row:
    """What members hold that answer with the same ids and log-probabilities."""
    return {"tokens": tokens, "response_ids": list(range(tokens)), "logprobs": [-1.0 - n / 8 for n in range(tokens)]}


def continued(versions: list[int]) -> list[Row]:
    """Ten responses that a sync cuts off and that go on from their two tokens, with these versions in the end."""
    rows = [put(n, n, tokens=2, status="aborted", response_model_steps=[0, 0]) for n in range(10)]
    again = {"train_step": 2, "model_step": 1, "prior_len": 2, "response_model_steps": versions}
    return rows + [put(10 + n, n, tokens=4, **again) for n in range(10)]


def scored(rewards: list[list[float]], filtered: tuple[int, ...] = ()) -> list[Row]:
    """Groups with these rewards, four per step; of every `len(rewards) / 4` of them, some are filtered."""
    rows: list[Row] = []
    for n, own in enumerate(rewards):
        status = "filtered" if n % (len(rewards) // 4) in filtered else "completed"
        of_step = {"train_step": 1 + n // 4, "model_step": n // 4, "status": status}
        rows += members(n, n, *[{"reward": reward} for reward in own], **of_step)
    return rows


def taken_group(*rollouts: Row) -> list[Row]:
    """A group and a take that names its responses."""
    return [*members(1, 9, *rollouts), *[take(2, 1, rollout_id=90 + n) for n in range(len(rollouts))]]


def both(count: int, delta: Callable[[int], float], tokens: int = 600, version: int = 0, rows: int = 8) -> list[Row]:
    """Responses with log-probabilities of both sides, `rows` of them a step, under the weights `version` steps old.

    Those of the trainer lie `delta` of the response above and below the engine's, in turns.
    """
    engine = [-0.3 - place * 7919 % 101 / 100 for place in range(tokens)]
    made: list[Row] = []
    for n in range(count):
        step = 2 + n // rows
        trainer = [value + delta(n) * (-1) ** place for place, value in enumerate(engine)]
        values = {"train_step": step, "model_step": step - 1 - version, "tokens": tokens}
        made.append(put(n, n, **values, logprobs=engine, train_logprobs=trainer))
    return made


def shifted(rows: list[Row]) -> list[Row]:
    """The rows, the trainer's values a token early."""
    return [row | {"train_logprobs": [*row["train_logprobs"][1:], -1.0]} for row in rows]


def raised(rows: list[Row], by: float) -> list[Row]:
    """The rows, all values of the trainer higher."""
    return [row | {"train_logprobs": [value + by for value in row["train_logprobs"]]} for row in rows]


VALID = one()

CASES: dict[str, Case] = {
    # ---- schema
    "nothing-audited": Case([refresh(1, 1)], VALID, "1 row and no put among them"),
    "unknown-event": Case(
        [put(1, 3, 12) | {"event": "drop"}], VALID, "unknown event 'drop'", subject="step 1, event 1"
    ),
    "unknown-status": Case(one(status="done"), one(status="failed"), "unknown status 'done'"),
    "event-order": Case([put(2, 1), put(1, 2)], [put(1, 1), put(2, 2)], "event_id 1 comes after 2"),
    "event-mixed": Case(
        [put(1, 1), put(1, 2)], [put(1, 1), put(1, 1, 2)], "group_id differs from the row before, in event 1"
    ),
    "value-missing": Case(one(train_step=None), one(reward=None), "train_step is null"),
    "value-out-of-range": Case(one(train_step=-1), one(train_step=0), "train_step is -1"),
    "length-missing": Case(
        [put(1, 1, tokens=None), put(2, 2)], [put(1, 1, tokens=None, response_ids=[5]), put(2, 2)],
        "nothing gives the length of the response",
    ),
    "prior-len-too-long": Case(one(prior_len=4), one(prior_len=3), "prior_len is 4 for 3 tokens"),
    "logprob-length-mismatch": Case(
        one(logprobs=[-0.1, -0.2]), one(logprobs=[-0.1, -0.2, -0.3]), "2 logprobs for 3 tokens"
    ),
    "logprob-placeholder": Case(
        one(6, logprobs=[-0.4, -1.2, -0.1, 0.0, 0.0, 0.0]), one(6, logprobs=[-0.4, 0.0, 0.0, -0.1, 0.0, 0.0]),
        "3 trainable tokens in runs of 3 or more have logprobs of exactly 0.0", severity="warning",
    ),
    "logprob-not-finite": Case(
        one(logprobs=[-0.3, None, float("nan")]), one(logprobs=[-0.3, 0.0, -900.0]),
        "logprobs holds 1 null, 1 nan; 2 of these tokens trainable",
    ),
    "side-length-mismatch": Case(
        one(5, prompt_len=4, experts_len=13), one(5, prompt_len=4, experts_len=8),
        "experts_len 13, expected 8 (prompt 4 + response - 1); 13 = 5 + 8: an earlier round may stand in front",
    ),
    "response-shrank": Case(
        pair(put(1, 3, 31, tokens=12, status="aborted"), put(2, 3, 31, tokens=8, prior_len=8)),
        pair(put(1, 3, 31, tokens=12, status="aborted"), put(2, 3, 31, tokens=8, prior_len=0)),
        "8 tokens, all from earlier puts, but put 1 had 12",
    ),
    "length-pile-up": Case(
        [*many(20, tokens=8, finish_reason="stop"), put(90, 90, tokens=3, finish_reason="stop")],
        [*many(20, tokens=8, finish_reason="stop"), put(90, 90, tokens=8, finish_reason="length")],
        "95 % of responses (20 of 21) have exactly 8 tokens and none says that it was cut off", severity="warning",
    ),
    "logprob-positive": Case(
        one(logprobs=[-0.1, 0.2, 3.0]), one(logprobs=[-0.1, 0.009, 0.0]), "2 tokens with logprobs above 0"
    ),
    "structure-implausible": Case(
        [put(event_id, 3, event_id) for event_id in range(1, 5)], [put(1, 3, rollout_id) for rollout_id in range(1, 5)],
        "each of 4 puts has one row, though 1 of 1 group have several rollouts. "
        "The rows of one group's put are one event: give them the same event_id.",
    ),
    # ---- versions
    "version-missing": Case(
        one(model_step=None), one(model_step=0),
        "3 of 3 tokens carry no version and the put has no model_step (the log has versions for 0.0 % of its tokens)",
    ),
    "version-length-mismatch": Case(
        one(response_model_steps=[0] * 4), one(response_model_steps=[0] * 3), "4 versions for 3 tokens"
    ),
    "version-placeholder": Case(
        one(5, train_step=8, response_model_steps=[6, 6, -1, -1, 7], response_mask=[1, 1, 1, 0, 1]),
        one(5, train_step=8, response_model_steps=[6, 6, 0, 0, 7], response_mask=[1, 1, 1, 0, 1]),
        "2 tokens with a version below 0 (down to -1), 1 of them trainable; counted, it makes the response as old "
        "as the run",
    ),
    "version-from-future": Case(
        one(2, train_step=5, response_model_steps=[4, 5]), one(2, train_step=5, response_model_steps=[4, 4]),
        "version 5 at step 5: the newest possible is 4",
    ),
    "version-regression": Case(
        [put(900, 1, train_step=41, model_step=40), put(901, 2, train_step=41, model_step=0)],
        [put(900, 1, train_step=41, model_step=40), put(901, 2, train_step=41, model_step=33)],
        "model_step fell from 40 to 0",
    ),
    "version-unit-suspect": Case(
        [put(1, 1, train_step=21, tokens=2, response_model_steps=[5120] * 2),
         put(2, 2, train_step=21, tokens=2, response_model_steps=[4608] * 2)],
        [put(1, 1, train_step=21, tokens=2, response_model_steps=[5120] * 2),
         put(2, 2, train_step=21, tokens=2, response_model_steps=[4609] * 2)],
        "all versions are multiples of 512 and above the last step (21): they look like counts of samples or tokens, "
        "512 a step",
    ),
    "version-stamped-late": Case(
        one(4, train_step=5, start_model_step=3, model_step=4, response_model_steps=[4] * 4),
        one(4, train_step=5, start_model_step=3, model_step=4, response_model_steps=[3, 3, 4, 4]),
        "4 tokens carry version 4, but the round began under 3", severity="warning",
    ),
    "version-restamped": Case(
        pair(put(1, 1, tokens=2, train_step=4, status="aborted", response_model_steps=[3, 3]),
             put(2, 1, tokens=3, train_step=5, prior_len=2, model_step=4, response_model_steps=[4, 4, 4])),
        pair(put(1, 1, tokens=2, train_step=4, status="aborted", response_model_steps=[3, 3]),
             put(2, 1, tokens=3, train_step=5, prior_len=2, model_step=4, response_model_steps=[3, 3, 4])),
        "version 3 at put 1, 4 now, though the tokens are the same",
        subject="task default, group 1, rollout 1, put 2, tokens 0 to 1",
    ),
    "sync-interval-mismatch": Case(
        [put(n, n, train_step=9 + n, model_step=4 * n) for n in (1, 2, 3)],
        [put(n, n, train_step=9 + n, model_step=2 * n) for n in (1, 2, 3)],
        "the config says sync_weights_interval = 2, but recorded versions only change by 4 (4, 8, 12, …)",
        config=("timeline.sync_weights_interval=2",),
    ),
    "version-runs-damaged": Case(
        one(model_step=None, response_version_runs=runs((0, 2, 2))),
        one(model_step=None, response_version_runs=runs((0, 2, 2), (0, 1, 0))),
        "response_version_runs: its runs have 2 tokens, the response 3",
    ),
    "version-not-synced": Case(
        [sync(1, 2, 2), put(2, 3, train_step=4, model_step=3)],
        [put(1, 3, train_step=4, model_step=3), sync(2, 2, 2), put(3, 4, train_step=4, model_step=2), sync(4, 4, 4)],
        "version 3, while the newest that a sync brought before is 2", severity="warning",
    ),
    "version-frozen": Case(
        [put(n, n, train_step=n) for n in range(1, 6)], [put(n, n, train_step=n) for n in range(1, 5)],
        "from put 2 on, the newest version stays 0 from step 1 to 5, though weights move every step; 4 responses",
        config=("timeline.sync_weights_interval=1",), subject="task default",
    ),
    "version-filled-in": Case(
        continued([1] * 4), continued([0, 0, 1, 1]),
        "from put 11 on, 10 responses continued over a sync end in a single version, the step of the put - 1; "
        "10 responses", subject="task default",
    ),
    # ---- rewards
    "rewards-without-spread": Case(
        scored([[0, 1]] * 12 + [[0, 0]] * 12), scored([[0, 1]] * 12 + [[0, 0]] * 8 + [[0, 1]] * 4),
        "from put 13 on, in 3 steps in a row, those of steps 4 to 6, none of 12 groups has a spread of rewards (all "
        "rewards are 0); of those before, 0 % had none; 24 responses", subject="task default",
    ),
    "rewards-of-other-rows": Case(
        scored([[0, 1], [1, 1], [0, 1], [0, 0]] * 4, filtered=(0, 2)),
        scored([[0, 1], [1, 1], [0, 1], [0, 0]] * 4, filtered=(1, 3)),
        "from put 1 on, 8 filtered groups with a spread of rewards and 8 kept without any: they are those of 1 group "
        "before; 32 responses",
    ),
    "filter-rejects-much": Case(
        scored([[0, 1], [1, 1], [0, 1], [0, 0], [1, 1]] * 4, filtered=(1, 3, 4)),
        scored([[0, 1], [1, 1], [0, 1], [0, 0], [0, 1]] * 4, filtered=(1, 3)),
        "from put 2 on, the filter rejects 60.0 % of the tokens of finished groups (96 of 160); 24 responses",
        severity="warning",
    ),
    "baseline-moved": Case(
        taken_group({"reward": 0.5}, {"reward": 0.25}, {"reward": -3.0, "response_mask": [0] * 4}),
        taken_group({"reward": 0.5}, {"reward": 0.25}, {"reward": 0.375, "response_mask": [0] * 4}),
        "at put 1, members that train nothing turn advantages in 1 group; the first, rollout 91: 0.25 - -0.75 = +1 "
        "with 1 such member (reward -3), -0.125 without; 1 response", severity="warning", config=LIMIT_3,
    ),
    # ---- probabilities
    "logprobs-copied": Case(
        both(20, lambda _: 0.0, version=1), both(20, lambda n: 0.01 * (n < 5), version=1),
        "from put 1 on, train_logprobs equal logprobs on 100.0 % of 12,000 tokens of staleness 1 or more: one column "
        "is a copy of the other, under whatever weights; 20 responses",
    ),
    "logprobs-shifted": Case(
        shifted(both(20, lambda _: 0.01)), both(20, lambda _: 0.01),
        "from put 1 on, train_logprobs are shifted by one token: they correlate 1.00 with the logprobs of the token "
        "behind, and -0.42 with their own; 20 responses",
    ),
    "engine-drifts": Case(
        both(40, lambda n: 0.02 + 0.08 * (n >= 24)), both(40, lambda n: 0.02 + 0.05 * (n >= 24)),
        "from put 25 on, the mean |difference| of log-probabilities of fresh tokens is 0.1, 5 times the 0.02 of "
        "before; the mean ratio of trainer to engine is 1.01: engine and trainer have other weights, or the values are "
        "of other tokens; 16 responses",
    ),
    "engine-rows-off": Case(
        both(40, lambda n: 0.02 + 0.18 * (n % 8 == 3)), both(40, lambda n: 0.02 + 0.18 * (n % 10 == 3)),
        "from put 4 on, fresh tokens of 12.5 % of the rows are at least 8 times farther off than the median (mean "
        "|difference| 0.2 against 0.02): one engine of several seems to have other weights; what they share: "
        "rollout_id modulo 8 is 3 (100 % of such rows are off), group_id modulo 8 is 3 (100 % of such rows are off); "
        "5 responses",
    ),
    "engine-ratio-off": Case(
        raised(both(20, lambda _: 0.02), 0.03), raised(both(20, lambda _: 0.02), 0.015),
        "from put 1 on, of 12,000 fresh tokens, the mean ratio of trainer to engine is 1.03: engine and trainer seem "
        "to have other weights, or the values are of other tokens (mean |difference| of log-probabilities 0.03); "
        "20 responses",
    ),
    "logprob-zero-by-place": Case(
        many(10, tokens=30, logprobs=[*[-0.5] * 29, 0.0]), many(10, tokens=30, logprobs=[0.0, *[-0.5] * 28, 0.0])[:4],
        "from put 1 on, log-probabilities are exactly 0 at the last token of completed responses (logprobs in 10 of "
        "10 places, and 0 % of the tokens elsewhere): an end token that was appended has no log-probability of the "
        "engine; 10 responses",
        severity="warning",
    ),
    "stand-in-rows": Case(
        many(5, tokens=1, response_ids=[7], logprobs=[0.0]),
        [*many(4, tokens=1, response_ids=[7], logprobs=[0.0]),
         put(8, 8, tokens=1, response_ids=[8], logprobs=[0.0]), put(9, 9, tokens=1, response_ids=[7], logprobs=[-0.1])],
        "from put 1 on, completed with the one token 7 and a log-probability of exactly 0: no engine returned it, it "
        "stands in for a response; 5 responses",
    ),
    # ---- masks
    "mask-length-mismatch": Case(
        one(5, response_mask=[0, 0]), one(5, response_mask=[0] * 5),
        "2 mask values for 5 tokens; the last 3 have no verdict",
    ),
    "mask-not-binary": Case(
        one(response_mask=[1, 2, 0]), one(response_mask=[1, 1, 0]), "response_mask holds something else than 0 and 1"
    ),
    "mask-retracted": Case(
        pair(put(1, 1, tokens=6, status="aborted", response_mask=[1] * 6),
             put(2, 1, tokens=8, prior_len=6, response_mask=[0] * 6 + [1, 1])),
        pair(put(1, 1, tokens=6, status="aborted", response_mask=[0] * 6),
             put(2, 1, tokens=8, prior_len=6, response_mask=[0] * 6 + [1, 1])),
        "6 fresh tokens trainable at put 1 and masked now", severity="warning",
    ),
    "fully-masked-row": Case(
        one(6, response_mask=[0] * 6, finish_reason="stop"), one(6, response_mask=[0] * 5 + [1]),
        "none of 6 tokens is trainable, finish_reason stop", severity="warning",
    ),
    "padding-trained": Case(
        one(6, response_ids=[11, 12, 13, 0, 0, 0], response_mask=[1] * 6),
        one(6, response_ids=[11, 12, 13, 0, 0, 0], response_mask=[1, 1, 1, 1, 1, 0]),
        "the response ends in 3 times the id 0, 3 of them trainable",
    ),
    "observation-tokens-trained": Case(
        one(50, tool_turns=2), one(50, tool_turns=2, response_mask=[1] * 49 + [0]),
        "2 tool turns and all 50 tokens trainable", severity="warning",
    ),
    "trained-mask-length": Case(
        one(trained_mask=[1, 1]), one(trained_mask=[1, 1, 1]), "2 mask values for 3 tokens"
    ),
    "trained-mask-mismatch": Case(
        lived([4, 4, 4], 5, 5, response_mask=[1, 1, 0], trained_mask=[1, 0, 1]),
        lived([4, 4, 4], 5, 5, response_mask=[1, 1, 0], trained_mask=[1, 1, 0]),
        "1 token trained that the semantic mask leaves out at step 5",
        config=LIMIT_3,
    ),
    # ---- groups
    "group-incomplete": Case(
        [*members(1, 8, {}, {}, {}), put(2, 9, 83), *taking(3, 1, 80, 81, 82)],
        [*members(1, 8, {}, {}, {}, {}), *taking(3, 1, 80, 81, 82, 83)],
        "taken at step 1 with 3 of 4 members", config=("tasks.default.group_size=4",),
        subject="task default, group 8, put 1",
    ),
    "group-singleton": Case(
        VALID, members(1, 8, {}, {}), "1 member: no baseline, and the spread of rewards is undefined",
        severity="warning",
    ),
    "fan-out-overweight": Case(
        [put(1, 7, 70, reward=1.0)] * 3 + [put(1, 7, 71, reward=0.0)],
        [put(1, 7, 70, reward=1.0), put(1, 7, 71, reward=0.0)] * 2,
        "4 rows from 2 rollouts: baseline per row 0.75, per rollout 0.50", severity="warning",
    ),
    "fan-out-reward-conflict": Case(
        [put(1, 7, 70, reward=1.0), put(1, 7, 70, reward=0.0)], [put(1, 7, 70, reward=1.0)] * 2,
        "2 rows with the rewards 0, 1",
    ),
    "group-filter-split": Case(
        members(1, 9, {"status": "filtered", "reward": 0.0}, *[{"reward": 0.95}] * 7),
        members(1, 9, *[{"status": "filtered", "reward": 0.95}] * 8),
        "1 of 8 members filtered; the rest has zero spread; the group is discarded whole", severity="warning",
    ),
    "group-zero-variance": Case(
        [*members(1, 9, {"reward": 1.0}, {"reward": 1.0}), *taking(2, 1, 90, 91)],
        [*members(1, 9, {"reward": 1.0}, {"reward": 0.0}), *taking(2, 1, 90, 91)],
        "1 of 1 taken group with rewards have no spread (100.0 % of their tokens)", severity="info", config=LIMIT_3,
    ),
    "unfinished-row-trained": Case(
        [put(1, 3, 12, status="aborted"), take(2, 6, rollout_id=12)],
        [put(1, 3, 12), take(2, 6, rollout_id=12)], "aborted response taken at step 6",
    ),
    "reward-missing": Case(
        [*members(1, 9, {"reward": 1.0}, {"reward": None}), *taking(2, 1, 90, 91)],
        [*members(1, 9, {"reward": 1.0}, {"reward": 0.0}), *taking(2, 1, 90, 91)],
        "no reward at the take of step 1, while other members of its group have one", config=LIMIT_3,
    ),
    "rollout-in-two-groups": Case(
        [put(1, 3, 12), put(2, 4, 12)], [put(1, 3, 12), put(2, 3, 12), put(3, 4, 12, task_name="math")],
        "put 1 of this rollout was in group 3", severity="warning", subject="task default, group 4, rollout 12, put 2",
    ),
    "group-members-changed": Case(
        [*members(1, 3, {}, {}), put(2, 3, 30), put(2, 3, 35)], [*members(1, 3, {}, {}), *members(2, 3, {}, {})],
        "1 rollout missing (31) and 1 rollout new (35)", severity="warning", subject="task default, group 3, put 2",
    ),
    "group-split": Case(
        [*members(1, 8, {}, {}, {}), *taking(2, 1, 80, 81), *taking(3, 2, 82)],
        [*members(1, 8, {}, {}, {}), *taking(2, 1, 80, 81, 82), *taking(3, 2, 80, 81)],
        "at put 1, 1 group taken in parts, the first, group 8: 2 at step 1 and 1 at step 2; 3 responses",
        subject="task default",
    ),
    "group-abandoned": Case(
        [*cut_off(1, 2, 3), *(put(n, n, train_step=5) for n in (4, 5, 6)), refresh(9, 5)],
        [*cut_off(1, 2, 3), *(put(n, n, train_step=5) for n in (4, 5)), refresh(9, 5)],
        "from put 1 to put 3, 3 groups put as aborted at step 1 and never again, though the run goes on; their "
        "responses had 4 tokens on average so far, 1.0 times the 4 of completed ones; 3 responses",
        config=FIFO, severity="warning", subject="task default",
    ),
    "takes-differ-from-replay": Case(
        [put(1, 1), put(2, 2), *taking(3, 1, 2)], [put(1, 1), put(2, 2), *taking(3, 1, 1)],
        "from put 1 on, takes differ from the replay's from step 1 on: the run takes 1 left waiting there and leaves "
        "out 1 that replay takes (of 2 groups); 2 responses", config=FIFO, severity="warning",
    ),
    "take-order": Case(
        [*many(6), *(row for n in range(6) for row in taking(10 + n, 1 + n, 5 - n))],
        [*many(6), *(row for n in range(6) for row in taking(10 + n, 1 + n, n))],
        "from put 2 on, 5 of 6 taken groups (83 %) were taken while one that was completed before waited, though "
        "replay_policy is fifo, first at step 1; 5 responses", config=FIFO, severity="warning",
    ),
    "group-passed-over": Case(
        [*many(4), *(row for n in (1, 2, 3) for row in taking(10 + n, n, n))],
        [*many(4), *(row for n in (1, 2) for row in taking(10 + n, n, n))],
        "at put 1, 1 completed group never taken, the first, group 0, though 3 newer ones were; 1 response",
        config=FIFO, severity="warning",
    ),
    "take-short": Case(
        [put(1, 1), put(2, 2), *taking(3, 1, 1, batch_size=2)],
        [put(1, 1), put(2, 2), *taking(3, 1, 1, 2, batch_size=2)],
        "at put 1, 1 of 1 take too short by 1 group in all, the first, at step 1: 1 of 2; 1 response",
        severity="warning",
    ),
    "continued-though-off": Case(
        pair(put(1, 1, tokens=2, status="aborted"), put(2, 1, tokens=3, prior_len=2, train_step=2, model_step=1,
                                                        response_model_steps=[0, 0, 1])),
        pair(put(1, 1, tokens=2, status="aborted"), put(2, 1, tokens=3, train_step=2, model_step=1)),
        "at put 2, 2 tokens of version 0 kept by responses that had been cut off, though enable_partial_rollout is "
        "off; 1 response", config=("policy.enable_partial_rollout=false",),
    ),
    # ---- lifecycle
    "stale-token-trained": Case(
        lived([4, 4, 5], 6, 6, trained_mask=[1, 1, 1]), lived([4, 4, 5], 6, 6, trained_mask=[0, 0, 1]),
        "2 tokens of staleness 1 trained at step 6, token limit 1", config=TOKEN_0,
    ),
    "stale-group-taken": Case(
        lived([4, 4, 4], 5, 9), lived([4, 4, 4], 5, 7),
        "taken at step 9 with staleness 4, limit 3; 4 of it came from waiting", config=LIMIT_3,
        subject="task default, group 3, rollout 12, put 1",
    ),
    "aged-in-queue": Case(
        [*lived([4], 5, 5)[:1], refresh(2, 8)], [*lived([4], 5, 5)[:1], refresh(2, 7)],
        "1 group became too old after the put; median wait 3 steps", config=LIMIT_3, severity="warning",
    ),
    "expired-too-early": Case(
        one(2, train_step=5, response_model_steps=[3, 3], status="expired"),
        one(2, train_step=6, response_model_steps=[3, 3], status="expired"),
        "status expired at step 5, but staleness 1 is below the limit 2",
        config=("policy.max_staleness=1", "timeline.train_batch_size=1"),
        severity="warning",
    ),
    "expired-too-late": Case(
        [put(1, 3, status="aborted"), refresh(2, 4), sample(3, 3, "aborted")],
        [put(1, 3, status="aborted"), refresh(2, 3), sample(3, 3, "aborted")],
        "sampled from the aborted pool, though it had expired under the config", config=RETRY, severity="warning",
    ),
    "expired-retained": Case(
        [put(1, 3, status="aborted"), refresh(2, 4), sample(3, 3, "expired")],
        [put(1, 3, status="aborted"), refresh(2, 3), sample(3, 3, "aborted")],
        "sampled from the expired pool, though the config had discarded it", config=LIMIT_3, severity="warning",
    ),
    "recorded-staleness-mismatch": Case(
        one(2, train_step=5, response_model_steps=[3, 3], seq_staleness=2),
        one(2, train_step=5, response_model_steps=[3, 3], seq_staleness=1), "recorded 2, recomputed 1",
    ),
    "fresh-tokens-lost": Case(
        [*members(1, 3, {"response_model_steps": [1] * 4}, {}, train_step=4, model_step=3), refresh(2, 5)],
        [*members(1, 3, {"response_model_steps": [2] * 4}, {}, train_step=4, model_step=3), refresh(2, 5)],
        "4 tokens of fresh members lost with 1 group of which a member expired", config=LIMIT_3, severity="warning",
    ),
    "silent-discard": Case(
        [put(1, 3), refresh(2, 4)], [put(1, 3), refresh(2, 3)],
        "1 expired group with 4 tokens discarded (tail_batch_trigger_size -1)", config=LIMIT_3, severity="warning",
    ),
    "agentic-exempt-stale": Case(
        lived([4, 4, 4, 5], 6, 6, agentic=True), lived([5, 5, 5, 5], 6, 6, agentic=True),
        "3 tokens beyond the token limit 1 trained at step 6, because the token rule spares groups with an agentic "
        "member", config=TOKEN_0, severity="warning",
    ),
    "starved-group": Case(
        repeatedly(3), repeatedly(2),
        "expired 3 times (steps 4, 7, 10), never trained; most was lost by policy.max_staleness = 2", config=RETRY,
        severity="warning", subject="task default, group 30",
    ),
    "length-bias": Case(
        lengths(1_000, 2_000), lengths(1_000, 1_999),
        "median tokens per response: taken 1,000 (10 groups), expired 2,000 (10 groups)" + BY_STALENESS, config=RETRY,
        severity="warning",
    ),
    "discard-rate": Case(
        [put(1, 1, tokens=890), put(2, 2, tokens=110, train_step=4, model_step=0), take(3, 4)],
        [put(1, 1, tokens=900), put(2, 2, tokens=100, train_step=4, model_step=0), take(3, 4)],
        "11.0 % of produced tokens (110 of 1,000) were dropped as stale" + BY_STALENESS, config=LIMIT_3,
        severity="warning",
    ),
    "batch-never-filled": Case(
        [put(1, 1), put(2, 2), take(3, 1, 2), put(4, 3, train_step=2), put(5, 4, train_step=2, status="aborted")],
        [put(1, 1), put(2, 2), take(3, 1, 2), put(4, 3, train_step=2), put(5, 4, train_step=2)],
        "the run stops after step 1 of 9 with 1 of 2 completed groups; 1 group without a final put: 4",
        config=("timeline.steps=9", "timeline.train_batch_size=2", "policy.max_staleness=2"),
    ),
    "dead-group-run": Case(
        many(10, status="failed"), many(9, status="failed"),
        "10 puts in a row contributed nothing (groups 0 to 9)", config=ALONE, severity="warning",
    ),
    "duplicate-consumption": Case(
        [put(1, 3, 55), take(2, 30, rollout_id=55), take(3, 31, rollout_id=55)],
        [put(1, 3, 55), put(2, 4, 56), take(3, 30, rollout_id=55), take(4, 31, rollout_id=56)],
        "trained at steps 30 and 31",
    ),
    "id-reused": Case(
        [put(1, 3), take(2, 1), put(3, 3)], [put(1, 3), put(2, 4, status="aborted"), take(3, 1), put(4, 4)],
        "put again after the take of step 1", config=LIMIT_3, severity="warning",
    ),
    "run-restart": Case(
        [put(1, 3, train_step=31), put(2, 4, train_step=30)], [put(1, 3, train_step=30), put(2, 4, train_step=30)],
        "train_step falls from 31 to 30", severity="info",
    ),
    "status-transition": Case(
        pair(put(1, 3, 55), put(2, 3, 55, status="init", tokens=0)),
        [put(1, 3, 55), sample(2, 3, "completed"), put(3, 3, 55, status="init", tokens=0)],
        "completed at the put before, init and empty now",
    ),
    "staleness-convention": Case(
        [*VALID, refresh(2, 1)], VALID,
        "staleness is step - version - 1, and too old from (max_staleness + 1) x sync_weights_interval on; 0 groups "
        "expired exactly at that limit", config=LIMIT_3, clean_config=(), severity="info",
    ),
    "setting-suspect": Case(
        VALID, VALID, "", config=("policy.max_staleness=2", "policy.max_token_staleness=2"),
        clean_config=("timeline.train_batch_size=1",), severity="warning",
    ),
    "sample-mismatch": Case(
        [put(1, 3), put(2, 4), sample(3, 3)], [put(1, 3, status="aborted"), sample(2, 3), sample(3, 77)],
        "sampled from the aborted pool, while it waits as completed", config=LIMIT_3, severity="warning",
        subject="task default, group 3",
    ),
    "put-without-sample": Case(
        [put(1, 3, status="aborted"), put(2, 4, status="aborted"), sample(3, 4), put(4, 3)],
        [put(1, 3, status="aborted"), put(2, 4, status="aborted"), sample(3, 3), put(4, 3)],
        "put again while it waits as aborted", config=LIMIT_3, severity="warning",
        subject="task default, group 3, put 2",
    ),
    "batch-shortfall": Case(
        [put(1, 1), take(2, 1, 3), take(3, 2, 1)], [put(1, 1), put(2, 2), take(3, 1, 1), take(4, 2, 1)],
        "3 groups too few in 2 takes, first at step 1", config=LIMIT_3, severity="warning",
    ),
    # ---- ends and contents
    "completed-but-aborted": Case(
        one(finish_reason="user_abort"), one(finish_reason="stop"),
        "at put 1, completed, though finish_reason is user_abort; 1 response", subject="task default",
    ),
    "cut-called-stop": Case(
        [*ended(2, 17), *ended(7, 1, first=30), *ended(8, 1, first=31), *ended(9, 1, first=32)],
        [*ended(2, 17), *ended(7, 3, first=30)],
        "from put 18 on, 85.0 % of 20 responses that say stop end in the id 2, these in others: cut off, but called "
        "stop; 3 responses",
    ),
    "limit-called-stop": Case(
        [put(n, n, tokens=90 - n, prompt_len=10 + n, finish_reason="stop") for n in range(10)],
        [put(n, n, tokens=90 - n, prompt_len=10 + n, finish_reason="stop") for n in range(9)],
        "from put 1 on, 100.0 % of 10 responses that say stop have exactly 100 tokens with their prompt, far more than "
        "nearby; 10 responses", severity="warning",
    ),
    "over-budget": Case(
        [*many(3, tokens=8, finish_reason="length"), *went_on(5, 9)],
        [*many(3, tokens=8, finish_reason="length"), *went_on(5, 8)],
        "at put 5, up to 9 tokens after an interruption, while 3 responses without one were cut at 8 or less; "
        "1 response", severity="warning",
    ),
    "members-alike": Case(
        members(1, 3, *[alike(16)] * 2), members(1, 3, *[alike(15)] * 2),
        "at put 1, the same ids and log-probabilities as another member, the first in group 3: rollouts 30 and 31, "
        "16 tokens; 2 responses",
    ),
    "prompts-mixed": Case(
        members(1, 3, {"prompt_len": 7}, {"prompt_len": 9}), members(1, 3, {"prompt_len": 9}, {"prompt_len": 9}),
        "at put 1, prompts of several lengths in 1 group, the first 3: 7, 9; 2 responses",
    ),
    "prefix-changed": Case(
        went_on(2, 3, [5, 6], [5, 7, 8]), went_on(2, 3, [5, 6], [5, 6, 8]),
        "at put 2, the ids kept from the put before aren't those that it had, the first, rollout 90, its first 2; "
        "1 response",
    ),
    "prefix-lost": Case(
        went_on(5, 7, status="aborted", prior_len=1), went_on(5, 7, status="aborted"),
        "at put 2, aborted again without 4 tokens that the put before had; 1 response", severity="warning",
        config=("policy.enable_partial_rollout=true", "policy.max_staleness=9"),
    ),
    "restarted-tokens": Case(
        went_on(301, 699, prior_len=0), went_on(300, 700, prior_len=0),
        "at put 2, 30 % of what was produced (301 of 1,000 tokens) was thrown away when responses began again; "
        "1 response", severity="warning",
    ),
    # ---- totals
    "step-without-trainable-tokens": Case(
        [*one(4, response_mask=[0] * 4), *taking(2, 14, 12)], [*one(4, response_mask=[0, 0, 0, 1]), *taking(2, 14, 12)],
        "0 of 4 tokens trainable (0 of them stale)", config=("policy.max_staleness=99",), subject="step 14",
    ),
    "denominator-mismatch": Case(
        [*one(30, response_mask=[0] * 5 + [1] * 25), take(2, 12, loss_tokens=30)],
        [*one(30, response_mask=[0] * 5 + [1] * 25), take(2, 12, loss_tokens=25)],
        "divided by 30, trainable tokens 25: loss scaled by 0.83", config=("policy.max_staleness=99",),
        severity="warning", subject="task default, step 12",
    ),
    "produced-token-double-count": Case(
        pair(put(1, 8, tokens=100, status="aborted"),
             put(2, 8, tokens=160, train_step=2, model_step=1, response_model_steps=[0] * 100, prior_len=0)),
        pair(put(1, 8, tokens=100, status="aborted"),
             put(2, 8, tokens=160, train_step=2, model_step=1, response_model_steps=[0] * 100, prior_len=100)),
        "prior_len is 0, but 100 more leading tokens were made by older versions at put 1", severity="warning",
    ),
    "multi-update-batch": Case(
        [put(1, 3), sync(2, 1, 2), sync(3, 2, 4)], [put(1, 3), sync(2, 1, 2), sync(3, 2, 3)],
        "a step makes 2 updates: versions count updates, and ages in steps are too small by that", config=LIMIT_3,
        severity="info",
    ),
    "untrained-response-taken": Case(
        [*lived([4, 4], 6, 6)[:1], put(1, 3, 13, train_step=6, tokens=2, response_model_steps=[4, 5], agentic=None),
         put(2, 4, 14, train_step=7, tokens=2, model_step=5), *taking(3, 7, 12, 13, 14)],
        [put(1, 3, 12, train_step=7, tokens=2, response_model_steps=[5, 6]), put(2, 4, 14, train_step=7, model_step=6),
         *taking(3, 7, 12, 14)],
        "at put 1, taken at 1 step with no token to train (1 of 1 too old); at step 7 the batch is in effect 2 of 3 "
        "responses; 1 response",
        config=("policy.max_staleness=8", "policy.max_token_staleness=1"), severity="warning", subject="task default",
    ),
    "step-without-take": Case(
        [put(1, 1), take(2, 3), put(3, 2), take(4, 6)], [put(1, 1), take(2, 3), put(3, 2), take(4, 4)],
        "no take of steps 4 to 5", config=("policy.max_staleness=9",), severity="warning", subject="step 4",
    ),
}  # fmt: skip
"""By name of the rule. Rules about files have tests of their own."""

FILE_RULES = {
    "input-truncated-file",
    "input-unreadable-column",
    "input-schema-drift",
    "input-large-lists",
    "input-row-group-large",
    "version-not-integer",
    "recording-incomplete",
    "curve-differs",
    "curve-defined-otherwise",
}
assert CASES.keys() | FILE_RULES == {rule.name for rule in RULES}
