"""Stores, keyspaces, snapshots and caches are mappings."""

import time
from collections.abc import (
    ItemsView,
    KeysView,
    Mapping,
    MutableMapping,
    Reversible,
    ValuesView,
)

import forerun
import pytest
from orders import reverse_the_order

MODEL = {b"%02d" % number: b"value %d" % number for number in range(20)}


@pytest.fixture(params=["store", "keyspace", "cache"])
def mapping(tmp_path, request):
    if request.param == "cache":
        with forerun.Cache("1MiB") as cache:
            yield cache
        return
    with forerun.Db(tmp_path / "store") as db:
        db.keyspace("other")["not"] = b"here"
        yield db if request.param == "store" else db.keyspace("users")


def test_the_classes_are_registered_and_have_every_method(mapping):
    assert isinstance(mapping, MutableMapping)
    methods = {name for name in dir(MutableMapping) if not name.startswith("_")}
    assert not {name for name in methods if not callable(getattr(mapping, name, None))}
    mapping.update(MODEL)
    match mapping:
        case {"03": value}:
            assert value == MODEL[b"03"]
        case _:
            raise AssertionError("a mapping matches a mapping's pattern")
    with pytest.raises(KeyError):
        mapping["missing"]


def test_a_snapshot_is_a_mapping_that_cannot_be_changed(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        db.update(MODEL)
        with db.snapshot() as before:
            db.clear()
            assert isinstance(before, Mapping) and not isinstance(before, MutableMapping)
            assert dict(before) == MODEL and not db
            assert list(reversed(before)) == sorted(MODEL, reverse=True)
            assert before.keys() == MODEL.keys() and before.items() == MODEL.items()


def test_views_show_what_is_there_now(mapping):
    keys, values, items = mapping.keys(), mapping.values(), mapping.items()
    assert isinstance(keys, KeysView) and isinstance(values, ValuesView)
    assert isinstance(items, ItemsView)
    assert len(keys) == len(values) == len(items) == 0
    mapping.update(MODEL)
    assert len(keys) == len(values) == len(items) == 20
    assert keys == MODEL.keys() and items == MODEL.items()
    assert sorted(values) == sorted(MODEL.values())
    assert "03" in keys and b"03" in keys and "3" not in keys
    assert b"value 3" in values and b"value 20" not in values
    assert ("03", b"value 3") in items and ("03", b"value 4") not in items
    assert "03" not in items and ("03",) not in items and ("20", b"value 20") not in items
    assert keys & {b"03", b"99"} == {b"03"} and keys - MODEL.keys() == set()
    assert keys.isdisjoint({b"99"})
    assert dict(mapping) == {**mapping} == dict(items) == MODEL
    del mapping["03"]
    assert "03" not in keys and len(items) == 19


def test_methods_that_change_a_mapping_agree_with_a_dict(mapping):
    with pytest.raises(KeyError, match="empty"):
        mapping.popitem()
    assert mapping.setdefault("a", b"1") == b"1" == mapping["a"]
    assert mapping.setdefault("a", b"2") == b"1" == mapping["a"]
    assert mapping.setdefault("b", "text") == b"text"
    with pytest.raises(forerun.errors.InvalidArgumentError, match="value"):
        mapping.setdefault("c", None)
    popped = dict([mapping.popitem(), mapping.popitem()])
    assert popped == {b"a": b"1", b"b": b"text"} and len(mapping) == 0
    mapping.clear()
    mapping.update(MODEL)
    mapping.clear()
    assert len(mapping) == 0 and not list(mapping)
    mapping["a"] = b"again"
    assert dict(mapping) == {b"a": b"again"}


def test_an_object_that_cannot_be_a_key_is_not_in_a_mapping(mapping):
    mapping.update(MODEL)
    for object in (7, None, ("03",), 0.5, [b"03"], "\ud800", b"k" * 100_000):
        assert object not in mapping
        assert object not in mapping.keys() and object not in mapping.values()
        assert (object, b"value 3") not in mapping.items()
    assert not mapping.keys() & {7, None}


def test_an_object_that_cannot_be_a_key_is_not_in_a_view_of_a_range(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        db.update(MODEL)
        for object in (7, None, "\ud800", b"k" * 100_000):
            assert object not in db.keys(start="02") and (object, 1) not in db.items(prefix="0")
        keys = db.keys()
    with pytest.raises(forerun.errors.ClosedError):
        b"03" in keys


def test_views_compare_as_sets(mapping):
    mapping.update(MODEL)
    keys, items = mapping.keys(), mapping.items()
    assert keys == mapping.keys() == MODEL.keys() == keys and items == MODEL.items()
    assert keys != MODEL and keys != [] and keys != items
    fewer, more = set(MODEL) - {b"03"}, {*MODEL, b"99"}
    assert fewer < keys < more and fewer <= keys <= more and keys > fewer and more >= keys
    assert not keys < set(MODEL) and not keys <= fewer and keys != fewer and keys != more
    with pytest.raises(TypeError):
        keys < [b"03"]
    for view in (keys, items):
        with pytest.raises(TypeError, match="unhashable"):
            hash(view)


def test_views_of_a_cache_compare_what_they_show():
    with forerun.Cache("1MiB") as cache:
        cache["stays"] = b"1"
        cache.set("expires", b"2", ttl_seconds=1)
        assert cache.keys() == {b"stays", b"expires"}
        deadline = time.monotonic() + 10
        while "expires" in cache and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(cache.keys()) == [b"stays"]
        assert cache.keys() == {b"stays"} and cache.items() == {(b"stays", b"1")}
        assert cache.keys() <= {b"stays"}


def test_what_has_no_order_cannot_be_reversed(tmp_path):
    with forerun.Cache("1MiB") as cache, forerun.Table(1, path=tmp_path / "rows") as table:
        cache["a"], table[0] = b"1", [1.0]
        for unordered in (cache, cache.keys(), cache.values(), cache.items(), table):
            with pytest.raises(TypeError, match="revers"):
                reversed(unordered)
        assert not isinstance(cache, Reversible) and not isinstance(table, Reversible)


def test_handles_are_equal_only_to_themselves_and_can_be_in_a_set(mapping):
    mapping.update(MODEL)
    assert mapping == mapping and mapping != MODEL
    assert len({mapping, mapping}) == 1


def test_a_view_of_a_range_has_only_the_keys_of_the_range(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        db.update(MODEL)
        for bounds, expected in (
            ({"start": "05", "end": "08"}, [b"05", b"06", b"07"]),
            ({"prefix": "1", "reverse": True}, [b"1%d" % digit for digit in range(9, -1, -1)]),
            ({"start": "18"}, [b"18", b"19"]),
            ({"end": "02"}, [b"00", b"01"]),
        ):
            keys, items = db.keys(**bounds), db.items(**bounds)
            assert list(keys) == expected and len(keys) == len(items) == len(expected)
            assert list(reversed(keys)) == expected[::-1]
            assert [key for key in MODEL if key in keys] == sorted(expected)
            assert [pair[0] for pair in MODEL.items() if pair in items] == sorted(expected)
            assert list(db.values(**bounds)) == [MODEL[key] for key in expected]
        for refused in ({"prefix": "a", "end": "b"}, {"start": 7}):
            with pytest.raises(forerun.errors.InvalidArgumentError):
                db.items(**refused)


def test_an_iterator_sees_the_store_as_of_its_creation(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        db.update(MODEL)
        iterator = iter(db.keys())
        db.clear()
        assert list(iterator) == sorted(MODEL)
        keys = db.keys()
    with pytest.raises(forerun.errors.ClosedError):
        iter(keys)
    with pytest.raises(forerun.errors.ClosedError):
        db.keys()


def test_clear_reaches_the_longest_key(tmp_path):
    longest = b"\xff" * 65_536
    with forerun.Db(tmp_path / "store") as db:
        db[b""] = db[longest] = b"1"
        db.clear()
        assert len(db) == 0


def test_clear_deletes_a_single_key_even_the_empty_one(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        for key in ("", "a"):
            db[key] = b"1"
            db.clear()
            assert dict(db) == {}


@pytest.fixture(params=["reversed", ""])
def reversed_keyspace(tmp_path, request):
    path = tmp_path / "store"
    with forerun.Db(path) as db:
        if request.param:
            db.keyspace(request.param)
    reverse_the_order(path, request.param)
    with forerun.Db(path) as db:
        users = db.keyspace(request.param) if request.param else db
        users.update(MODEL)
        assert list(users) == sorted(MODEL, reverse=True)
        yield users


def test_clear_empties_a_keyspace_of_the_reverse_order(reversed_keyspace):
    reversed_keyspace[""] = b"last"
    reversed_keyspace.clear()
    assert dict(reversed_keyspace) == {}
    reversed_keyspace["a"] = b"1"
    reversed_keyspace.clear()
    assert dict(reversed_keyspace) == {}


def test_views_of_a_range_follow_the_reverse_order(reversed_keyspace):
    users = reversed_keyspace
    for bounds, expected in (
        ({"start": "07", "end": "04"}, [b"07", b"06", b"05"]),
        ({"start": "04", "end": "07"}, []),
        ({"start": "01"}, [b"01", b"00"]),
        ({"end": "17"}, [b"19", b"18"]),
        ({"prefix": "1"}, [b"1%d" % digit for digit in range(9, -1, -1)]),
        ({"prefix": "0", "reverse": True}, [b"0%d" % digit for digit in range(10)]),
    ):
        keys, items = users.keys(**bounds), users.items(**bounds)
        assert list(keys) == expected and len(keys) == len(expected)
        assert bool(keys) == bool(expected)
        assert [key for key in MODEL if key in keys] == sorted(expected)
        assert [pair[0] for pair in MODEL.items() if pair in items] == sorted(expected)
        assert list(users.items(**bounds)) == [(key, MODEL[key]) for key in expected]


class Counting:
    """A mapping that counts what a view asks of it."""

    def __init__(self, mapping):
        self.mapping, self.calls = mapping, []

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self.mapping, name)

    def __contains__(self, key):
        self.calls.append("in")
        return key in self.mapping


def test_the_truth_of_a_view_takes_no_scan(mapping):
    counting = Counting(mapping)
    classes = (forerun.views.KeysView, forerun.views.ValuesView, forerun.views.ItemsView)
    for view in [of(counting, forerun.views.Range()) for of in classes]:
        assert not view
        mapping["a"] = b"1"
        assert view
        del mapping["a"]
    assert set(counting.calls) == {"_scan"}


def test_the_truth_of_a_view_of_a_range_is_that_of_the_range(tmp_path):
    with forerun.Db(tmp_path / "store") as db:
        db["b"] = b"1"
        assert db.items(start="a", end="c") and db.values(prefix="b") and db.keys(reverse=True)
        assert not db.items(start="c") and not db.values(prefix="a") and not db.keys(end="b")


def test_an_entry_is_found_in_a_view_with_one_lookup(mapping):
    mapping.update(MODEL)
    counting = Counting(mapping)
    items = forerun.views.ItemsView(counting, forerun.views.Range())
    assert (b"03", MODEL[b"03"]) in items
    assert (b"03", b"other") not in items and (b"99", None) not in items
    assert counting.calls == ["get"] * 3


def test_text_is_compared_as_it_is_stored(mapping):
    mapping["k"] = "x\u00e9"
    assert "x\u00e9" in mapping.values() and "x" not in mapping.values()
    assert ("k", "x\u00e9") in mapping.items() and ("k", "x") not in mapping.items()


def test_a_small_cache_has_small_items():
    with forerun.Cache("1MiB") as cache:
        cache["a"] = b"1"
        with pytest.raises(forerun.errors.InvalidArgumentError, match=f"at most {1 << 19} bytes"):
            cache["a"] = bytes(1 << 19)
