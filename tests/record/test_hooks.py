"""Wrapped methods of any object: calls, results and exceptions of a trainer stay what they are; events are recorded."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tokenaudit import Recorder
from tokenaudit.contracts.schema import META_REJECTED
from tokenaudit.record.hooks import Detach, Hook, Hooks, Record


class Buffer:
    """Puts numbers and gives them; `get` waits for one."""

    def __init__(self) -> None:
        self.queue: queue.Queue[int] = queue.Queue()

    def put(self, group_id: int, step: int = 1) -> str:
        self.queue.put(group_id)
        return f"put {group_id}"

    def put_many(self, group_ids: list[int]) -> None:
        for group_id in group_ids:
            self.put(group_id)

    def get(self) -> int:
        return self.queue.get()

    async def put_async(self, group_id: int) -> str:
        await asyncio.sleep(0)
        return self.put(group_id)

    async def get_async(self) -> int:
        while self.queue.empty():
            await asyncio.sleep(0)
        return self.queue.get()

    def put_later(self, group_id: int) -> Any:
        return self.put_async(group_id)


def attach(buffer: Any, recorder: Recorder, *names: str) -> Detach:
    """Record puts before they return, and gets as takes of the group they gave."""

    def put(arguments: Mapping[str, Any]) -> Record:
        group_ids = arguments.get("group_ids", [arguments.get("group_id")])
        rows = [{"rollout_id": group_id, "response_len": 1} for group_id in group_ids]

        def record(_: Any) -> None:
            for row in rows:
                recorder.put([row], group_id=row["rollout_id"], train_step=arguments.get("step", 1), model_step=0)

        return record

    def get(_: Mapping[str, Any]) -> Record:
        return lambda group_id: recorder.take(1, 1, rollout_ids=[group_id])

    hooks = {name: Hook(put, is_alone=True) if name.startswith("put") else Hook(get) for name in names}
    return Hooks(recorder).attach(buffer, hooks)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder).to_pylist() if list(folder.glob("*.parquet")) else []


def events_of(folder: Path) -> list[tuple[str, int]]:
    return [(row["event"], row["rollout_id"]) for row in rows_of(folder)]


def test_a_call_has_its_result_and_defaults(tmp_path: Path):
    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put", "get")
        assert buffer.put(7) == "put 7"
        assert buffer.put(group_id=8, step=3) == "put 8"
        assert buffer.get() == 7
    assert [(row["event"], row["rollout_id"], row["train_step"]) for row in rows_of(tmp_path)] == [
        ("put", 7, 1),
        ("put", 8, 3),
        ("take", 7, 1),
    ]


def test_coroutines_and_functions_that_return_one_are_recorded_when_they_end(tmp_path: Path):
    async def run(buffer: Buffer) -> None:
        got = asyncio.create_task(buffer.get_async())
        assert await buffer.put_async(1) == "put 1"
        assert await buffer.put_later(2) == "put 2"
        assert await got == 1

    with Recorder(tmp_path) as recorder:
        buffer = Buffer()
        attach(buffer, recorder, "put_async", "put_later", "get_async")
        assert asyncio.iscoroutinefunction(buffer.put_async)
        asyncio.run(run(buffer))
    assert sorted(events_of(tmp_path)) == [("put", 1), ("put", 2), ("take", 1)]


def test_methods_that_a_method_calls_are_part_of_it(tmp_path: Path):
    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put", "put_many")
        buffer.put_many([1, 2])
    assert events_of(tmp_path) == [("put", 1), ("put", 2)]


def test_another_recorded_object_that_a_method_calls_is_recorded_too(tmp_path: Path):
    inner = Buffer()

    class Outer(Buffer):
        def put(self, group_id: int, step: int = 1) -> str:
            inner.put(group_id + 100)
            return super().put(group_id, step)

    outer = Outer()
    with Recorder(tmp_path) as recorder:
        attach(inner, recorder, "put")
        attach(outer, recorder, "put")
        outer.put(1)
    assert sorted(events_of(tmp_path)) == [("put", 1), ("put", 101)]


def test_threads_are_recorded_in_an_order_in_which_calls_can_take_effect(tmp_path: Path):
    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put", "get")
        putting = [
            threading.Thread(target=lambda first=first: [buffer.put(first + n) for n in range(100)])
            for first in range(0, 400, 100)
        ]
        getting = [threading.Thread(target=lambda: [buffer.get() for _ in range(100)]) for _ in putting]
        for thread in (*getting, *putting):
            thread.start()
        for thread in (*getting, *putting):
            thread.join(60)
    events = events_of(tmp_path)
    assert sorted(events) == sorted((event, number) for event in ("put", "take") for number in range(400))
    place = {event: index for index, event in enumerate(events)}
    assert all(place["put", number] < place["take", number] for number in range(400))
    for first in range(0, 400, 100):
        places = [place["put", number] for number in range(first, first + 100)]
        assert places == sorted(places)


def test_what_returns_while_a_put_runs_is_recorded_behind_it(tmp_path: Path):
    class Slow(Buffer):
        has_put, is_got = threading.Event(), threading.Event()

        def put(self, group_id: int, step: int = 1) -> str:
            said = super().put(group_id, step)
            self.has_put.set()
            assert self.is_got.wait(30)
            return said

    buffer = Slow()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put", "get")
        thread = threading.Thread(target=buffer.put, args=(5,))
        thread.start()
        assert buffer.has_put.wait(30)
        assert buffer.get() == 5
        buffer.is_got.set()
        thread.join(30)
    assert events_of(tmp_path) == [("put", 5), ("take", 5)]


def test_what_waits_for_a_put_that_fails_is_recorded_all_the_same(tmp_path: Path):
    class Failing(Buffer):
        def put(self, group_id: int, step: int = 1) -> str:
            super().put(group_id, step)
            assert self.get() == group_id
            if step == 2:
                raise OSError("full")
            return "put"

    buffer = Failing()
    with Recorder(tmp_path) as recorder:
        hooks = Hooks(recorder)
        take = Hook(lambda _: lambda group_id: recorder.take(1, 1, rollout_ids=[group_id]))
        other = Buffer()
        hooks.attach(other, {"get": take})
        hooks.attach(buffer, {"put": Hook(lambda _: None, is_alone=True)})
        other.queue = buffer.queue
        buffer.queue.put(1)

        def get(self: Failing = buffer) -> int:
            thread = threading.Thread(target=other.get)
            thread.start()
            thread.join(30)
            return 2

        buffer.get = get  # type: ignore[method-assign]
        with pytest.raises(OSError, match="full"):
            buffer.put(2, step=2)
    assert events_of(tmp_path) == [("take", 1)]


@pytest.mark.parametrize("name", ["put", "put_async"])
def test_an_exception_of_the_trainer_passes_and_nothing_is_recorded(name: str, tmp_path: Path):
    class Full(Exception):
        pass

    class Failing(Buffer):
        def put(self, group_id: int, step: int = 1) -> str:
            raise Full(group_id)

    def call(*arguments: Any) -> Any:
        result = getattr(buffer, name)(*arguments)
        return asyncio.run(result) if asyncio.iscoroutine(result) else result

    buffer = Failing()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, name)
        with pytest.raises(Full, match="3"):
            call(3)
        with pytest.raises(TypeError, match="group_id"):
            call()
        assert recorder.rejected_events == 0
    assert events_of(tmp_path) == []


class Odd(Exception):
    """Can't even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_failures_are_counted_and_told_once(tmp_path: Path):
    def failing(_: Mapping[str, Any]) -> Record:
        raise Odd

    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        recorder.refresh(1)
        Hooks(recorder).attach(buffer, {"put": Hook(failing, is_alone=True)})
        with pytest.warns(RuntimeWarning, match=r"^not recorded: Odd \(told once") as told:
            assert [buffer.put(number) for number in range(5)] == [f"put {number}" for number in range(5)]
        assert len(told) == 1
        assert recorder.rejected_events == 5
    counts = [int(pq.read_schema(part).metadata.get(META_REJECTED.encode(), 0)) for part in tmp_path.glob("*.parquet")]
    assert sum(counts) == 5


def test_a_failure_does_not_stop_the_recording(tmp_path: Path):
    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put")
        with pytest.warns(RuntimeWarning, match="not recorded: train_step is -1"):
            buffer.put(1, step=-1)
        buffer.put(2)
        assert recorder.rejected_events == 1
    assert events_of(tmp_path) == [("put", 2)]


def test_where_warnings_are_errors_standard_error_has_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    buffer = Buffer()
    with Recorder(tmp_path) as recorder, warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(buffer, recorder, "put")
        assert buffer.put(1, step=-1) == "put 1"
        assert buffer.put(1, step=-1) == "put 1"
    told = capfd.readouterr().err
    assert told.startswith("tokenaudit: not recorded: train_step is -1")
    assert told.count("\n") == 1


def test_a_closed_recorder_and_a_full_disk_keep_no_call_from_going_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    buffer, recorder = Buffer(), Recorder(tmp_path / "closed")
    attach(buffer, recorder, "put", "get")
    recorder.close()
    with pytest.warns(RuntimeWarning, match="not recorded: the recorder is closed"):
        assert buffer.put(1) == "put 1"
    assert buffer.get() == 1

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    buffer, recorder = Buffer(), Recorder(tmp_path / "full", seal_rows=1)
    monkeypatch.setattr("tokenaudit.record.part_files.PartFolder.seal", full)
    attach(buffer, recorder, "put", "get")
    buffer.put(1)
    while not recorder.is_failed:
        pass
    with pytest.warns(RuntimeWarning, match="not recorded: can't write: .*No space left"):
        assert buffer.put(2) == "put 2"
    assert (buffer.get(), buffer.get()) == (1, 2)
    monkeypatch.undo()
    recorder.close()
    assert events_of(tmp_path / "full")[:1] == [("put", 1)]


def test_a_forked_process_calls_the_methods_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put", "put_async")
        with warnings.catch_warnings():
            # a fork of a process with threads, which is what is tried here
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            warnings.simplefilter("error")
            said = [buffer.put(1), buffer.put(2), asyncio.run(buffer.put_async(3))]
            os._exit(0 if said == ["put 1", "put 2", "put 3"] else 1)
        assert os.waitpid(child, 0)[1] == 0
        buffer.put(4)
    assert events_of(tmp_path) == [("put", 4)]
    told = capfd.readouterr().err
    assert told.count("belongs to another process") == told.count("\n") == 1


def test_event_loops_one_after_the_other_share_a_buffer(tmp_path: Path):
    async def run(buffer: Buffer, first: int) -> None:
        await asyncio.gather(*(buffer.put_async(first + number) for number in range(5)))

    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put_async")
        for first in (0, 5):
            asyncio.run(run(buffer, first))
    assert sorted(events_of(tmp_path)) == [("put", number) for number in range(10)]


def test_a_get_that_is_cancelled_behind_its_result_is_recorded(tmp_path: Path):
    async def run(buffer: Buffer) -> None:
        assert await asyncio.wait_for(buffer.get_async(), 30) == 1
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(buffer.get_async(), 0.01)

    buffer = Buffer()
    buffer.put(1)
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "get_async")
        asyncio.run(run(buffer))
    assert events_of(tmp_path) == [("take", 1)]


def test_an_object_is_attached_to_once_and_left_as_it_was(tmp_path: Path):
    buffer = Buffer()
    buffer.put = own = lambda group_id, step=1: "own"  # type: ignore[method-assign]
    with Recorder(tmp_path) as recorder:
        detach = attach(buffer, recorder, "put", "get")
        with pytest.raises(TypeError, match="attached to this buffer already: detach it first"):
            attach(buffer, recorder, "get")
        with pytest.raises(TypeError, match="attached to this executor already"):
            Hooks(recorder).attach(buffer, {"get": Hook(lambda _: None)}, noun="executor")
        detach()
        assert buffer.put is own
        assert "get" not in vars(buffer)
        again = attach(buffer, recorder, "put", "get")
        detach()
        assert buffer.put(1) == "own"
        again()
        buffer.put(2)
    assert events_of(tmp_path) == [("put", 1)]


def test_an_object_that_cannot_be_changed_is_refused(tmp_path: Path):
    class Fixed:
        __slots__ = ()

        def put(self, group_id: int) -> None: ...

    with Recorder(tmp_path) as recorder:
        with pytest.raises(TypeError, match="Fixed can't be recorded: its methods can't be replaced"):
            attach(Fixed(), recorder, "put")
        with pytest.raises(TypeError, match="Fixed has no method get"):
            attach(Fixed(), recorder, "put", "get")


def test_an_object_that_can_be_changed_in_part_stays_as_it_was(tmp_path: Path):
    class Half(Buffer):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "get":
                raise AttributeError("get is fixed")
            super().__setattr__(name, value)

    buffer, other = Half(), Buffer()
    with Recorder(tmp_path) as recorder:
        with pytest.raises(TypeError, match="get is fixed"):
            attach(buffer, recorder, "put", "get")
        hooks = Hooks(recorder)
        with pytest.raises(TypeError, match="get is fixed"):
            hooks.attach_all([(other, {"put": Hook(lambda _: None)}), (buffer, {"get": Hook(lambda _: None)})], "run")
        assert not vars(buffer).keys() & {"put", "get"}
        assert "put" not in vars(other)


def test_several_objects_are_detached_at_once_and_end_once(tmp_path: Path):
    async def run(buffer: Buffer, other: Buffer) -> None:
        waiting = asyncio.create_task(buffer.get_async())
        await asyncio.sleep(0)
        detach()
        detach()
        other.put(2)
        buffer.put(3)
        assert await waiting == 3

    buffer, other, ended = Buffer(), Buffer(), list[str]()
    with Recorder(tmp_path) as recorder:
        take = Hook(lambda _: lambda group_id: recorder.take(1, 1, rollout_ids=[group_id]))
        parts = [(buffer, {"get_async": take}), (other, {"put": Hook(lambda _: lambda _: ended.append("put"))})]
        detach = Hooks(recorder).attach_all(parts, "run", lambda: ended.append("end"))
        other.put(1)
        asyncio.run(run(buffer, other))
    # what ends behind the end of the recording is no part of it
    assert ended == ["put", "end"]
    assert events_of(tmp_path) == []


class Awaitable:
    """Can be awaited, by whoever has it."""

    def __await__(self) -> Any:
        yield
        return 1


def test_futures_of_a_method_stay_what_they_are(tmp_path: Path):
    class Later(Buffer):
        def put_later(self, group_id: int) -> Any:
            if group_id < 0:
                return Awaitable()
            if group_id == 9:
                return asyncio.create_task(asyncio.sleep(60))
            return asyncio.create_task(self.put_async(group_id))

        def put_in_pool(self, group_id: int) -> Any:
            return pool.submit(self.put, group_id)

    async def run(buffer: Later) -> None:
        task = buffer.put_later(1)
        assert isinstance(task, asyncio.Task)
        assert await task == "put 1"
        cancelled = buffer.put_later(9)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.warns(RuntimeWarning, match="returned a Awaitable, whose result only the trainer can see"):
            assert isinstance(buffer.put_later(-1), Awaitable)

    buffer = Later()
    with Recorder(tmp_path) as recorder, ThreadPoolExecutor(1) as pool:
        attach(buffer, recorder, "put_later", "put_in_pool")
        asyncio.run(run(buffer))
        assert buffer.put_in_pool(4).result(30) == "put 4"
        pool.shutdown()
        assert recorder.rejected_events == 1
    assert events_of(tmp_path) == [("put", 1), ("put", 4)]


def test_a_future_that_fails_is_not_marked_as_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async def fail() -> None:
        raise OSError("nobody looks")

    async def run(buffer: Any) -> None:
        buffer.put_later(1)
        await asyncio.sleep(0.01)
        gc.collect()

    buffer = Buffer()
    buffer.put_later = lambda group_id: asyncio.ensure_future(fail())  # type: ignore[method-assign]
    with Recorder(tmp_path) as recorder:
        attach(buffer, recorder, "put_later")
        asyncio.run(run(buffer))
    assert "Task exception was never retrieved" in caplog.text


def test_what_a_method_starts_in_the_background_is_recorded_when_the_method_is_over(tmp_path: Path):
    class Starting(Buffer):
        async def start(self) -> Any:
            return asyncio.create_task(self.serve())

        async def serve(self) -> None:
            for _ in range(3):
                await asyncio.sleep(0.001)
            self.put(5)

    async def run(buffer: Starting) -> None:
        await (await buffer.start())

    buffer = Starting()
    with Recorder(tmp_path) as recorder:
        hooks = Hooks(recorder)
        put = Hook(lambda got: lambda _: recorder.sync(got["group_id"], 1))
        hooks.attach_all([(buffer, {"start": Hook(lambda _: lambda _: recorder.refresh(1)), "put": put})], "run")
        asyncio.run(run(buffer))
    assert [(row["event"], row["train_step"]) for row in rows_of(tmp_path)] == [("refresh", 1), ("sync", 5)]


def test_a_method_is_recorded_also_inside_of_another_where_its_hook_says_so(tmp_path: Path):
    buffer = Buffer()
    with Recorder(tmp_path) as recorder:
        put = Hook(lambda got: lambda _: recorder.refresh(got["group_id"]), is_own=True)
        many = Hook(lambda got: lambda _: recorder.refresh(len(got["group_ids"])))
        Hooks(recorder).attach(buffer, {"put": put, "put_many": many})
        buffer.put_many([7, 8])
    assert [row["train_step"] for row in rows_of(tmp_path)] == [7, 8, 2]


@pytest.mark.parametrize("is_by_name", [False, True])
def test_arguments_have_their_names_where_a_subclass_passes_on_whatever_it_gets(is_by_name: bool, tmp_path: Path):
    class Any1(Buffer):
        def put(self, *args: Any, **kwargs: Any) -> str:
            return super().put(*args, **kwargs)

    class More(Buffer):
        def put(self, group_id: int, step: int = 1, *extra: int, **options: int) -> str:
            return super().put(group_id, step)

    class Unnamed:
        def put(self, *args: Any, **kwargs: Any) -> str:
            return "put 6"

    arguments: list[dict[str, Any]] = []
    with Recorder(tmp_path) as recorder:
        for buffer in (Any1(), More(), Unnamed()):
            Hooks(recorder).attach(buffer, {"put": Hook(lambda got: arguments.append(dict(got)))})
            assert (buffer.put(group_id=6) if is_by_name else buffer.put(6)) == "put 6"
        assert buffer.put(6, step=2) == "put 6"
    unnamed = "group_id" if is_by_name else "args 0"
    defaults = {"group_id": 6, "step": 1}
    assert arguments == [defaults, defaults, {unnamed: 6}, {"args 0": 6, "step": 2}]
