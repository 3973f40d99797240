"""How a move of a sharded table catches up with writes that go on, without a cluster. The rates of
writing and copying are part of each test."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from forerun import errors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun._forerun import _buckets  # noqa: E402
from forerun.ray import bucket_lock, catch_up, frames, shard  # noqa: E402
from forerun.ray.bucket_lock import Changes  # noqa: E402
from forerun.ray.catch_up import FEW_KEYS, LAST_COPY_S, CatchUp, keys_within  # noqa: E402
from forerun.ray.connection import Connection  # noqa: E402
from forerun.ray.frames import Op  # noqa: E402
from forerun.ray.session import Session  # noqa: E402
from forerun.ray.shard_map import BUCKETS  # noqa: E402
from ray_local import DIM, Table, call, ones  # noqa: E402

ALL = np.ones(BUCKETS, bool)
# What a request of a frame costs besides its keys.
FRAME_S = 0.002


class Source:
    """A shard whose clock goes on as keys are copied, while others are written."""

    def __init__(self, pending, written_per_s, copied_per_s):
        self.now, self.written_per_s, self.copied_per_s = 0.0, written_per_s, copied_per_s
        self.left, self.noted = 0, float(pending)
        self.frames, self.rounds = 0, []

    def changes(self):
        if self.left == 0:
            self.left, self.noted = int(self.noted), self.noted % 1
            self.rounds.append(self.left)
        taken = min(self.left, frames.FRAME_KEYS_MAX)
        took_s = FRAME_S + taken / self.copied_per_s
        self.left -= taken
        self.now += took_s
        self.noted += took_s * self.written_per_s
        self.frames += 1
        return taken, self.left, int(self.noted)

    def copy(self):
        """Returns the keys that are left at the end, and those that may be."""
        progress = CatchUp(clock=lambda: self.now)
        while not progress.note(*self.changes()):
            assert self.frames < 100_000, "no end"
        return int(self.noted), keys_within(LAST_COPY_S, progress.keys_per_s)


def rests(pending, written_per_s, copied_per_s):
    """What is left after each round, and what may be, by a plain sum."""
    rest, fastest = pending, 0.0
    for _ in range(1000):
        frames_of_round = max(-(-rest // frames.FRAME_KEYS_MAX), 1)
        took_s = frames_of_round * FRAME_S + rest / copied_per_s
        fastest = max(fastest, rest / took_s)
        # A rest of an hour is one that grows.
        rest = min(int(took_s * written_per_s), 3600 * copied_per_s)
        yield rest, max(FEW_KEYS, fastest * LAST_COPY_S)


@pytest.mark.parametrize("pending", [0, 300, 10_000, 10_000_000])
@pytest.mark.parametrize("written", [0, 1_000, 100_000, 300_000, 600_000, 1_500_000])
@pytest.mark.parametrize("copied", [50_000, 400_000, 1_000_000])
def test_a_copy_ends_if_few_enough_keys_are_left_and_gives_up_if_that_never_happens(
    pending, written, copied
):
    source = Source(pending, written, copied)
    expected = [left <= keys_max for left, keys_max in rests(pending, written, copied)]
    if any(expected):
        left, keys_max = source.copy()
        assert left <= keys_max <= max(FEW_KEYS, copied * LAST_COPY_S)
        assert abs(len(source.rounds) - (expected.index(True) + 1)) <= 1
    else:
        with pytest.raises(errors.Error, match="as fast as they are copied"):
            source.copy()
        # After seconds, or in the first round, when its end could not help any more.
        assert written > 0.8 * copied and source.now <= 60 + 2 * pending / copied


def test_a_copy_goes_on_while_its_rounds_shrink_slowly():
    source = Source(10_000_000, 900_000, 1_300_000)
    left, keys_max = source.copy()
    assert left <= keys_max and len(source.rounds) > 5


def test_noted_keys_are_sorted_once_and_come_out_after_their_last_write(monkeypatch):
    sorted_keys, unique = [], np.unique

    def counted(keys):
        sorted_keys.append(len(keys))
        return unique(keys)

    monkeypatch.setattr(bucket_lock.np, "unique", counted)
    changes, numbers = Changes(ALL), np.random.default_rng(1)
    written = numbers.integers(0, 150_000, 200_000, np.uint64)
    for part in np.array_split(written, 50):
        changes.note(part, _buckets(part, 0))
    assert changes.left == 200_000
    missing, sees = set(written.tolist()), 0
    is_written_again = False
    while True:
        keys, left, noted = changes.take(1000, None)
        assert (np.diff(keys.astype(np.int64)) > 0).all()
        missing -= set(keys.tolist())
        sees += len(keys)
        if left == 0 and noted == 0:
            break
        if not is_written_again and left < 50_000:
            # Written again while the round goes on.
            again = written[:700]
            changes.note(again, _buckets(again, 0))
            missing |= set(again.tolist())
            is_written_again = True
    assert not missing and changes.left == 0
    assert sum(sorted_keys) == 200_000 + 700
    assert sees == len(set(written.tolist())) + len(set(written[:700].tolist()))


def test_repeated_keys_take_no_more_memory_than_distinct_ones(monkeypatch):
    monkeypatch.setattr(Changes, "COMPACT_KEYS", 1000)
    monkeypatch.setattr(Changes, "KEYS_MAX", 4000)
    changes, keys = Changes(ALL), np.arange(700, dtype=np.uint64)
    for _ in range(500):
        changes.note(keys, _buckets(keys, 0))
    assert not changes.has_overflowed and changes.left <= 4000
    assert changes.take(8192, None)[0].tolist() == keys.tolist()
    many = np.arange(5000, dtype=np.uint64)
    changes.note(many, _buckets(many, 0))
    assert changes.has_overflowed


def test_keys_whose_answer_never_arrived_are_taken_again_by_the_next_one():
    changes, keys = Changes(ALL), np.arange(5000, dtype=np.uint64)
    changes.note(keys, _buckets(keys, 0))
    first, second, arrived = object(), object(), set()
    arrived |= set(changes.take(2000, first)[0].tolist())
    # This one does not arrive.
    changes.take(2000, first)
    while True:
        taken, left, noted = changes.take(2000, second)
        arrived |= set(taken.tolist())
        if left + noted + len(taken) == 0:
            break
    assert arrived == set(keys.tolist())


@pytest.fixture
def table(tmp_path):
    table = Table(tmp_path, 2)
    yield table
    table.close()


@pytest.fixture
def written_meanwhile(table, monkeypatch):
    """Before each frame of a copy, so many keys of shard 0 are written as the test's list says; the
    last number counts from then on. A round has several frames."""
    ask, writes, session = Connection.changes, [], Session(table)
    keys = np.arange(1 << 15, dtype=np.uint64)
    keys = keys[table.map.owners[_buckets(keys, table.map.seed)] == 0]
    added = np.zeros(len(keys), np.int64)

    def changes(self):
        # While the buckets are frozen nobody writes them.
        if table.actors[0]._shard.state.frozen_version == 0:
            some = keys[: writes.pop(0) if len(writes) > 1 else writes[0]]
            call(session, Op.ADD_AT, some, ones(some))
            added[: len(some)] += 1
        return ask(self)

    call(session, Op.INSERT, keys, np.zeros((len(keys), DIM), np.int64))
    monkeypatch.setattr(Connection, "changes", changes)
    monkeypatch.setattr(frames, "FRAME_KEYS_MAX", 500)
    monkeypatch.setattr(catch_up, "LAST_COPY_S", 0.0)
    return writes, keys, added


def test_a_move_that_cannot_catch_up_is_ended_before_anything_is_frozen(
    table, written_meanwhile, monkeypatch
):
    writes, keys, added = written_meanwhile
    writes.append(2000)
    frozen = []
    monkeypatch.setattr(catch_up, "STALLED_S", 0.0)
    monkeypatch.setattr(shard.Shard, "freeze", lambda *_: frozen.append(1))
    with pytest.raises(errors.Error, match="as fast as they are copied"):
        table.move(0, 1, table.map.owned_by(0))
    rows, found = call(Session(table), Op.FIND, keys)
    assert not frozen and found.all() and (rows[:, 0] == added).all()


def test_a_move_catches_up_with_writes_that_become_fewer(table, written_meanwhile):
    writes, keys, added = written_meanwhile
    writes += [2000, 2000, 2000, 2000, 1000, 500, 300, 200, 100, 50, 10, 0]
    table.move(0, 1, table.map.owned_by(0))
    rows, found = call(Session(table), Op.FIND, keys)
    assert found.all() and (rows[:, 0] == added).all() and added[0] > 4
    assert len(table.actors[0]._shard.table) == 0


def test_a_shard_refuses_to_freeze_while_more_is_left_than_may_be(table):
    giver, session = table.actors[0], Session(table)
    keys = np.arange(3000, dtype=np.uint64)
    buckets = table.map.owned_by(0)
    of_giver = buckets[_buckets(keys, table.map.seed)]
    giver.begin_move(1, buckets)
    for _ in range(3):
        call(session, Op.INSERT, keys, ones(keys))
    assert not giver.freeze(1, buckets, 2, int(of_giver.sum()) - 1, 60.0)
    assert giver._shard.state.frozen_version == 0
    assert call(session, Op.FIND, keys)[1].all()
    assert giver.freeze(1, buckets, 3, int(of_giver.sum()), 60.0)
    with pytest.raises(errors.PartialError):
        call(session, Op.FIND, keys, timeout=0.1)
    giver.thaw(1, 3)
    assert call(session, Op.FIND, keys)[1].all()
    # What was noted is not forgotten, and a freeze that comes late is refused.
    assert giver._shard.changes.left == of_giver.sum()
    with pytest.raises(errors.Error, match="has ended"):
        giver.freeze(1, buckets, 3, 1 << 30, 60.0)


def test_a_request_that_takes_long_does_not_keep_buckets_frozen(table):
    giver, session, keys = table.actors[0], Session(table), np.arange(3000)
    call(session, Op.INSERT, keys, ones(keys))
    lock, slow = giver._shard.bucket_lock, np.array([0], np.uint16)
    inside = lock.enter(slow)
    assert not giver.freeze(1, table.map.owned_by(0), 2, 0, 0.01)
    assert call(session, Op.FIND, keys, timeout=10)[1].all()
    lock.leave(inside)
    assert giver.freeze(1, table.map.owned_by(0), 3, 0, 60.0)


def test_a_late_copy_of_the_last_keys_adds_nothing(table, monkeypatch):
    """The copy was given up, and its rows are older than those of the next one."""
    giver, taker, session = *table.actors, Session(table)
    keys, buckets = np.arange(2000), table.map.owned_by(0)
    call(session, Op.INSERT, keys, ones(keys))
    take = taker.expect_foreign(1, table.map)
    giver.begin_move(1, buckets)
    taker.copy(take, giver.endpoint(), buckets)
    first, _ = taker.catch_up(take, giver.endpoint())
    call(session, Op.ADD_AT, keys, ones(keys))
    waiting, late, failures = threading.Event(), threading.Event(), []
    changes = Connection.changes

    def slow(self):
        answer = changes(self)
        waiting.set()
        late.wait(30)
        return answer

    def copy_last():
        try:
            taker.copy_last(first, giver.endpoint())
        except errors.Error as error:
            failures.append(str(error))

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "changes", slow)
        thread = threading.Thread(target=copy_last)
        thread.start()
        assert waiting.wait(30)
    call(session, Op.ADD_AT, keys, ones(keys))
    second, _ = taker.catch_up(first, giver.endpoint())
    assert giver.freeze(1, buckets, 2, 1 << 30, 60.0)
    taker.copy_last(second, giver.endpoint())
    late.set()
    thread.join()
    assert failures == ["the move that copies these rows has ended"]
    owners = table.map.owners.copy()
    owners[buckets] = 1
    table.version = 2
    table.map = table.next_map(owners=owners)
    for actor in (taker, giver):
        actor.install(1, table.map)
    rows, found = call(session, Op.FIND, keys)
    assert found.all() and (rows == 3).all()


def test_a_client_with_a_map_from_before_a_move_is_not_served_by_the_map_of_a_cancelled_one(table):
    keys, buckets = np.arange(3000), table.map.owned_by(0)
    call(Session(table), Op.INSERT, keys, ones(keys))
    table.move(0, 1, buckets)
    stale = table.map
    table.move(1, 0, buckets)
    # Another move to shard 1 is cancelled, but its map has reached shard 1.
    owners = table.map.owners
    table.actors[1].install(1, table.next_map(owners=stale.owners))
    table.map = table.next_map(owners=owners)
    table.actors[0].install(1, table.map)
    slept = SimpleNamespace(
        map=stale, row_bytes=table.row_bytes, endpoint=table.endpoint, wire=table.wire
    )
    slept.newer_map = lambda known, deadline: table.map
    call(Session(slept), Op.ADD_AT, keys, ones(keys))
    table.actors[1].install(1, table.map)
    rows, found = call(Session(table), Op.FIND, keys)
    assert found.all() and (rows == 2).all()
