"""Uses the whole interface of PyPI's meta-memcache against servers: every command and policy, with
its expected result.

suites/run starts two servers and names their ports in SUITE_PORTS. The client sends only meta
commands.
"""

import os
import time
import uuid

import pytest
from meta_memcache import CacheClient, Key, ServerAddress, SetMode, connection_pool_factory_builder
from meta_memcache.configuration import LeasePolicy, MigrationMode, RecachePolicy, StalePolicy
from meta_memcache.extras.client_wrapper import ClientWrapper
from meta_memcache.extras.migrating_cache_client import MigratingCacheClient
from meta_memcache.protocol import (
    MA_MODE_DEC,
    Conflict,
    Miss,
    NotStored,
    RequestFlags,
    Success,
    Value,
)

PORTS = [int(port) for port in os.environ["SUITE_PORTS"].split()]
ADDRESSES = [ServerAddress("127.0.0.1", port) for port in PORTS]


def pools():
    return connection_pool_factory_builder(recv_timeout=5)


def client_of(addresses):
    return CacheClient.cache_client_from_servers(addresses, pools())


@pytest.fixture
def client():
    return client_of(ADDRESSES[:1])


@pytest.fixture
def key():
    return Key(f"suite:{uuid.uuid4().hex}")


# Values, and their kinds and sizes.


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"bytes",
        "text",
        "schön",
        0,
        -17,
        2**70,
        1.5,
        True,
        None,
        [1, {"a": (2, 3)}],
        b"\r\nEND\r\n\x00\xff",
        b"x" * 200_000,
        "compressible " * 10_000,
        os.urandom(900_000),
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{len(value) if hasattr(value, '__len__') else value}"
    ),
)
def test_a_value_comes_back_as_it_was(client, key, value):
    assert client.set(key, value, ttl=60)
    assert client.get(key) == value


def test_a_value_too_large_is_not_stored_and_the_connection_goes_on(client, key):
    with pytest.raises(Exception):
        client.set(key, os.urandom(3 << 20), ttl=60)
    assert client.set(key, "small", ttl=60)
    assert client.get(key) == "small"


@pytest.mark.parametrize(
    "text", ["k" * 250, "ключ", "日本語", "with space", "ctrl\x01", "k" * 200 + "ü" * 20]
)
def test_keys_of_all_kinds(client, text):
    # Keys that the text protocol cannot carry go as base64, with the flag b.
    key = Key(f"{text}")
    client.invalidate(key)
    assert client.get(key) is None
    assert client.set(key, text, ttl=60)
    assert client.get(key) == text
    assert client.multi_get([key]) == {key: text}
    assert client.delete(key)


# Sets, in all modes.


def test_set_modes(client, key):
    assert not client.set(key, b"no", ttl=60, set_mode=SetMode.REPLACE)
    assert not client.set(key, b"no", ttl=60, set_mode=SetMode.APPEND)
    assert not client.set(key, b"no", ttl=60, set_mode=SetMode.PREPEND)
    assert client.set(key, b"b", ttl=60, set_mode=SetMode.ADD)
    assert not client.set(key, b"no", ttl=60, set_mode=SetMode.ADD)
    assert client.set(key, b"c", ttl=60, set_mode=SetMode.APPEND)
    assert client.set(key, b"a", ttl=60, set_mode=SetMode.PREPEND)
    assert client.get(key) == b"abc"
    assert client.set(key, b"new", ttl=60, set_mode=SetMode.REPLACE)
    assert client.get(key) == b"new"


def test_sets_and_deletes_without_a_reply_keep_the_order(client, key):
    for number in range(50):
        assert client.set(key, number, ttl=60, no_reply=True)
    assert client.get(key) == 49
    client.delete(key, no_reply=True)
    assert client.get(key) is None
    client.touch(key, ttl=5, no_reply=True)
    client.delta(key, 1, no_reply=True)
    assert client.get(key) is None


def test_refill_only_fills_what_is_missing(client, key):
    assert client.refill(key, "first", ttl=60)
    assert not client.refill(key, "second", ttl=60)
    assert client.get(key) == "first"


# CAS.


def test_a_cas_token_is_good_once(client, key):
    token = client.set_cas(key, "one", ttl=60)
    assert token
    assert client.get_cas(key) == ("one", token)
    second = client.set_cas(key, "two", ttl=60, cas_token=token)
    assert second and second != token
    assert client.set_cas(key, "three", ttl=60, cas_token=token) is None
    assert not client.set(key, "three", ttl=60, cas_token=token)
    assert not client.delete(key, cas_token=token)
    assert client.get_cas(key) == ("two", second)
    assert client.multi_get_cas([key]) == {key: ("two", second)}
    assert client.delete(key, cas_token=second)
    assert client.get_cas(key) == (None, None)


def test_a_cas_token_of_a_missing_key_stores_nothing(client, key):
    assert not client.set(key, "value", ttl=60, cas_token=12345)
    assert client.get(key) is None


# Deleting, and values that go stale instead.


def test_delete_tells_whether_it_was_there_and_invalidate_does_not(client, key):
    assert not client.delete(key)
    assert client.invalidate(key)
    client.set(key, 1, ttl=60)
    assert client.delete(key)
    client.set(key, 1, ttl=60)
    assert client.invalidate(key)
    assert client.get(key) is None


@pytest.mark.parametrize("remove", ["delete", "invalidate"])
def test_a_stale_value_has_one_winner(client, key, remove):
    client.set(key, "old", ttl=60)
    assert getattr(client, remove)(key, stale_policy=StalePolicy(mark_stale_on_deletion_ttl=30))
    value, token = client.get_cas(key)
    assert value is None and token, "the first to ask must fetch it again"
    assert client.get(key) == "old", "the others continue with the old one"
    assert client.set(key, "new", ttl=60, cas_token=token)
    assert client.get(key) == "new"


def test_a_late_write_is_stored_as_stale(client, key):
    token = client.set_cas(key, "old", ttl=60)
    client.delete(key, stale_policy=StalePolicy(mark_stale_on_deletion_ttl=30))
    policy = StalePolicy(mark_stale_on_cas_mismatch=True)
    assert client.set(key, "late", ttl=60, cas_token=token, stale_policy=policy)
    assert client.get(key) is None
    assert client.get(key) == "late"


# Times.


def test_values_expire_and_touching_keeps_them(client):
    keys = [Key(f"suite:{uuid.uuid4().hex}") for _ in range(4)]
    short, touched, read, forever = keys
    for key in keys[:3]:
        client.set(key, "value", ttl=2)
    client.set(forever, "value", ttl=0)
    assert client.touch(touched, ttl=60)
    assert client.get(read, touch_ttl=60) == "value"
    assert not client.touch(Key(f"suite:{uuid.uuid4().hex}"), ttl=60)
    time.sleep(3.2)
    expected = {short: None, touched: "value", read: "value", forever: "value"}
    assert client.multi_get(keys) == expected


def test_near_its_end_one_client_recaches(client, key):
    client.set(key, "value", ttl=20)
    assert client.get(key, recache_policy=RecachePolicy(ttl=10)) == "value"
    assert client.get(key, recache_policy=RecachePolicy(ttl=30)) is None
    assert client.get(key, recache_policy=RecachePolicy(ttl=30)) == "value"


def test_a_miss_is_leased_once(client, key):
    waits = []
    policy = LeasePolicy(ttl=30, miss_retries=3, miss_retry_wait=0.01)
    value, token = client.get_or_lease_cas(key, policy, lease_wait_fn=waits.append)
    assert value is None and token and waits == []
    assert client.get_or_lease(key, policy, lease_wait_fn=waits.append) is None
    assert len(waits) == 2, "who lost waits for the winner"
    assert client.get(key) is None
    assert client.set(key, "won", ttl=60, cas_token=token)
    assert client.get_or_lease(key, policy) == "won"
    assert client.get_or_lease_cas(key, policy)[0] == "won"


# Many keys.


def test_many_keys_of_which_some_are_there():
    client = client_of(ADDRESSES)
    mark = uuid.uuid4().hex
    keys = [Key(f"{mark}:{number}") for number in range(1000)]
    for number, key in enumerate(keys):
        if number % 3:
            client.set(key, number, ttl=60, no_reply=True)
    found = client.multi_get(keys + keys[:10])
    assert found == {key: number if number % 3 else None for number, key in enumerate(keys)}
    with_tokens = client.multi_get_cas(keys, touch_ttl=100)
    assert all((token is not None) == (value is not None) for value, token in with_tokens.values())


def test_typed_gets(client, key):
    client.set(key, 5, ttl=60)
    assert client.get_typed(key, int) == 5
    assert client.get_typed(key, str) is None
    assert client.get_cas_typed(key, int)[0] == 5
    with pytest.raises(ValueError):
        client.get_typed(key, str, error_on_type_mismatch=True)
    with pytest.raises(ValueError):
        client.get_cas_typed(key, str, error_on_type_mismatch=True)


# Counters.


def test_counters(client, key):
    assert not client.delta(key, 1)
    assert client.delta_and_get(key, 1) is None
    assert client.delta_initialize(key, 1, initial_value=10, initial_ttl=60)
    assert client.delta_and_get(key, 5) == 15
    assert client.delta_and_get(key, -6) == 9
    assert client.delta_and_get(key, -100) == 0
    assert client.delta(key, 3)
    assert (
        client.delta_initialize_and_get(key, 4, initial_value=99, initial_ttl=60, refresh_ttl=50)
        == 7
    )
    assert client.delta_and_get(key, 2**64 - 1) == 6, "it wraps"


def test_counters_mind_cas_tokens(client, key):
    assert client.delta_initialize_and_get(key, 1, initial_value=1, initial_ttl=60) == 1
    _, token = client.get_cas(key)
    assert client.delta_and_get(key, 1, cas_token=token) == 2
    assert client.delta_and_get(key, 1, cas_token=token) is None
    assert not client.delta(key, 1, cas_token=token)


def test_a_text_is_no_counter(client, key):
    client.set(key, "text", ttl=60)
    with pytest.raises(Exception):
        client.delta_and_get(key, 1)
    assert client.get(key) == "text"


# The commands below, with every flag.


def test_meta_get_returns_what_is_asked_for(client, key):
    client.set(key, b"12345", ttl=100)
    flags = RequestFlags(
        return_value=True,
        return_cas_token=True,
        return_client_flag=True,
        return_fetched=True,
        return_key=True,
        return_last_access=True,
        return_size=True,
        return_ttl=True,
        opaque=b"opaque-0123456789",
    )
    first = client.meta_get(key, flags)
    second = client.meta_get(key, flags)
    assert isinstance(first, Value) and first.value == b"12345" and first.size == 5
    assert first.flags.opaque == b"opaque-0123456789"
    assert first.flags.cas_token == second.flags.cas_token
    assert first.flags.size == 5
    assert 98 <= first.flags.ttl <= 100
    assert (first.flags.fetched, second.flags.fetched) == (False, True)
    assert first.flags.last_access in (0, 1)
    assert first.flags.client_flag == second.flags.client_flag


def test_meta_get_without_a_value_or_an_item(client, key):
    flags = RequestFlags(return_ttl=True)
    assert isinstance(client.meta_get(key, flags), Miss)
    client.set(key, "v", ttl=0)
    found = client.meta_get(key, flags)
    assert isinstance(found, Success) and found.flags.ttl == -1


def test_meta_get_may_leave_no_trace(client, key):
    client.set(key, "v", ttl=60)
    asked = RequestFlags(return_value=True, return_fetched=True, no_update_lru=True)
    client.meta_get(key, asked)
    assert client.meta_get(key, asked).flags.fetched is False


def test_meta_get_vivifies(client, key):
    flags = RequestFlags(
        return_value=True, return_cas_token=True, vivify_on_miss_ttl=30, return_ttl=True
    )
    won = client.meta_get(key, flags)
    assert (
        isinstance(won, Value) and won.size == 0 and won.flags.win is True and won.flags.ttl <= 30
    )
    lost = client.meta_get(key, flags)
    assert lost.size == 0 and lost.flags.win is False


def test_meta_set_and_meta_delete_tell_conflicts(client, key):
    stored = client.meta_set(
        key, "v", RequestFlags(cache_ttl=60, return_cas_token=True, return_key=True, opaque=b"o")
    )
    assert isinstance(stored, Success) and stored.flags.opaque == b"o"
    token = stored.flags.cas_token
    assert isinstance(client.meta_set(key, "w", RequestFlags(cas_token=token + 1)), Conflict)
    assert isinstance(client.meta_set(key, "w", RequestFlags(mode=SetMode.ADD.value)), NotStored)
    assert isinstance(client.meta_delete(key, RequestFlags(cas_token=token + 1)), Conflict)
    gone = client.meta_delete(key, RequestFlags(cas_token=token, opaque=b"p"))
    assert isinstance(gone, Success) and gone.flags.opaque == b"p"
    assert isinstance(client.meta_delete(key), Miss)
    assert isinstance(client.meta_set(key, "w", RequestFlags(cas_token=token)), (Miss, NotStored))


def test_meta_arithmetic_returns_what_is_asked_for(client, key):
    assert isinstance(client.meta_arithmetic(key), Miss)
    made = client.meta_arithmetic(
        key,
        RequestFlags(
            return_value=True,
            ma_initial_value=7,
            vivify_on_miss_ttl=60,
            return_ttl=True,
            return_cas_token=True,
        ),
    )
    assert int(made.value) == 7 and made.flags.cas_token
    more = client.meta_arithmetic(
        key, RequestFlags(return_value=True, ma_delta_value=5, cache_ttl=500, return_ttl=True)
    )
    assert int(more.value) == 12
    # Which time memcached reports depends on its version: some report the one before the command.
    assert 498 <= client.meta_get(key, RequestFlags(return_ttl=True)).flags.ttl <= 500
    less = client.meta_arithmetic(
        key, RequestFlags(return_value=True, mode=MA_MODE_DEC, ma_delta_value=2)
    )
    assert int(less.value) == 10
    assert isinstance(
        client.meta_arithmetic(key, RequestFlags(cas_token=made.flags.cas_token)), Conflict
    )


def test_meta_multiget_gives_each_key_its_answer(client):
    mark = uuid.uuid4().hex
    keys = [Key(f"{mark}:{number}") for number in range(100)]
    for key in keys[::2]:
        client.set(key, key.key, ttl=60)
    answers = client.meta_multiget(keys, RequestFlags(return_value=True, return_ttl=True))
    for number, key in enumerate(keys):
        if number % 2:
            assert isinstance(answers[key], Miss)
        else:
            assert answers[key].value == key.key and answers[key].flags.ttl >= 58


# Clients of several servers.


def test_keys_are_shared_out_among_servers():
    client = client_of(ADDRESSES)
    mark = uuid.uuid4().hex
    keys = [Key(f"{mark}:{number}") for number in range(200)]
    for key in keys:
        client.set(key, key.key, ttl=60)
    alone = [client_of([address]) for address in ADDRESSES]
    found = [sum(value is not None for value in one.multi_get(keys).values()) for one in alone]
    assert sum(found) == 200 and all(count > 20 for count in found)


def test_an_ephemeral_client_shortens_times(key):
    client = CacheClient.ephemeral_cache_client_from_servers(
        ADDRESSES[:1], max_ttl=10, connection_pool_factory_fn=pools()
    )
    client.set(key, "v", ttl=1000)
    assert client.meta_get(key, RequestFlags(return_ttl=True)).flags.ttl <= 10


def test_a_gutter_serves_where_a_server_is_gone(key):
    gone = ServerAddress("127.0.0.1", 1)
    client = CacheClient.cache_client_with_gutter_from_servers(
        [gone], ADDRESSES[:1], gutter_ttl=20, connection_pool_factory_fn=pools()
    )
    assert client.set(key, "v", ttl=1000)
    assert client.get(key) == "v"
    assert client_of(ADDRESSES[:1]).meta_get(key, RequestFlags(return_ttl=True)).flags.ttl <= 20


def test_a_migrating_client_writes_to_both(key):
    origin, destination = (client_of([address]) for address in ADDRESSES)
    client = MigratingCacheClient(
        origin, destination, migration_mode_config=MigrationMode.POPULATE_WRITES
    )
    assert client.set(key, "v", ttl=60)
    assert (client.get(key), origin.get(key), destination.get(key)) == ("v", "v", "v")
    assert client.delete(key)
    assert destination.get(key) is None


def test_a_wrapper_passes_everything_on(client, key):
    wrapped = ClientWrapper(client)
    assert wrapped.set(key, 1, ttl=60)
    assert wrapped.get(key) == 1
    assert wrapped.delta_initialize_and_get(key, 1, initial_value=1, initial_ttl=9) == 2
