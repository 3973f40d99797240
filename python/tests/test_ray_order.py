"""The order of writes of a sharded table's handle, when the frame of a call that failed is still on
its way. Without a cluster: the frame is kept here, and delivered when the test says so."""

import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from forerun import errors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun.ray import data_port  # noqa: E402
from forerun.ray.connection import Connection  # noqa: E402
from forerun.ray.data_port import DataPort  # noqa: E402
from forerun.ray.frames import Op, Status  # noqa: E402
from forerun.ray.session_pool import SessionPool  # noqa: E402
from forerun.ray.table import ShardedTable  # noqa: E402
from ray_local import DIM, Table  # noqa: E402

KEYS = np.arange(100)


def rows(value):
    return np.full((len(KEYS), DIM), value, np.int64)


WRITES = {
    Op.INSERT: (lambda table: table.insert(KEYS, rows(1)), lambda value: 1),
    Op.ASSIGN: (lambda table: table.assign(KEYS, rows(1)), lambda value: 1),
    Op.ADD_AT: (lambda table: table.add_at(KEYS, rows(1)), lambda value: value + 1),
    Op.ERASE: (lambda table: table.erase(KEYS), lambda value: None),
}


class Late:
    """Keeps frames of one kind of write instead of sending them, and delivers them later."""

    def __init__(self, monkeypatch):
        self.op, self.frames = None, []
        send = Connection.send

        def keep(connection, op, body, count, **head):
            if op is self.op:
                self.frames.append((connection.endpoint, op, b"".join(body), count, head))
                raise TimeoutError("no answer came in time")
            return send(connection, op, body, count, **head)

        monkeypatch.setattr(Connection, "send", keep)

    def deliver(self):
        """Returns the statuses of the answers."""
        self.op, statuses = None, []
        for endpoint, op, body, count, head in self.frames:
            with Connection(endpoint, time.monotonic() + 30) as connection:
                parts = [memoryview(body)] if body else []
                connection.send(op, parts, count, **head)
                statuses.append(connection.receive(time.monotonic() + 30)[0].status)
        return statuses


@pytest.fixture
def late(monkeypatch):
    return Late(monkeypatch)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    table = Table(tmp_path, 1)
    table.config = SimpleNamespace(dim=DIM, dtype="int64")
    yield table
    table.close()


def handle_on(shards, timeout_ms=60_000):
    handle = ShardedTable.__new__(ShardedTable)
    handle._timeout_ms, handle._process = timeout_ms, os.getpid()
    handle._directory, handle._sessions = shards, SessionPool(shards)
    return handle


def fails(handle, late, op):
    """A call that times out; its frames are late."""
    late.op, handle._timeout_ms = op, 200
    with pytest.raises(errors.PartialError):
        WRITES[op][0](handle)
    handle._timeout_ms = 60_000
    late.op = None
    assert late.frames


def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def values(handle):
    found_rows, found = handle.find(KEYS)
    return {int(row[0]) if is_found else None for row, is_found in zip(found_rows, found)}


@pytest.mark.parametrize("op", WRITES)
@pytest.mark.parametrize("other", ["another thread", "another session", "the same thread"])
def test_a_late_frame_of_a_failed_write_does_not_follow_a_later_write(shards, late, op, other):
    handle = handle_on(shards)
    handle.insert(KEYS, rows(5))
    fails(handle, late, op)
    write = lambda: handle.insert(KEYS, rows(7))  # noqa: E731
    if other == "another session":
        # The one of the failed call is in use.
        with handle._sessions.session():
            write()
    elif other == "another thread":
        in_a_thread(write)
    else:
        write()
    assert Status.OK not in late.deliver()
    assert values(handle) == {7}
    # The session of the failed call goes on.
    handle.add_at(KEYS, rows(1))
    assert values(handle) == {8}
    handle.close()


@pytest.mark.parametrize("op", WRITES)
def test_a_late_frame_that_comes_before_a_later_write_is_applied_once(shards, late, op):
    handle = handle_on(shards)
    handle.insert(KEYS, rows(5))
    fails(handle, late, op)
    assert set(late.deliver()) == {Status.OK}
    expected = WRITES[op][1](5)
    assert values(handle) == {expected}
    late.deliver()
    assert values(handle) == {expected}
    handle.insert(KEYS, rows(7))
    late.deliver()
    assert values(handle) == {7}
    handle.close()


def test_a_write_that_is_given_up_while_another_one_runs_does_not_follow_it(shards, late):
    handle = handle_on(shards)
    handle.insert(KEYS, rows(5))
    receive, is_given_up = Connection.receive, []

    def gives_up_meanwhile(connection, deadline):
        answer = receive(connection, deadline)
        if not is_given_up:
            is_given_up.append(True)
            in_a_thread(lambda: fails(handle, late, Op.INSERT))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "receive", gives_up_meanwhile)
        handle.add_at(KEYS, rows(2))
    assert is_given_up and Status.OK not in late.deliver()
    assert values(handle) == {7}
    handle.close()


def test_an_interrupted_write_does_not_follow_a_later_one(shards, late):
    handle = handle_on(shards)
    handle.insert(KEYS, rows(5))
    send = Connection.send

    def interrupted(connection, op, body, count, **head):
        late.frames.append((connection.endpoint, op, b"".join(body), count, head))
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handle.insert(KEYS, rows(1))
    assert Connection.send is send
    handle.insert(KEYS, rows(7))
    assert Status.OK not in late.deliver()
    assert values(handle) == {7}
    handle.close()


def test_a_late_frame_is_not_applied_after_its_handle_was_closed(shards, late):
    first, second = handle_on(shards), handle_on(shards)
    first.insert(KEYS, rows(5))
    fails(first, late, Op.INSERT)
    for session in first._sessions._idle:
        session.link(0).reset(TimeoutError("no answer"))
    first.close()
    second.insert(KEYS, rows(7))
    assert Status.OK not in late.deliver()
    assert values(second) == {7}
    second.close()


def test_a_shard_drops_a_write_whose_client_has_closed_the_connection(shards, monkeypatch):
    """Also if the shard hung when the handle was closed, so that it did not hear of it."""
    handle = handle_on(shards)
    handle.insert(KEYS, rows(5))
    arrived, goes_on = threading.Event(), threading.Event()
    serve, ended = DataPort._serve, threading.Event()
    receive, hung = data_port.receive, []

    def hangs(connection, into, deadline):
        if len(into) == len(KEYS) * 8 * (1 + DIM):
            hung.append(threading.get_ident())
            arrived.set()
            goes_on.wait(30)
        return receive(connection, into, deadline)

    def watched(self, connection):
        try:
            serve(self, connection)
        finally:
            if threading.get_ident() in hung:
                ended.set()

    monkeypatch.setattr(DataPort, "_serve", watched)
    monkeypatch.setattr(data_port, "receive", hangs)
    with pytest.raises(errors.PartialError):
        handle_on(shards, timeout_ms=1000).insert(KEYS, rows(1))
    assert arrived.is_set()
    monkeypatch.setattr(data_port, "receive", receive)
    goes_on.set()
    assert ended.wait(30)
    assert values(handle) == {5}
    handle.close()
