"""`forerun.hisparse` compared with a loop over SGLang's tables."""

import doctest

import forerun.hisparse
import numpy as np
import pytest
from forerun.errors import InvalidArgumentError
from forerun.hisparse import copy_cache_planned_mla, load_cache_to_device_buffer_mla

REQUESTS, TOP_K, HOT, PAGE, CONTEXT, ITEM = 3, 6, 12, 4, 40, 24


class Server:
    """Tables as SGLang allocates them, and what its contract makes of them."""

    def __init__(self, rng):
        columns = HOT + PAGE
        self.tokens = np.full((REQUESTS, columns), -1, np.int32)
        locs = rng.permutation(REQUESTS * columns).astype(np.int32)
        self.locs = locs.reshape(REQUESTS, columns)
        self.lru = np.tile(np.arange(HOT, dtype=np.int16), (REQUESTS, 1))
        self.host_locs = rng.permutation(REQUESTS * CONTEXT).reshape(REQUESTS, CONTEXT)
        self.host = rng.integers(0, 256, (REQUESTS * CONTEXT, ITEM), dtype=np.uint8)
        self.device = np.zeros((REQUESTS * columns, ITEM), np.uint8)

    def swap_in(self, request, length, top_k):
        """The answers, and the rows that are fetched; changes the tables."""
        if length <= HOT:
            return [self.locs[request, t] if t >= 0 else -1 for t in top_k], []
        tokens, order = self.tokens[request], self.lru[request].tolist()
        wanted = [t for t in top_k if t not in (-1, length - 1)]
        hits = [slot for slot in order if tokens[slot] in wanted]
        others = [slot for slot in order if slot not in hits]
        missing = [t for t in wanted if t not in tokens[:HOT]]
        loaded, fetched = others[: len(missing)], []
        for token, slot in zip(missing, loaded):
            tokens[slot] = token
            row = (self.host_locs[request, token], self.locs[request, slot])
            self.device[row[1]] = self.host[row[0]]
            fetched.append(row)
        self.lru[request] = others[len(missing) :] + loaded + hits
        slots = {int(t): slot for slot, t in enumerate(tokens[:HOT])} | {length - 1: HOT}
        return [self.locs[request, slots[t]] if t >= 0 else -1 for t in top_k], fetched


@pytest.mark.parametrize("wide", [np.int32, np.int64])
def test_tables_change_as_the_contract_says(wide):
    rng = np.random.default_rng(5)
    server, other = Server(rng), Server(np.random.default_rng(5))
    second = np.zeros_like(server.device)
    expected_second = second.copy()
    lengths, all_fetched = np.array([3, HOT, HOT + 5]), 0
    for _ in range(40):
        batch = rng.permutation(REQUESTS)
        top_k = np.full((REQUESTS, TOP_K), -1, np.int32)
        for row, request in zip(top_k, batch):
            drawn = rng.permutation(lengths[request])[:TOP_K]
            row[: len(drawn)] = drawn
        answers = np.full((REQUESTS, TOP_K), -7, np.int32)
        real = np.array([rng.integers(1, REQUESTS + 1)], np.int32)
        plan = {
            "miss_src": np.zeros((REQUESTS, TOP_K), np.int64),
            "miss_dst": np.zeros((REQUESTS, TOP_K), np.int32),
            "miss_count": np.zeros(REQUESTS, np.int32),
        }
        load_cache_to_device_buffer_mla(
            top_k, server.tokens, server.host_locs, server.locs, server.host, server.device,
            answers, batch.astype(wide), lengths[batch].astype(wide), server.lru, ITEM, TOP_K, HOT,
            num_real_reqs=real, **plan,
        )  # fmt: skip
        copy_cache_planned_mla(
            **plan, num_real_reqs=real, host_cache=server.host, device_buffer=second,
            item_size_bytes=ITEM,
        )  # fmt: skip
        for entry, request in enumerate(batch):
            if entry >= real[0]:
                assert (answers[entry] == -7).all()
                continue
            wanted, fetched = other.swap_in(request, int(lengths[request]), top_k[entry].tolist())
            assert answers[entry].tolist() == wanted
            assert plan["miss_count"][entry] == len(fetched)
            sources = plan["miss_src"][entry, : len(fetched)]
            assert sources.tolist() == [source for source, _ in fetched]
            for source, destination in fetched:
                expected_second[destination] = server.host[source]
            all_fetched += len(fetched)
        for name in ("tokens", "lru", "device"):
            assert (getattr(server, name) == getattr(other, name)).all(), name
        assert (second == expected_second).all()
        lengths = np.minimum(lengths + rng.integers(0, 3, REQUESTS), CONTEXT)
    assert all_fetched > 100


def call(**changes):
    server = Server(np.random.default_rng(1))
    arguments = {
        "top_k_tokens": np.zeros((1, TOP_K), np.int32),
        "device_buffer_tokens": server.tokens,
        "host_cache_locs": server.host_locs,
        "device_buffer_locs": server.locs,
        "host_cache": server.host,
        "device_buffer": server.device,
        "top_k_device_locs": np.zeros((1, TOP_K), np.int32),
        "req_pool_indices": np.zeros(1, np.int64),
        "seq_lens": np.full(1, CONTEXT),
        "lru_slots": server.lru,
        "item_size_bytes": ITEM,
        "num_top_k": TOP_K,
        "hot_buffer_size": HOT,
    }
    load_cache_to_device_buffer_mla(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top_k_tokens": np.zeros((1, TOP_K))}, "`top_k_tokens` must have elements of int32"),
        ({"top_k_tokens": [1]}, "`top_k_tokens` must be a tensor or an array"),
        ({"num_top_k": TOP_K + 1}, "`num_top_k` is 7"),
        ({"seq_lens": np.zeros((1, 1), np.int64)}, "`seq_lens` must have 1 dimensions"),
        ({"seq_lens": np.zeros(0, np.int64)}, "`seq_lens` has 0 bytes"),
        ({"lru_slots": np.zeros((REQUESTS, HOT), np.int16)}, "each of its 12 slots once"),
        ({"lru_slots": np.zeros((REQUESTS, HOT * 2), np.int16)[:, ::2]}, "contiguous rows"),
        ({"hot_buffer_size": HOT + PAGE}, "newest row"),
        ({"hot_buffer_size": TOP_K - 1}, "only 5 slots"),
        ({"item_size_bytes": 0}, "item_size_bytes"),
        ({"skip_io": True}, "skip_io"),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises(InvalidArgumentError) as error:
        call(**changes)
    assert words in str(error.value)
    call()


def test_the_example_runs():
    assert doctest.testmod(forerun.hisparse).attempted > 0
    assert doctest.testmod(forerun.hisparse).failed == 0


def _frozen(array):
    array.flags.writeable = False
    return array


def _spaced(array):
    """The same numbers, of which each is followed by a byte."""
    records = np.zeros(array.shape, [("number", array.dtype), ("other", "u1")])
    records["number"] = array
    return records["number"]


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("device", _frozen, "`device_buffer` is read-only"),
        ("tokens", lambda array: array.astype(">i4"), "`device_buffer_tokens` must have whole"),
        ("lru", _spaced, "`lru_slots` must have whole elements"),
    ],
)
def test_arrays_whose_memory_is_not_as_it_looks_are_refused(name, change, error):
    server = Server(np.random.default_rng(7))
    setattr(server, name, change(getattr(server, name)))
    with pytest.raises(InvalidArgumentError, match=error):
        load_cache_to_device_buffer_mla(
            np.zeros((1, TOP_K), np.int32), server.tokens, server.host_locs, server.locs,
            server.host, server.device, np.zeros((1, TOP_K), np.int32), np.array([0]),
            np.array([HOT + 1]), server.lru, ITEM, TOP_K, HOT,
        )  # fmt: skip
