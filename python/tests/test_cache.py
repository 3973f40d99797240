"""`forerun.Cache` compared with a dict."""

import contextlib
import pickle
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forerun
import numpy as np
import pytest


@pytest.fixture
def cache():
    return forerun.Cache(32 << 20)


def test_agrees_with_a_dict_through_random_operations(cache):
    random.seed(3)
    model = {}
    for step in range(20_000):
        key = b"key%03d" % random.randrange(300)
        match random.randrange(6):
            case 0 | 1:
                cache[key] = model[key] = b"%d" % step
            case 2:
                assert cache.delete(key) == (model.pop(key, None) is not None)
            case 3:
                assert (cache.add(key, b"0") is None) == (key in model)
                model.setdefault(key, b"0")
            case 4:
                assert cache.increment(key, 7) == (int(model[key]) + 7 if key in model else None)
                if key in model:
                    model[key] = b"%d" % (int(model[key]) + 7)
            case 5:
                keys = [b"key%03d" % random.randrange(300) for _ in range(20)]
                assert cache.multi_get(keys) == [model.get(key) for key in keys]
                assert (key in cache) == (key in model)
    assert len(cache) == len(model)
    cache.clear()
    assert cache.multi_get(list(model)) == [None] * len(model)


def test_rows_are_copied_into_an_array(cache):
    keys = np.arange(1000, dtype=np.uint64)
    rows = np.random.default_rng(1).random((1000, 16), dtype=np.float32)
    cache.set_many(keys, rows.view(np.uint8))
    out = np.zeros((1001, 16), dtype=np.float32)
    found = cache.multi_get(np.arange(1000, -1, -1, dtype=np.uint64), out=out)
    assert found.tolist() == [False] + [True] * 1000
    assert (out[1:] == rows[::-1]).all()


def test_a_version_guards_against_writes_in_between(cache):
    cache["key"] = b"old"
    value, version = cache.gets("key")
    assert value == b"old"
    assert cache.compare_and_set("key", b"new", version) is not None
    assert cache.compare_and_set("key", b"newer", version) is None
    assert cache["key"] == b"new"
    assert cache.gets("other") is None
    assert cache.replace("other", b"") is None


def test_expired_items_are_not_found(cache):
    cache.set("short", b"1", ttl_seconds=1)
    cache.set("long", b"1", ttl_seconds=100)
    cache.set("touched", b"1")
    assert cache.touch("touched", 1)
    assert not cache.touch("nothing")
    assert "short" in cache
    time.sleep(2.1)
    assert cache.multi_get(["short", "long", "touched"]) == [None, b"1", None]


def test_memory_stays_within_the_limit(cache):
    for start in range(0, 200_000, 1000):
        keys = [b"key%d" % i for i in range(start, start + 1000)]
        cache.set_many(keys, [b"x" * 500] * 1000)
        stats = cache.stats()
        assert stats["memory_bytes"] <= stats["limit_bytes"] == 32 << 20
    assert stats["evictions"] > 100_000
    assert cache.get(b"key199999") == b"x" * 500


def test_stats_has_the_figures_that_the_server_exports(cache):
    page = Path(__file__).parents[2] / "docs" / "operate" / "serving.md"
    exported = set(re.findall(r"`forerun_cache_(\w+)`", page.read_text()))
    assert set(cache.stats()) == exported


def test_popitem_takes_each_entry_once(cache):
    model = {b"key%d" % number: b"%d" % number for number in range(5000)}
    cache.update(model)
    cache.set("expired", b"1", ttl_seconds=1)
    time.sleep(2.1)
    popped = [cache.popitem() for _ in range(2000)]
    # The entries behind the place where `popitem` goes on are found too.
    again = dict(popped[:500])
    cache.update(again)
    popped = popped[500:] + [cache.popitem() for _ in range(3500)]
    assert dict(popped) == model and len(popped) == len(model)
    for _ in range(2):
        with pytest.raises(KeyError, match="empty"):
            cache.popitem()
    cache["one"] = b"1"
    assert cache.popitem() == (b"one", b"1")


def test_threads_that_call_popitem_share_the_entries(cache):
    model = {b"key%d" % number: b"%d" % number for number in range(2000)}
    cache.update(model)

    def pop_all():
        popped = []
        with contextlib.suppress(KeyError):
            while True:
                popped.append(cache.popitem())
        return popped

    with ThreadPoolExecutor(4) as threads:
        parts = [thread.result() for thread in [threads.submit(pop_all) for _ in range(4)]]
    popped = [entry for part in parts for entry in part]
    assert dict(popped) == model and len(popped) == len(model)


def test_impossible_arguments_are_refused_with_a_message(cache):
    with pytest.raises(forerun.errors.InvalidArgumentError, match="too large"):
        cache.set("key", b"x" * (2 << 20))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="a key has 1 to 250 bytes"):
        cache.set("k" * 300, b"")
    with pytest.raises(forerun.errors.InvalidArgumentError, match="2 in all, not 1"):
        cache.set_many(["a", "b"], [b""])
    with pytest.raises(forerun.errors.InvalidArgumentError, match="number"):
        cache["word"] = b"word"
        cache.increment("word")
    with pytest.raises(forerun.errors.InvalidArgumentError):
        forerun.Cache(1)
    with pytest.raises(KeyError):
        cache["nothing"]
    with pytest.raises(KeyError):
        del cache["nothing"]
    with pytest.raises(ValueError, match="pickled"):
        pickle.dumps(cache)
