"""Calls of a sharded table while answers are lost and buckets move, without a cluster: the shards
are in this process, and a plain order of steps replaces the coordinator."""

import os
import random
import resource
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import forerun
import numpy as np
import pytest
from forerun import errors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun._forerun import _buckets, _ShardBatch  # noqa: E402
from forerun.ray import data_port, frames, shard_actor  # noqa: E402
from forerun.ray import session as session_module  # noqa: E402
from forerun.ray import shard as shard_module  # noqa: E402
from forerun.ray.connection import Connection  # noqa: E402
from forerun.ray.directory import Directory  # noqa: E402
from forerun.ray.frames import Op, Status  # noqa: E402
from forerun.ray.session import LostWritesWarning, Session, as_rows  # noqa: E402
from forerun.ray.session_pool import SessionPool  # noqa: E402
from forerun.ray.shard_map import BUCKETS, Place, ShardMap, even_owners  # noqa: E402
from forerun.ray.table import ShardedTable  # noqa: E402
from ray_local import DIM, Table, call, ones  # noqa: E402


@pytest.fixture
def table(tmp_path):
    table = Table(tmp_path, 3)
    yield table
    table.close()


@pytest.fixture
def loses_answers(monkeypatch):
    """Connections break before a request is sent, or after the shard has served it."""
    receive, send, numbers = Connection.receive, Connection.send, random.Random(4)

    def lossy_send(self, op, *args, **head):
        if op in (Op.ADD_AT, Op.FIND) and numbers.random() < 0.05:
            raise ConnectionResetError("the request is lost")
        return send(self, op, *args, **head)

    def lossy_receive(self, deadline):
        answer = receive(self, deadline)
        if answer[0].keys and numbers.random() < 0.1:
            raise ConnectionResetError("the answer is lost")
        return answer

    monkeypatch.setattr(Connection, "send", lossy_send)
    monkeypatch.setattr(Connection, "receive", lossy_receive)


def test_additions_are_applied_once_while_answers_are_lost_and_buckets_move(
    table, loses_answers, monkeypatch
):
    # Copies must not break: a coordinator would cancel their moves.
    monkeypatch.setattr("forerun.ray.session.PAUSE_S", 0.001)
    writers, count = 3, 600
    keys = np.arange(writers * count).reshape(writers, count)
    first = Session(table)
    call(first, Op.INSERT, keys, np.zeros((writers, count, DIM), np.int64))
    added, failures, stop = [0] * writers, [], threading.Event()

    def write(number):
        session = Session(table)
        try:
            while not stop.is_set():
                call(session, Op.ADD_AT, keys[number], ones(keys[number]))
                added[number] += 1
                before = added[number]
                rows, found = call(session, Op.FIND, keys[number])
                assert found.all() and (rows == before).all(), "lost, or applied twice"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    numbers, moves = random.Random(9), 0
    deadline = time.monotonic() + 60
    try:
        while (moves < 25 or min(added) < 25) and not failures and time.monotonic() < deadline:
            source, target = numbers.sample(range(3), 2)
            owned = np.flatnonzero(table.map.owned_by(source))
            buckets = np.zeros(BUCKETS, bool)
            buckets[owned[:: numbers.randint(1, 4)]] = True
            try:
                table.move(source, target, buckets, numbers.choice([None, None, 1, 2, 3]))
            except (errors.Error, OSError, frames.FrameError):
                # Its connection broke, as those of the writers do.
                table.map = table.next_map()
                for actor in (table.actors[source], *table.actors):
                    actor.install(1, table.map)
                table.actors[target].sweep(1)
            moves += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert moves >= 25 and min(added) >= 25
    rows, found = call(first, Op.FIND, keys)
    assert found.all()
    for number in range(writers):
        assert (rows[number] == added[number]).all()
    assert sum(actor._shard.count()[0] for actor in table.actors) == keys.size


def test_an_array_is_free_again_after_a_call_that_met_a_lost_connection(table, monkeypatch):
    session, keys = Session(table), np.arange(300)
    call(session, Op.INSERT, keys, ones(keys))
    receive, out, found = Connection.receive, np.zeros((300, DIM), np.int64), np.zeros(300, bool)
    lost = []

    def loses_one(self, deadline):
        answer = receive(self, deadline)
        if not lost:
            error = ConnectionResetError("the answer is lost")
            # Kept by its own frame, as those of Ray are, until the garbage is collected.
            lost.append(error)
            raise error
        return answer

    monkeypatch.setattr(Connection, "receive", loses_one)
    for _ in range(2):
        # The second call is refused if anything of the first one still has its arrays.
        batch = _ShardBatch(keys, DIM, "int64", out=out, found=found, fills=True)
        session.run(Op.FIND, batch, time.monotonic() + 60)
        del batch
        assert found.all() and (out == 1).all()
    assert len(lost) == 1


def test_an_array_is_free_again_in_the_handler_of_an_error(table, monkeypatch):
    handle = ShardedTable.__new__(ShardedTable)
    handle._timeout_ms, handle._process = 60_000, os.getpid()
    handle._directory, handle._sessions = table, SessionPool(table)
    table.config = SimpleNamespace(dim=DIM, dtype="int64")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    keys, out = np.arange(300), np.zeros((300, DIM), np.int64)
    handle.insert(keys, ones(keys))

    def away(shard, until):
        raise ConnectionError(f"shard {shard} is away")

    for session in handle._sessions._idle:
        session.drop()
    with monkeypatch.context() as patch:
        patch.setattr(table, "endpoint", away)
        handle._timeout_ms = 100
        with pytest.raises(errors.PartialError, match="is away") as caught:
            handle.find(keys, out=out)
    handle._timeout_ms = 60_000
    # The exception is kept, and says what happened.
    assert len(caught.value.positions) == 300 and caught.value.__cause__ is not None
    assert handle.find(keys, out=out)[1].all() and (out == 1).all()
    assert handle.contains(keys).all() and handle.add_at(keys, ones(keys)).all()
    assert handle.assign(keys, ones(keys)).all()
    handle.erase(keys)
    assert not handle.contains(keys).any()
    handle.close()


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bfloat16", "float64"])
def test_every_type_comes_back_and_adds(tmp_path, dtype):
    table, one, keys = Table(tmp_path, 2, dtype), forerun.Table(DIM, dtype), np.arange(10)
    rows = np.arange(20).reshape(10, DIM).astype(np.uint16 if dtype == "bfloat16" else dtype)
    session = Session(table)
    for op in (Op.INSERT, Op.ADD_AT):
        session.run(op, _ShardBatch(keys, DIM, dtype, rows=rows), time.monotonic() + 60)
    one.insert(keys, rows)
    one.add_at(keys, rows)
    batch = _ShardBatch(keys, DIM, dtype, fills=True)
    session.run(Op.FIND, batch, time.monotonic() + 60)
    back, expected = batch.results()[0], one.find(keys)[0]
    assert back.dtype == expected.dtype and (back == expected).all()
    for actor in table.actors:
        with Connection(actor.endpoint(), time.monotonic() + 10) as connection:
            connection.export(np.ones(BUCKETS, bool), 4)
            for exported, rows in connection.exported():
                assert (as_rows(rows, DIM, dtype) == one.find(exported)[0]).all()
    table.close()


def test_a_shard_that_hangs_fails_its_own_keys_only(table, monkeypatch):
    # Several frames for each shard.
    monkeypatch.setattr(frames, "FRAME_KEYS_MAX", 500)
    session, keys = Session(table), np.arange(9000)
    call(session, Op.INSERT, keys, ones(keys))
    hung, find = threading.Event(), table.actors[1]._shard.table.find

    class Hangs:
        def __getattr__(self, name):
            return getattr(find.__self__, name)

        def find(self, *args):
            hung.wait(30)
            return find(*args)

    monkeypatch.setattr(table.actors[1]._shard, "table", Hangs())
    try:
        with pytest.raises(errors.PartialError, match="shard 1") as caught:
            call(session, Op.FIND, keys, timeout=1.5)
    finally:
        hung.set()
    owners = table.map.owners[_buckets(keys.astype(np.uint64), table.map.seed)]
    assert caught.value.positions == np.flatnonzero(owners == 1).tolist()
    # The late answer is not taken for that of another request.
    rows, found = call(session, Op.FIND, keys)
    assert found.all() and (rows == 1).all()


def test_a_shard_that_takes_no_bytes_fails_its_own_keys_only(tmp_path, monkeypatch):
    dim, keys = 512, np.arange(3000)
    table = Table(tmp_path, 3, dim=dim)
    rows = np.repeat(keys[:, None], dim, axis=1)
    listener, hung = socket.create_server(("127.0.0.1", 0)), threading.Event()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def serve():
        peer, _ = listener.accept()
        with peer:
            peer.recv(frames.HELLO.size, socket.MSG_WAITALL)
            peer.sendall(frames.WELCOME.pack(frames.MAGIC, frames.VERSION, frames.WELCOMED))
            # It reads nothing more.
            hung.wait(30)

    thread, endpoint = threading.Thread(target=serve), table.endpoint
    thread.start()
    address = listener.getsockname()[:2]

    def endpoint_of(shard, until):
        found, actor = endpoint(shard, until)
        is_hung = shard == 0 and not hung.is_set()
        return (found._replace(host=address[0], port=address[1]) if is_hung else found), actor

    monkeypatch.setattr(table, "endpoint", endpoint_of)
    session = Session(table)

    def insert(timeout):
        batch = _ShardBatch(keys.astype(np.uint64), dim, "int64", rows=rows)
        session.run(Op.INSERT, batch, time.monotonic() + timeout)

    # The frame of the first shard, 4 MiB, does not fit into the buffers of its connection.
    began = time.monotonic()
    try:
        with pytest.raises(errors.PartialError, match="shard 0") as caught:
            insert(2)
    finally:
        hung.set()
        thread.join()
        listener.close()
    assert time.monotonic() - began < 5
    owners = table.map.owners[_buckets(keys.astype(np.uint64), table.map.seed)]
    assert caught.value.positions == np.flatnonzero(owners == 0).tolist()
    counts = [actor._shard.count()[0] for actor in table.actors]
    assert counts == [0, *np.bincount(owners)[1:]]
    insert(60)
    batch = _ShardBatch(keys.astype(np.uint64), dim, "int64", fills=True)
    session.run(Op.FIND, batch, time.monotonic() + 60)
    back, found = batch.results()
    assert found.all() and (back == rows).all()
    table.close()


def test_keys_fail_by_position_if_no_newer_map_can_be_had(table, monkeypatch):
    session, keys = Session(table), np.arange(300)
    call(session, Op.INSERT, keys, ones(keys))
    moving = table.map.owned_by(2)
    table.actors[2].freeze(1, moving, 2, 0, 60.0)

    def away(known, deadline):
        raise errors.ServerError("the coordinator did not answer in time")

    monkeypatch.setattr(table, "newer_map", away)
    with pytest.raises(errors.PartialError, match="coordinator") as caught:
        call(session, Op.FIND, keys)
    buckets = _buckets(keys.astype(np.uint64), table.map.seed)
    assert caught.value.positions == np.flatnonzero(moving[buckets]).tolist()


def test_a_copy_of_a_move_that_has_ended_takes_nothing(table):
    giver, taker = table.actors[0], table.actors[1]
    keys = np.arange(3000)
    call(Session(table), Op.INSERT, keys, ones(keys))
    buckets, before = table.map.owned_by(0), len(taker._shard.table)
    first = taker.expect_foreign(1, table.map)
    # Its coordinator has ended, and another one tries the same move.
    second = taker.expect_foreign(2, table.map)
    with pytest.raises(errors.Error, match="has ended"):
        taker.copy(first, giver.endpoint(), buckets)
    assert len(taker._shard.table) == before
    assert taker.copy(second, giver.endpoint(), buckets) == giver._shard.count()[0]
    # The move is cancelled.
    taker.install(2, table.next_map())
    giver.begin_move(2, buckets)
    call(Session(table), Op.INSERT, keys, ones(keys))
    with pytest.raises(errors.Error, match="has ended"):
        taker.catch_up(second, giver.endpoint())
    taker.sweep(2)
    assert len(taker._shard.table) == before


def test_a_handle_leaves_a_shard_that_was_restored_elsewhere(tmp_path):
    """Although the former process still answers: Ray ends it some time after its node is gone."""
    table, keys = Table(tmp_path / "lost", 1), np.arange(300)
    session = Session(table)
    call(session, Op.INSERT, keys, ones(keys))
    lost = table.actors[0]
    table.actors[0] = Table.actor(tmp_path / "restored", 0, generation=1)
    table.map = replace(table.map, version=2, places=(Place(1, "elsewhere"),))
    table.actors[0].install(1, table.map)
    reported = []
    table.report_lost = lambda *report: reported.append(report)
    try:
        with pytest.warns(LostWritesWarning, match="1 writes of 300 keys"):
            assert not call(session, Op.FIND, keys)[1].any()
        assert reported == [(session.client.hex(), 0, 1, 300)]
        call(session, Op.INSERT, keys, ones(keys))
        assert len(table.actors[0]._shard.table) == 300
        assert lost._shard.keys_written == 300
    finally:
        lost.close()
        table.close()


def test_a_shard_is_reached_although_each_answer_takes_longer_than_the_first_attempt(
    table, monkeypatch
):
    """As on a machine with far too much work."""
    monkeypatch.setattr(session_module, "CONNECT_S", 0.05)
    session, keys, reach = Session(table), np.arange(300), table.endpoint

    def slow(shard, until):
        if until - time.monotonic() < 0.3:
            raise TimeoutError("no answer yet")
        return reach(shard, until)

    table.endpoint = slow
    call(session, Op.INSERT, keys, ones(keys), timeout=20)
    assert call(session, Op.FIND, keys, timeout=20)[1].all()


def test_an_answer_that_comes_after_its_attempt_counts_for_the_next_one(monkeypatch):
    asked, slow = [], [True, True, False]

    class Method:
        @staticmethod
        def remote():
            asked.append(object())
            return asked[-1]

    class Actor:
        endpoint = Method

    def get(answer, timeout):
        if answer in asked and slow.pop(0):
            raise ray.exceptions.GetTimeoutError("not yet")
        return answer

    monkeypatch.setattr(ray, "get", get)
    directory = Directory.__new__(Directory)
    directory.map = ShardMap(1, 5, even_owners(1), (Place(0, "here"),))
    directory._actors, directory._asked = {(0, 0): Actor}, {}
    directory.ray_connection = SimpleNamespace(check=lambda: None)
    monkeypatch.setattr(directory, "ask", lambda method, timeout: directory.map)
    monkeypatch.setattr(directory, "take", lambda new: None)
    for _ in range(2):
        with pytest.raises(ray.exceptions.GetTimeoutError):
            directory.endpoint(0, time.monotonic() + 1)
    assert directory.endpoint(0, time.monotonic() + 1) == (asked[0], Actor) and len(asked) == 1
    # The next question is a new one: the shard may have a new process.
    slow.append(False)
    assert directory.endpoint(0, time.monotonic() + 1)[0] is asked[1]


def test_records_of_clients_that_ended_without_a_word_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_module, "CLIENT_RETENTION_S", 0)
    monkeypatch.setattr(shard_module, "FORGET_EVERY_S", 0.05)
    table = Table(tmp_path, 1)
    session = Session(table)
    call(session, Op.INSERT, [1], ones([1]))
    session.drop()
    deadline = time.monotonic() + 10
    while table.actors[0]._shard.table._applied(session.client) is not None:
        assert time.monotonic() < deadline, "the record is still there"
        time.sleep(0.05)
    table.close()


def test_an_export_by_calls_of_the_actor_ends_with_its_caller(table, monkeypatch):
    actor, keys = table.actors[0], np.arange(5000)
    call(Session(table), Op.INSERT, keys, ones(keys))

    def ask(op, client, body=b"", argument=0):
        head = frames.Request(len(body), op, 1, 1, client, 0, 0, argument)
        answer = actor.frame(head.pack() + body)
        return frames.parse_answer(answer[: frames.ANSWER.size], 1, table.row_bytes)

    everything = bytes([255]) * frames.BITMAP_BYTES
    clients = [bytes([n]) * 16 for n in range(1, 5)]
    for client in clients:
        assert ask(Op.EXPORT, client, everything, 10).status == Status.OK
        assert ask(Op.EXPORT_NEXT, client).keys > 0
    assert list(actor._sessions) == clients
    ask(Op.EXPORT_END, clients[0])
    while ask(Op.EXPORT_NEXT, clients[1]).keys:
        pass
    assert list(actor._sessions) == clients[2:]
    # Their callers have ended without a word.
    monkeypatch.setattr(shard_actor, "EXPORT_IDLE_S", -1.0)
    ask(Op.COUNT, clients[0])
    assert not actor._sessions


def test_a_port_listens_on_addresses_of_both_families(tmp_path):
    for number, bind in enumerate(["127.0.0.1", "localhost", "::1"]):
        try:
            actor = Table.actor(tmp_path, number, bind=bind)
        except OSError as error:
            assert bind == "::1", error
            pytest.skip("this machine has no IPv6")
        actor.install(1, ShardMap(1, 5, even_owners(1), (Place(0, "here"),)))
        endpoint = actor.endpoint()
        assert (":" in endpoint.host) == (bind == "::1")
        with Connection(endpoint, time.monotonic() + 10) as connection:
            assert connection.ask(Op.FLUSH)[0].status == Status.OK
        actor.close()


def test_a_shard_with_all_its_connections_in_use_says_so(tmp_path):
    table = Table(tmp_path, 1, connections_max=2)
    first, second, third = (Session(table) for _ in range(3))
    for session in (first, second):
        call(session, Op.INSERT, [1], ones([1]))
    with pytest.raises(errors.PartialError, match="connections_max"):
        call(third, Op.FIND, [1], timeout=1.5)
    # A place becomes free.
    first.close()
    assert call(third, Op.FIND, [1])[1].all()
    table.close()


def test_a_shard_may_open_a_descriptor_for_each_of_its_connections(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        Table(tmp_path, 1).close()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert soft >= data_port.CONNECTIONS_MAX or soft == before[1]


def test_a_silent_connection_takes_no_memory(table, monkeypatch):
    sessions, shard = [], table.actors[0]._shard
    begin = shard.session
    monkeypatch.setattr(shard, "session", lambda: sessions.append(begin()) or sessions[-1])
    session = Session(table)
    call(session, Op.INSERT, [1, 2, 3], ones([1, 2, 3]))
    # The time-out of the connection that waits is set before each frame.
    monkeypatch.setattr(data_port, "FRAME_S", 0.1)
    call(session, Op.FIND, np.arange(900))
    call(session, Op.FIND, np.arange(900))
    (of_shard,) = sessions
    deadline = time.monotonic() + 10
    while len(of_shard._answer) > 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert call(session, Op.FIND, [1, 2, 3])[1].all()


def test_damaged_frames_cost_their_connection_only(table):
    """Valid requests in which bytes were changed, cut off and repeated."""
    shard, numbers = table.actors[0]._shard, random.Random(8)
    keys = np.arange(64, dtype=np.uint64)
    keys = keys[table.map.owners[_buckets(keys, table.map.seed)] == 0]
    shard.table.insert(keys, np.zeros((len(keys), DIM), np.int64))
    endpoint = table.actors[0].endpoint()
    body = keys.tobytes()
    requests = [
        frames.Request(len(body), Op.FIND, 1, 1, bytes(16), 0, len(keys), 0).pack() + body,
        frames.Request(len(body), Op.CONTAINS, 1, 1, bytes(16), 0, len(keys), 0).pack() + body,
        frames.Request(0, Op.COUNT, 1, 1, bytes(16), 0, 0, 0).pack(),
        frames.Request(0, Op.STATS, 1, 1, bytes(16), 0, 0, 0).pack(),
        frames.Request(128, Op.EXPORT, 1, 1, bytes(16), 0, 0, 9).pack() + bytes(128),
        frames.Request(0, Op.EXPORT_NEXT, 1, 1, bytes(16), 0, 0, 0).pack(),
        frames.Request(0, Op.CHANGES, 1, 1, bytes(16), 0, 0, 0).pack(),
    ]
    for _ in range(300):
        data = bytearray(numbers.choice(requests))
        for _ in range(numbers.randint(1, 4)):
            data[numbers.randrange(len(data))] = numbers.choice([0, 1, 2, 7, 127, 128, 255])
        data = bytes(data[: numbers.randint(1, len(data))] if numbers.random() < 0.3 else data)
        wire = Connection(endpoint, time.monotonic() + 10)._wire._socket
        wire.settimeout(20)
        try:
            wire.sendall(data * numbers.randint(1, 2))
            wire.shutdown(socket.SHUT_WR)
            while wire.recv(1 << 16):
                pass
        except OSError as error:
            # The shard has closed it already.
            assert not isinstance(error, TimeoutError)
        wire.close()
    with Connection(endpoint, time.monotonic() + 10) as connection:
        answer, _ = connection.ask(Op.FLUSH)
        assert answer.status == Status.OK
    assert shard.table.contains(keys).all()
