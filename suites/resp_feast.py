"""Round trips of Feast's online store through a server that speaks RESP. `suites/resp` runs it with
SUITE_PORT."""

import asyncio
import os
from datetime import datetime, timedelta, timezone

import pandas as pd
import pytest
import redis
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Array, Bool, Float32, Int64, String, UnixTimestamp

PORT = int(os.environ["SUITE_PORT"])
# Whole microseconds are kept.
NOW = datetime.now(timezone.utc).replace(microsecond=123456)
# Bytes of entity keys that mean something in a pattern of SCAN.
DRIVERS = [1, 2, 42, 63, 91, 92, 93, 94, 2**62]
FEATURES = ["trips", "rating", "is_active", "name", "recent", "seen"]


def rows(drivers, time=NOW, trips=0):
    return pd.DataFrame(
        {
            "driver": drivers,
            "event_timestamp": [time] * len(drivers),
            "trips": [driver % 1000 + trips for driver in drivers],
            "rating": [driver % 7 / 2 for driver in drivers],
            "is_active": [driver % 2 == 0 for driver in drivers],
            "name": [f"Jürg {driver}\r\n" for driver in drivers],
            "recent": [[float(driver % 5), 0.5] for driver in drivers],
            "seen": [time] * len(drivers),
        }
    )


class Setup:
    """A feature store with two views of one entity, and the parquet file behind them."""

    def __init__(self, folder, **online):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.path = str(folder / "rows.parquet")
        rows(DRIVERS).to_parquet(self.path)
        config = RepoConfig(
            project="suite",
            provider="local",
            registry=str(folder / "registry.db"),
            online_store={
                "type": "redis",
                "connection_string": f"127.0.0.1:{PORT}",
                **online,
            },
            offline_store={"type": "file"},
            entity_key_serialization_version=3,
        )
        self.store = FeatureStore(config=config)
        self.entity = Entity(name="driver", join_keys=["driver"], value_type=ValueType.INT64)
        self.views = [self.view("stats"), self.view("more")]
        self.store.apply([self.entity, *self.views])

    def view(self, name):
        return FeatureView(
            name=name,
            entities=[self.entity],
            ttl=timedelta(days=1),
            schema=[
                Field(name="driver", dtype=Int64),
                Field(name="trips", dtype=Int64),
                Field(name="rating", dtype=Float32),
                Field(name="is_active", dtype=Bool),
                Field(name="name", dtype=String),
                Field(name="recent", dtype=Array(Float32)),
                Field(name="seen", dtype=UnixTimestamp),
            ],
            source=FileSource(path=self.path, timestamp_field="event_timestamp"),
        )

    def request(self, view, drivers):
        return {
            "features": [f"{view}:{feature}" for feature in FEATURES],
            "entity_rows": [{"driver": driver} for driver in drivers],
        }

    def read(self, view, drivers):
        return self.store.get_online_features(**self.request(view, drivers)).to_dict()


@pytest.fixture
def server():
    client = redis.Redis(port=PORT)
    client.flushall()
    return client


@pytest.fixture
def setup(tmp_path, server):
    return Setup(tmp_path / "repo")


def check(found, drivers, trips=0):
    expected = rows(drivers, trips=trips)
    assert found["driver"] == drivers
    for feature in ("trips", "rating", "is_active", "name", "recent"):
        assert found[feature] == list(expected[feature]), feature
    # A timestamp has whole seconds.
    assert all(abs(seen - NOW) < timedelta(seconds=1) for seen in found["seen"])


def test_rows_come_back(setup):
    setup.store.write_to_online_store("stats", rows(DRIVERS))
    check(setup.read("stats", DRIVERS), DRIVERS)


def test_rows_of_two_views_share_an_entity(setup, server):
    setup.store.write_to_online_store("stats", rows(DRIVERS))
    setup.store.write_to_online_store("more", rows(DRIVERS, trips=5))
    check(setup.read("stats", DRIVERS), DRIVERS)
    check(setup.read("more", DRIVERS), DRIVERS, trips=5)
    assert server.dbsize() == len(DRIVERS)


def test_missing_entities_have_no_values(setup):
    setup.store.write_to_online_store("stats", rows([1]))
    found = setup.read("stats", [1, 7])
    assert found["trips"] == [1, None]
    assert found["name"] == ["Jürg 1\r\n", None]


def test_an_older_row_changes_nothing(setup):
    setup.store.write_to_online_store("stats", rows([1], trips=1))
    setup.store.write_to_online_store("stats", rows([1], NOW - timedelta(microseconds=1)))
    assert setup.read("stats", [1])["trips"] == [2]
    setup.store.write_to_online_store("stats", rows([1], NOW + timedelta(microseconds=1), trips=2))
    assert setup.read("stats", [1])["trips"] == [3]


def test_a_file_is_materialized(setup):
    setup.store.materialize(NOW - timedelta(hours=1), NOW + timedelta(hours=1))
    check(setup.read("stats", DRIVERS), DRIVERS)
    check(setup.read("more", DRIVERS), DRIVERS)


def test_thousands_of_rows_in_one_pipeline(setup, server):
    drivers = list(range(5000))
    setup.store.write_to_online_store("stats", rows(drivers))
    check(setup.read("stats", drivers), drivers)
    assert server.dbsize() == len(drivers)


def test_rows_come_back_asynchronously(setup):
    async def run():
        await setup.store.initialize()
        await setup.store.write_to_online_store_async("stats", rows(DRIVERS))
        request = setup.request("stats", DRIVERS)
        found = await setup.store.get_online_features_async(**request)
        await setup.store.close()
        return found.to_dict()

    check(asyncio.run(run()), DRIVERS)


def test_a_removed_view_is_deleted(setup, server):
    drivers = list(range(300)) + DRIVERS[2:]
    setup.store.write_to_online_store("stats", rows(drivers))
    setup.store.write_to_online_store("more", rows(DRIVERS))
    stats, more = setup.views
    setup.store.apply([setup.entity, more], objects_to_delete=[stats], partial=False)
    assert server.dbsize() == len(DRIVERS)
    check(setup.read("more", DRIVERS), DRIVERS)
    setup.store.apply([setup.entity], objects_to_delete=[more], partial=False)
    assert server.dbsize() == 0


def test_teardown_deletes_all_rows(setup, server):
    setup.store.write_to_online_store("stats", rows(list(range(300)) + DRIVERS[2:]))
    server.set("another", "1")
    setup.store.teardown()
    assert server.keys() == [b"another"]


def test_rows_end(tmp_path, server):
    setup = Setup(tmp_path / "repo", key_ttl_seconds=100)
    setup.store.write_to_online_store("stats", rows(DRIVERS))
    keys = server.keys()
    assert len(keys) == len(DRIVERS)
    assert all(90 < server.ttl(key) <= 100 for key in keys)


def test_rows_are_written_without_reading(tmp_path, server):
    setup = Setup(tmp_path / "repo", skip_dedup=True)
    setup.store.write_to_online_store("stats", rows(DRIVERS, trips=1))
    setup.store.write_to_online_store("stats", rows(DRIVERS, NOW - timedelta(hours=1)))
    assert setup.read("stats", [1])["trips"] == [1]
