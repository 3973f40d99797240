"""Calls of a sharded table while answers are lost and buckets move, without a cluster: the shards
are in this process, and a plain order of steps replaces the coordinator."""

import random
import socket
import threading
import time

import forerun
import numpy as np
import pytest
from forerun import errors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun._forerun import _buckets, _ShardBatch  # noqa: E402
from forerun.ray import data_port, frames, shard_actor, shard_actors  # noqa: E402
from forerun.ray import shard as shard_module  # noqa: E402
from forerun.ray.connection import Connection  # noqa: E402
from forerun.ray.disk_scan import holders, newest_map, shards_on_disk  # noqa: E402
from forerun.ray.frames import Op, Status  # noqa: E402
from forerun.ray.session import Session, as_rows  # noqa: E402
from forerun.ray.shard import ShardConfig  # noqa: E402
from forerun.ray.shard_actor import ShardActor  # noqa: E402
from forerun.ray.shard_map import (  # noqa: E402
    BUCKETS,
    Place,
    ShardMap,
    ShardState,
    even_owners,
    load_map,
    save_map,
)

DIM = 2


class Table:
    """Shards in this process, and what a session asks of a directory."""

    transport = "tcp"

    def __init__(self, path, shards, dtype="int64"):
        self.actors = [self.actor(path, shard, dtype=dtype) for shard in range(shards)]
        self.row_bytes = self.actors[0].endpoint().row_bytes
        places = tuple(Place(0, "here") for _ in range(shards))
        self.map = ShardMap(1, 5, even_owners(shards), places)
        self.version = 1
        for actor in self.actors:
            actor.install(1, self.map)

    @staticmethod
    def actor(path, shard, **options):
        settings = {
            "table": "t",
            "shard": shard,
            "generation": 0,
            "dim": DIM,
            "dtype": "int64",
            "path": str(path),
            "bind": "127.0.0.1",
            "backups": None,
            "restores": False,
        }
        return ShardActor(ShardConfig(**{**settings, **options}))

    def close(self):
        for actor in self.actors:
            actor.close()

    # Calls of a session.

    def endpoint(self, shard, until):
        return self.actors[shard].endpoint(), self.actors[shard]

    def newer_map(self, known, deadline):
        time.sleep(0.001)
        return self.map

    def suspect(self, shard):
        raise AssertionError("no shard has lost its map")

    # Steps of a move.

    def next_map(self, **changes):
        self.version += 1
        return ShardMap(
            self.version,
            self.map.seed,
            changes.get("owners", self.map.owners),
            self.map.places,
        )

    def move(self, source, target, buckets, cancels_after=None):
        """Moves buckets, or cancels the move after so many steps."""
        giver, taker = self.actors[source], self.actors[target]
        owners = self.map.owners.copy()
        owners[buckets] = target
        new = self.next_map(owners=owners)
        take = taker.expect_foreign(1, self.map)
        giver.begin_move(1, buckets)
        steps = [
            lambda: taker.copy(take, giver.endpoint(), buckets),
            lambda: taker.catch_up(take, giver.endpoint(), False),
            lambda: giver.freeze(1, buckets, new.version),
            lambda: taker.catch_up(take, giver.endpoint(), True),
        ]
        for step in steps[:cancels_after]:
            step()
        if cancels_after is not None:
            new = self.next_map()
            giver.install(1, new)
        else:
            taker.install(1, new)
            giver.install(1, new)
        self.map = new
        for actor in self.actors:
            actor.install(1, new)
        giver.sweep(1)
        taker.sweep(1)


@pytest.fixture
def table(tmp_path):
    table = Table(tmp_path, 3)
    yield table
    table.close()


def call(session, op, keys, rows=None, timeout=60.0):
    keys = np.asarray(keys, np.uint64)
    if op is Op.FIND:
        batch = _ShardBatch(keys, DIM, "int64", fills=True)
    else:
        batch = _ShardBatch(keys, DIM, "int64", rows=rows)
    session.run(op, batch, time.monotonic() + timeout)
    return batch.results()


def ones(keys):
    return np.ones((len(keys), DIM), np.int64)


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


def test_keys_fail_by_position_if_no_newer_map_can_be_had(table, monkeypatch):
    session, keys = Session(table), np.arange(300)
    call(session, Op.INSERT, keys, ones(keys))
    moving = table.map.owned_by(2)
    table.actors[2].freeze(1, moving, 2)

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
        taker.catch_up(second, giver.endpoint(), False)
    taker.sweep(2)
    assert len(taker._shard.table) == before


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


def test_a_shard_on_a_node_that_others_do_not_know_yet_is_created_again(monkeypatch):
    config = shard_actors.TableConfig(
        "t", "n", DIM, "int64", 1, "/nowhere", "127.0.0.1", None, None, 0
    )
    actors, created, alive = shard_actors.ShardActors(config), [], {"new": "here"}

    def create(shard, place, restores, node_id):
        created.append(node_id)
        actors._actors[shard, place.generation] = len(created)

    def order(actor, method, timeout):
        if actor < 3:
            raise ray.exceptions.ActorUnschedulableError("no node fits")
        return {"node_id": "new"}

    monkeypatch.setattr(actors, "create", create)
    monkeypatch.setattr(actors, "order", order)
    monkeypatch.setattr(shard_actors, "alive_nodes", lambda: alive)
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: None)
    place = Place(0, "here", "new")
    create(0, place, False, "new")
    assert actors.await_start(0, place, False, "new") == {"node_id": "new"}
    assert created == ["new"] * 3
    # A node that is gone is another matter.
    created.clear()
    alive.clear()
    create(0, place, False, "new")
    with pytest.raises(ray.exceptions.ActorUnschedulableError):
        actors.await_start(0, place, False, "new")


# What is on the disks.


def test_shards_are_found_on_the_disks_of_nodes_with_new_names(tmp_path):
    """As after a restart of the cluster, with nodes in another order."""
    places = (Place(0, "a", "old-1"), Place(1, "b", "old-2"), Place(0, "c", "old-3"))
    newest = ShardMap(7, 5, even_owners(3), places)
    older = ShardMap(4, 5, even_owners(3), tuple(Place(0, p.node) for p in places))

    def put(node, name, shard, known, table="t"):
        directory = tmp_path / node / name
        directory.mkdir(parents=True)
        ShardState(table, shard, DIM, "int64", 1, known).save(directory)

    put("new-b", "shard-0000", 0, newest)
    put("new-c", "shard-0001.1", 1, newest)
    # That of a node that was away when the shard was restored.
    put("new-a", "shard-0001", 1, older)
    # Started once where its rows were not.
    put("new-a", "shard-0002", 2, None)
    put("new-b", "shard-0002", 2, newest)
    put("new-c", "shard-0000", 0, newest, table="another")
    (tmp_path / "new-c" / "shard-0002").mkdir()
    (tmp_path / "new-c" / "shard-old").mkdir()
    found = {
        node: shards_on_disk(str(tmp_path / node), "t") for node in ("new-a", "new-b", "new-c")
    }
    assert newest_map(found).version == 7
    assert [holders(found, s, p.generation) for s, p in enumerate(places)] == [
        ["new-b"],
        ["new-c"],
        ["new-b"],
    ]
    # One that cannot be read has its rows nevertheless.
    (tmp_path / "new-c" / "shard-0001.1" / "shard.json").write_text("{")
    found["new-c"] = shards_on_disk(str(tmp_path / "new-c"), "t")
    assert holders(found, 1, 1) == ["new-c"]
    assert newest_map({"nowhere": shards_on_disk(str(tmp_path / "nowhere"), "t")}) is None


def test_the_map_beside_the_backups_is_read_as_it_was_written(tmp_path):
    assert load_map(tmp_path, "t") is None
    known = ShardMap(3, 2**64 - 1, even_owners(2), (Place(0, "a", "x"), Place(4, "b", "y")))
    save_map(tmp_path, "t", known)
    back = load_map(tmp_path, "t")
    assert (back.version, back.seed, back.places) == (3, 2**64 - 1, known.places)
    assert (back.owners == known.owners).all()
    with pytest.raises(errors.VersionError, match="belongs to table 't'"):
        load_map(tmp_path, "u")
    text = (tmp_path / "map.json").read_text()
    for damaged in ("", "[]", text[:-9], "{}"):
        (tmp_path / "map.json").write_text(damaged)
        with pytest.raises(errors.CorruptionError, match="map.json"):
            load_map(tmp_path, "t")
