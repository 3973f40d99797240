"""The shards of a table in this process, without a cluster."""

import time

import numpy as np
from forerun._forerun import _ShardBatch
from forerun.ray.frames import Op
from forerun.ray.shard_actor import ShardActor
from forerun.ray.shard_map import Place, ShardMap, even_owners
from forerun.ray.table_config import ShardConfig

DIM = 2


class Table:
    """Shards in this process, and what a session asks of a directory."""

    def __init__(self, path, shards, dtype="int64", dim=DIM, **options):
        options |= {"dtype": dtype, "dim": dim}
        self.actors = [self.actor(path, shard, **options) for shard in range(shards)]
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

    def wire(self, actor):
        """Frames go over the data ports."""

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
        source_port = giver.endpoint()
        take = [taker.expect_foreign(1, self.map)]
        giver.begin_move(1, buckets)
        steps = [
            lambda: taker.copy(take[0], source_port, buckets),
            lambda: take.append(taker.catch_up(take[0], source_port)[0]),
            lambda: giver.freeze(1, buckets, new.version, 1 << 30, 60.0),
            lambda: taker.copy_last(take[1], source_port),
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


class Remote:
    """An actor of this process, which is called as one of Ray is."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        class Method:
            @staticmethod
            def remote(*args):
                return lambda: getattr(self._actor, name)(*args)

        return Method
