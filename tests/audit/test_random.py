"""Random logs: right ones give no error, wild ones no crash, damaged ones a finding."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.builders import Row, read_json, write_log
from tests.conftest import examples
from tests.strategies import logs, spellings
from tests.valid_runs import DAMAGES, valid_runs
from tokenaudit.audit.report import AuditReport, report_json
from tokenaudit.audit.rule import Severity
from tokenaudit.audit.session import audit_log
from tokenaudit.contracts.errors import LogError
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest

SLOW = settings(examples(0.25), suppress_health_check=list(HealthCheck))


def audited(rows: list[Row], overrides: tuple[str, ...] = (), **options: Any) -> AuditReport:
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder, "log.parquet"), rows, **options)
        return audit_log([path], overrides=overrides, isolated=True)


def errors(report: AuditReport) -> list[tuple[str, str]]:
    return [(f.name, f.message) for f in report.findings if f.severity is Severity.ERROR]


@SLOW
@given(run=valid_runs())
def test_a_run_that_does_everything_right_has_no_error(run: tuple[list[Row], tuple[str, ...]]):
    rows, overrides = run
    assume(any(row["event"] == "put" for row in rows))
    # A batch of groups that are stale as a whole, or the mask of a token rule of 0, may leave nothing to train.
    found = [error for error in errors(audited(rows, overrides)) if error[0] != "step-without-trainable-tokens"]
    assert found == []


@SLOW
@given(rows=logs(), spelling=spellings())
def test_the_audit_of_any_readable_log_ends_with_a_report(rows: list[Row], spelling: dict[str, Any]):
    report = audited(rows, ("policy.max_staleness=1", "timeline.train_batch_size=2"), **spelling)
    assert report.rows == len(rows)
    assert report.exit_code() in (0, 1, 2)


@SLOW
@given(rows=logs(), spelling=spellings())
def test_spelling_and_cutting_a_log_changes_no_finding(rows: list[Row], spelling: dict[str, Any]):
    spelling = {name: value for name, value in spelling.items() if name not in ("versions", "mask", "extra_column")}
    plain, other = audited(rows), audited(rows, **spelling)
    file_rules = {"input-schema-drift"}
    assert [f.identity for f in plain.findings] == [f.identity for f in other.findings if f.name not in file_rules]


@pytest.mark.parametrize("damage", DAMAGES)
@settings(examples(0.06), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_found(damage: str, data: st.DataObject):
    fits, values = DAMAGES[damage]
    rows, overrides = data.draw(valid_runs())
    places = [place for place, row in enumerate(rows) if fits(row)]
    assume(places)
    place = data.draw(st.sampled_from(places))
    damaged = list(rows)
    damaged[place] = rows[place] | values(rows[place])
    assert errors(audited(damaged, overrides))


@SLOW
@given(rows=logs(stamp_missing=True), place=st.integers(0, 30), data=st.data())
def test_whatever_replay_refuses_is_an_error_finding(rows: list[Row], place: int, data: st.DataObject):
    values = data.draw(
        st.sampled_from(
            (
                {"event": "?"}, {"status": "?"}, {"status": None}, {"event_id": None}, {"event_id": -5},
                {"train_step": None}, {"train_step": 2**40}, {"group_id": None}, {"rollout_id": None},
                {"response_len": -1}, {"response_len": 2**33}, {"response_len": 1}, {"prior_len": 99},
                {"response_model_steps": [1] * 99}, {"response_model_steps": [-3]}, {"response_model_steps": [2**40]},
                {"response_mask": [1] * 99}, {"response_mask": []}, {"batch_size": -1}, {"model_step": -2},
                {"event_id": 2**63 - 1}, {"group_id": 2**63 - 1}, {"rollout_id": 2**63 - 1},
                {"response_version_runs": [{"model_step": 0, "tokens": 1, "trainable": 2}]},
                {"response_version_runs": [{"model_step": -1, "tokens": 1, "trainable": 1}]},
                {"response_version_runs": [{"model_step": None, "tokens": 1, "trainable": 1}]},
                {"response_version_runs": [{"model_step": 0, "tokens": 99, "trainable": 1}]},
                {"response_version_runs": [{"model_step": 0, "tokens": None, "trainable": 1}]},
            )
        )
    )  # fmt: skip
    damaged = [row | values if n == place % len(rows) else row for n, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder, "log.parquet"), damaged)
        report = audit_log([path], isolated=True)
        try:
            read_digest(open_log([path]))
        except LogError:
            assert errors(report)


@pytest.mark.parametrize("name", sorted(p.name for p in Path(__file__).parent.parent.joinpath("golden").iterdir()))
def test_golden_logs_have_no_error(name: str):
    folder = Path(__file__).parent.parent / "golden" / name
    report = audit_log([folder / "log.parquet"], config_path=folder / "config.toml", isolated=True)
    assert (errors(report), report.why_no_replay) == ([], "")
    assert report.count(Severity.ERROR) == 0


GOLDEN_RUNS = sorted(
    p.name for p in Path(__file__).parent.parent.joinpath("golden").iterdir() if not p.name.startswith("buf")
)


@pytest.mark.parametrize("name", GOLDEN_RUNS[::6])
def test_masks_recorded_upstream_are_those_of_the_replay(name: str, tmp_path: Path):
    """The effective masks of the golden cases as trained masks: right as they are, wrong with a flipped token."""
    from tests.builders import read_rows

    folder = Path(__file__).parent.parent / "golden" / name
    rows, masks = read_rows(folder / "log.parquet"), _masks_at_take(folder)
    put_rows: dict[tuple[str, int], list[Row]] = {}
    recorded = 0
    for row in rows:
        if row["event"] == "put":
            key = (row["task_name"], row["group_id"])
            if put_rows.get(key, [row])[0]["event_id"] != row["event_id"]:
                put_rows[key] = []
            put_rows.setdefault(key, []).append(row)
        elif row["event"] == "take":
            for group_id, by_rollout in masks.get((row["train_step"], row["task_name"]), {}).items():
                for own in put_rows[row["task_name"], group_id]:
                    own["trained_mask"] = by_rollout[own["rollout_id"]]
                    recorded += len(own["trained_mask"]) > 0
    assert recorded
    right = audit_log([write_log(tmp_path / "a", rows)], config_path=folder / "config.toml", isolated=True)
    assert errors(right) == []
    assert next(run for run in right.runs if run.rule.name == "trained-mask-mismatch").findings.checked >= recorded
    flipped = next(row for row in rows if row.get("trained_mask"))
    flipped["trained_mask"] = [1 - flipped["trained_mask"][0], *flipped["trained_mask"][1:]]
    wrong = audit_log([write_log(tmp_path / "b", rows)], config_path=folder / "config.toml", isolated=True)
    (found,) = (f for f in wrong.findings if f.name in ("trained-mask-mismatch", "stale-token-trained"))
    # a token that the trainer leaves out may be meant
    assert found.severity is (Severity.ERROR if flipped["trained_mask"][0] else Severity.WARNING)


def _masks_at_take(folder: Path) -> dict[tuple[int, str], dict[int, dict[int, list[int]]]]:
    """Masks by step and task, group and rollout."""
    from tests.builders import read_rows

    group_of = {(row["task_name"], row["rollout_id"]): row["group_id"] for row in read_rows(folder / "log.parquet")}
    found: dict[tuple[int, str], dict[int, dict[int, list[int]]]] = {}
    for row in read_json(folder / "expected.json")["expected"]:
        for name, mask in row["effective_masks"].items():
            task, _, rollout = name.rpartition("/")
            groups = found.setdefault((row["train_step"], task), {})
            own = groups.setdefault(group_of[task, int(rollout)], {})
            own[int(rollout)] = [int(one) for one in mask]
    return found


def test_equal_logs_give_equal_bytes(tmp_path: Path):
    folder = Path(__file__).parent.parent / "golden" / "disagg_003"
    texts = [
        report_json(audit_log([folder / "log.parquet"], config_path=folder / "config.toml", isolated=True))
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert str(tmp_path.parent) not in texts[0]
