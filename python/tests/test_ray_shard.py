"""The parts of `forerun.ray` that need no cluster: a shard, its data port, the map."""

import os
import socket
import threading
import time

import numpy as np
import pytest
from forerun import errors

pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun._forerun import _buckets  # noqa: E402
from forerun.ray import frames  # noqa: E402
from forerun.ray.bucket_lock import BucketLock  # noqa: E402
from forerun.ray.connection import Connection, Endpoint  # noqa: E402
from forerun.ray.data_port import DataPort  # noqa: E402
from forerun.ray.frames import Op, Status  # noqa: E402
from forerun.ray.session import Link  # noqa: E402
from forerun.ray.shard import Shard  # noqa: E402
from forerun.ray.shard_map import (  # noqa: E402
    BUCKETS,
    Place,
    ShardMap,
    ShardState,
    even_owners,
    plan,
)
from forerun.ray.table_config import ShardConfig  # noqa: E402
from forerun.ray.unsaved_keys import UnsavedKeys  # noqa: E402


def rows_of(keys, dim=4):
    """Rows that carry their key."""
    return np.repeat(np.asarray(keys, np.float32)[..., None], dim, axis=-1)



def shard_config(path, **options):
    settings = {
        "table": "t",
        "shard": 0,
        "generation": 0,
        "dim": 4,
        "dtype": "float32",
        "path": str(path),
        "bind": "127.0.0.1",
        "backups": None,
        "restores": False,
    }
    return ShardConfig(**{**settings, **options})


def map_of(shards, version=1):
    places = tuple(Place(0, "here") for _ in range(shards))
    return ShardMap(version, 5, even_owners(shards), places)


@pytest.fixture
def shard(tmp_path):
    shard = Shard(shard_config(tmp_path / "shards"))
    shard.install(1, map_of(1))
    yield shard
    shard.close()


@pytest.fixture
def port(shard):
    port = DataPort(shard, "127.0.0.1", connections_max=8, hellos_max=4)
    yield port
    port.close()


def endpoint_of(port, shard):
    return Endpoint(*port.address, port.token, 0, shard.row_bytes)


def connected(port, shard):
    return Connection(endpoint_of(port, shard), time.monotonic() + 10)


def await_connections(port, count):
    """Waits until the port has so many connections, or fewer."""
    deadline = time.monotonic() + 10
    while port.connections > count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ask(connection, op, keys, rows=None, **head):
    keys = np.asarray(keys, np.uint64)
    body = [keys.data.cast("B")] if len(keys) else []
    if rows is not None:
        body.append(memoryview(np.asarray(rows, np.float32).view(np.uint8).reshape(-1)))
    connection.send(op, body, len(keys), **head)
    answer, found = connection.receive(time.monotonic() + 10)
    return answer, found.copy()


def test_a_repeated_write_is_answered_as_the_first_time(port, shard):
    client = bytes(range(16))
    with connected(port, shard) as connection:
        ask(connection, Op.INSERT, [1, 2], np.zeros((2, 4)), client=client, sequence=1)
    for _ in range(3):
        # Each time as if the connection had broken before the answer came.
        with connected(port, shard) as connection:
            head = {"client": client, "sequence": 2}
            answer, body = ask(connection, Op.ADD_AT, [1, 9, 2], np.ones((3, 4)), **head)
            assert answer.status == Status.OK and body.tolist() == [1, 0, 1]
    assert shard.table[1].tolist() == [1] * 4
    with connected(port, shard) as connection:
        late = ask(connection, Op.ADD_AT, [1], np.ones((1, 4)), client=client, sequence=1)
        assert late[0].status == Status.FAILED and b"superseded" in bytes(late[1])
    assert shard.table[1].tolist() == [1] * 4


def test_a_late_attempt_of_a_write_is_not_applied_after_its_client_has_ended(port, shard):
    client, ones = bytes(range(16)), np.ones((1, 4))
    shard.table.insert([1], np.zeros((1, 4), np.float32))
    head = {"client": client, "sequence": 1}
    with connected(port, shard) as late, connected(port, shard) as connection:
        # Both attempts were sent. One is answered, and its client has ended when the other one,
        # whose connection the client gave up, is read.
        assert ask(connection, Op.ADD_AT, [1], ones, **head)[0].status == Status.OK
        assert ask(connection, Op.FORGET, [], client=client)[0].status == Status.OK
        assert shard.table._applied(client) is None
        assert ask(late, Op.ADD_AT, [1], ones, **head)[0].status == Status.MOVED
    assert shard.table[1].tolist() == [1] * 4


def test_a_write_that_was_sent_elsewhere_is_never_applied_here(port, shard):
    client, ones = bytes(range(16)), np.ones((1, 4))
    shard.table.insert([1, 2], np.zeros((2, 4), np.float32))
    with connected(port, shard) as connection:
        head = {"client": client, "sequence": 1}
        assert ask(connection, Op.ADD_AT, [1], ones, **head)[0].status == Status.OK
        shard.freeze(1, np.ones(BUCKETS, bool), 2, 0, 60.0)
        # It was applied before the buckets left.
        answer, body = ask(connection, Op.ADD_AT, [1], ones, **head)
        assert (answer.status, body.tolist()) == (Status.OK, [1])
        head["sequence"] = 2
        answer, _ = ask(connection, Op.ADD_AT, [2], ones, **head)
        assert (answer.status, answer.keys, answer.map_version) == (Status.MOVED, 0, 2)
        assert ask(connection, Op.FIND, [1])[0].status == Status.MOVED
        # The move is cancelled. The client may have taken its write elsewhere meanwhile.
        shard.install(1, map_of(1, version=3))
        assert ask(connection, Op.ADD_AT, [2], ones, **head)[0].status == Status.MOVED
        head["sequence"] = 3
        assert ask(connection, Op.ADD_AT, [2], ones, **head)[0].status == Status.OK
    assert shard.table[2].tolist() == [1] * 4


def test_a_hostile_peer_costs_a_connection_only(port, shard):
    shard.table.insert([1], [[1, 2, 3, 4]])
    hello = frames.HELLO.pack(frames.MAGIC, frames.VERSION, port.token)

    def send(hello, request=b"", is_end=False):
        """What comes back before the shard closes the connection."""
        with socket.create_connection(port.address, timeout=20) as peer:
            answer = b""
            try:
                peer.sendall(hello)
                if request:
                    # What is unread when the shard closes would reset the connection.
                    answer = peer.recv(frames.WELCOME.size, socket.MSG_WAITALL)
                    peer.sendall(request)
                if is_end:
                    peer.shutdown(socket.SHUT_WR)
                while part := peer.recv(4096):
                    answer += part
            except OSError as error:
                assert not isinstance(error, TimeoutError)
            return answer

    refused = frames.WELCOME.pack(frames.MAGIC, frames.VERSION, frames.REFUSED)
    welcome = frames.WELCOME.pack(frames.MAGIC, frames.VERSION, frames.WELCOMED)
    wrong = frames.HELLO.pack(frames.MAGIC, frames.VERSION, bytes(32))
    assert send(wrong) == refused
    assert send(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".ljust(48)) == refused
    assert send(frames.HELLO.pack(frames.MAGIC, 2, port.token)) == refused
    assert send(b"", is_end=True) == b"" and send(hello[:20], is_end=True) == b""

    def head(op, body_bytes, count, client=bytes(16), sequence=0):
        return frames.REQUEST.pack(body_bytes, op, 1, 1, client, sequence, count, 0)

    key = (7).to_bytes(8, "little")
    for request in (
        head(0, 0, 0),
        head(99, 0, 0),
        head(Op.FIND, 2**32 - 1, 2**32 - 1),
        head(Op.FIND, 8, 2**29 + 1),
        head(Op.FIND, 8 * 8193, 8193),
        head(Op.FIND, 9, 1) + bytes(9),
        head(Op.INSERT, 8, 1) + key,
        head(Op.INSERT, 24, 1) + key + bytes(16),
        head(Op.INSERT, 24, 1, client=bytes(range(16))) + key + bytes(16),
        head(Op.FLUSH, 8, 1) + key,
        head(Op.EXPORT, 3, 0) + bytes(3),
    ):
        assert send(hello, request) == welcome, request
    # In the middle of a head, and of a body.
    assert send(hello, head(Op.FIND, 8, 1)[:30], is_end=True) == welcome
    assert send(hello, head(Op.FIND, 80, 10) + bytes(50), is_end=True) == welcome
    random = np.random.default_rng(3)
    for _ in range(50):
        assert send(hello, random.bytes(200), is_end=True)[:16] == welcome
    # Silent peers do not keep others out.
    silent = [socket.create_connection(port.address) for _ in range(20)]
    with connected(port, shard) as connection:
        answer, body = ask(connection, Op.FIND, [1])
        assert answer.status == Status.OK
        assert body[8:].view(np.float32).tolist() == [1, 2, 3, 4]
    for peer in silent:
        peer.close()
    # There is a limit of connections, and a place becomes free. Those from before have ended here;
    # the shard may notice it later.
    await_connections(port, 0)
    many = [connected(port, shard) for _ in range(8)]
    with pytest.raises(errors.ServerError, match="connections_max"):
        connected(port, shard)
    many.pop().close()
    await_connections(port, 7)
    many.append(connected(port, shard))
    for connection in many:
        connection.close()
    await_connections(port, 0)
    assert len(shard.table) == 1
    names = [thread.name for thread in threading.enumerate()]
    deadline = time.monotonic() + 10
    while any(t.name == "forerun-shard" for t in threading.enumerate()):
        assert time.monotonic() < deadline, names
        time.sleep(0.01)


def test_a_hostile_shard_is_an_error_of_the_connection(shard):
    """A client checks lengths before it takes memory for an answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    welcome = frames.WELCOME.pack(frames.MAGIC, frames.VERSION, frames.WELCOMED)
    answers = [
        frames.ANSWER.pack(2**32 - 1, 0, 1, 1, 1),
        frames.ANSWER.pack(0, 0, 7, 1, 1),
        frames.ANSWER.pack(0, 0, 1, 1, 2**32 - 1),
        b"nothing",
    ]

    def serve():
        for answer in answers:
            peer, _ = listener.accept()
            with peer:
                peer.recv(48, socket.MSG_WAITALL)
                peer.sendall(welcome)
                peer.recv(64, socket.MSG_WAITALL)
                peer.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    endpoint = Endpoint(*listener.getsockname()[:2], bytes(32), 0, shard.row_bytes)
    for _ in answers:
        with Connection(endpoint, time.monotonic() + 10) as connection:
            with pytest.raises(frames.FrameError):
                ask(connection, Op.FIND, [1])
    thread.join()
    listener.close()


def test_an_export_has_the_buckets_it_names(port, shard):
    keys = np.arange(20_000, dtype=np.uint64)
    shard.table.insert(keys, rows_of(keys, dim=4))
    half = np.arange(BUCKETS) % 2 == 0
    with connected(port, shard) as connection:
        assert (connection.export(half, 1000) == half).all()
        batches = [(keys, rows) for keys, rows in connection.exported()]
        exported = np.concatenate([keys for keys, _ in batches])
        assert (np.sort(exported) == keys[half[_buckets(keys, 5)]]).all()
        rows = np.concatenate([rows.view(np.float32).reshape(-1, 4) for _, rows in batches])
        assert (rows == rows_of(exported, dim=4)).all()
        with pytest.raises(errors.NotFoundError):
            connection.changes()


def test_a_map_that_cannot_be_written_is_not_in_force(port, shard, monkeypatch):
    shard.table.insert([1], [[1, 2, 3, 4]])
    moved = map_of(2, version=2)

    def fails(*_):
        raise OSError(28, "No space left on device")

    for change in (
        lambda: shard.install(1, moved),
        lambda: shard.freeze(1, np.ones(BUCKETS, bool), 2, 0, 60.0),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fails)
            with pytest.raises(OSError):
                change()
        assert shard.state.map.version == 1 and shard.state.frozen_version == 0
        assert ShardState.load(shard.config.directory).map.version == 1
        with connected(port, shard) as connection:
            assert ask(connection, Op.FIND, [1])[0].status == Status.OK


def test_an_old_coordinator_is_refused(shard):
    shard.install(3, map_of(1, version=2))
    with pytest.raises(errors.Error, match="replaced"):
        shard.install(2, map_of(1, version=5))
    shard.install(3, map_of(1, version=1))
    assert shard.state.map.version == 2


def test_a_late_map_does_not_serve_buckets_that_were_frozen_since(port, shard):
    shard.table.insert([1], [[1, 2, 3, 4]])
    shard.freeze(1, np.ones(BUCKETS, bool), 3, 0, 60.0)
    with connected(port, shard) as connection:
        for version in (1, 2):
            shard.install(1, map_of(1, version))
            assert ask(connection, Op.FIND, [1])[0].status == Status.MOVED
        shard.install(1, map_of(1, version=4))
        assert ask(connection, Op.FIND, [1])[0].status == Status.OK


def test_keys_without_a_backup_are_counted_over_processes_that_end():
    keys = UnsavedKeys()
    keys.note_written(b"a", 100)
    keys.note_backup(b"a", 120)
    # An answer from before the backup, which comes late.
    keys.note_written(b"a", 110)
    assert keys.count == 0
    keys.note_written(b"a", 150)
    keys.note_written(b"b", 5)
    assert keys.count == 35
    keys.note_written(b"a", 160)
    assert keys.count == 35
    # The backup of a new process is known before anything else of it is.
    keys.note_backup(b"c", 7)
    keys.note_written(b"c", 9)
    keys.note_written(b"b", 8)
    assert keys.count == 2
    # A backup by a process that has ended meanwhile is counted as if it had everything until then.
    keys.note_written(b"d", 4)
    keys.note_backup(b"c", 8)
    assert keys.count == 4


# The map.


@pytest.mark.parametrize("before, after", [(1, 2), (2, 4), (4, 2), (3, 7), (7, 1), (4, 4)])
def test_a_plan_gives_each_shard_its_share_and_moves_no_more_than_needed(before, after):
    owners = even_owners(before)
    moved = 0
    for source, target, buckets in plan(owners, after):
        assert (owners[buckets] == source).all() and source != target
        owners = owners.copy()
        owners[buckets] = target
        moved += int(buckets.sum())
    counts = np.bincount(owners, minlength=after)[:after]
    assert counts.sum() == BUCKETS and counts.max() - counts.min() <= 1
    needed = np.maximum(np.bincount(even_owners(before), minlength=max(before, after)), 0)
    share = np.pad(np.sort(counts)[::-1], (0, max(before, after) - after))
    assert moved <= np.maximum(needed - share, 0).sum() + after


def test_the_state_of_a_shard_is_read_as_it_was_written_and_damage_is_reported(tmp_path):
    assert ShardState.load(tmp_path) is None
    frozen = np.arange(BUCKETS) % 5 == 0
    state = ShardState("t", 3, 4, "float32", 9, map_of(4), frozen, 2, True, True)
    state.save(tmp_path)
    back = ShardState.load(tmp_path)
    assert (back.map.owners == state.map.owners).all() and (back.frozen == frozen).all()
    for name in ("table", "shard", "dim", "dtype", "epoch", "frozen_version", "needs_sweep"):
        assert getattr(back, name) == getattr(state, name)
    assert back.map.places == state.map.places and back.is_restoring
    text = (tmp_path / "shard.json").read_text()
    for damaged in ("", "[]", text[:-20], text.replace('"owners": "', '"owners": "AA'), "{}"):
        (tmp_path / "shard.json").write_text(damaged)
        with pytest.raises(errors.CorruptionError, match="shard.json"):
            ShardState.load(tmp_path)
    (tmp_path / "shard.json").write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(errors.VersionError):
        ShardState.load(tmp_path)


def test_a_directory_of_another_shard_is_refused(tmp_path):
    Shard(shard_config(tmp_path)).close()
    with pytest.raises(errors.VersionError, match="holds shard 0 of table 't'"):
        Shard(shard_config(tmp_path, table="u"))
    (tmp_path / "shard-0001").mkdir()
    (tmp_path / "shard-0001" / "letters.txt").write_text("dear")
    with pytest.raises(errors.InvalidArgumentError, match="not empty"):
        Shard(shard_config(tmp_path, shard=1))


def test_freezing_waits_for_requests_of_its_buckets_that_are_inside():
    lock, buckets = BucketLock(), np.array([1, 2], np.uint16)
    lock.set(np.ones(BUCKETS, bool))
    freeze, frozen = threading.Event(), threading.Event()

    def freeze_all():
        freeze.wait()
        lock.set(np.zeros(BUCKETS, bool))
        assert lock.wait()
        frozen.set()

    thread = threading.Thread(target=freeze_all)
    thread.start()
    generation = lock.enter(buckets, b"c", 1)
    assert generation is not None
    freeze.set()
    deadline = time.monotonic() + 10
    while (other := lock.enter(buckets)) is not None:
        lock.leave(other)
        assert time.monotonic() < deadline
    assert not frozen.wait(0.1)
    lock.leave(generation, b"c")
    thread.join()
    assert frozen.is_set()


def test_both_languages_agree_on_buckets():
    """A bucket is a function of the key and the seed, in every release."""
    mask = 2**64 - 1

    def bucket(key, seed):
        def draw():
            nonlocal seed
            seed = (seed + 0x9E3779B97F4A7C15) & mask
            z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
            return z ^ (z >> 31)

        add, first, second = draw(), draw() | 1 | 1 << 63, draw() | 1 | 1 << 63
        h = (key + add) & mask
        h = ((h ^ (h >> 32)) * first) & mask
        return (((h ^ (h >> 32)) * second) & mask) >> 54

    keys = np.random.default_rng(1).integers(0, 2**64, 1000, np.uint64)
    keys[:3] = 0, 1, 2**64 - 1
    for seed in (0, 1, 2**64 - 1):
        expected = [bucket(int(key), seed) for key in keys]
        assert _buckets(keys, seed).tolist() == expected


def test_writes_without_an_acknowledgement_are_counted_and_an_outage_takes_one_range():
    link = Link(0)
    lost = [*range(3, 50), 60, 62, 63, *range(100, 200)]
    for sequence in lost:
        link.give_up(sequence)
    assert len(link.unacknowledged) == 4
    for link.acknowledged in range(0, 210, 7):
        for after in range(0, 210, 5):
            expected = sum(after < sequence <= link.acknowledged for sequence in lost)
            assert link.unacknowledged_after(after) == expected
