"""`forerun.Client` on several servers: Forerun's own and memcached, if they are installed."""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import forerun
import numpy as np
import pytest
from forerun.errors import (
    ClosedError,
    InvalidArgumentError,
    MemoryLimitError,
    PartialError,
    ServerError,
)
from memcached import KINDS, PATIENCE_S, Server, any_kind, silent, started

PATIENCE_MS = PATIENCE_S * 1000


def addresses(servers):
    return [server.address for server in servers]


@pytest.fixture(scope="module", params=KINDS)
def servers(request):
    with started(3, request.param) as servers:
        yield servers


@pytest.fixture(params=["classic", "meta", "multi_get"])
def client(servers, request):
    if request.param == "multi_get" and servers[0].kind == "memcached":
        pytest.skip("memcached has no multi-get frames")
    with forerun.Client(
        addresses(servers), protocol=request.param, timeout_ms=PATIENCE_MS
    ) as client:
        client.clear()
        yield client


@pytest.fixture
def three():
    """Three servers that a test may kill."""
    with started(3, any_kind()) as servers:
        yield servers


def test_agrees_with_a_dict_through_random_operations(client):
    random.seed(3)
    model = {}
    for step in range(3000):
        key = b"key%03d" % random.randrange(100)
        match random.randrange(7):
            case 0 | 1:
                client.set(key, b"%d" % step)
                model[key] = b"%d" % step
            case 2:
                assert client.delete(key) == (model.pop(key, None) is not None)
            case 3:
                assert client.add(key, b"0") == (key not in model)
                model.setdefault(key, b"0")
            case 4:
                assert client.increment(key, 7) == (int(model[key]) + 7 if key in model else None)
                if key in model:
                    model[key] = b"%d" % (int(model[key]) + 7)
            case 5:
                keys = [b"key%03d" % random.randrange(100) for _ in range(20)]
                assert client.multi_get(keys) == [model.get(key) for key in keys]
                assert client.get(key, b"none") == model.get(key, b"none")
            case 6:
                entries = {b"key%03d" % random.randrange(100): b"%d" % n for n in range(5)}
                client.set_many(list(entries), list(entries.values()))
                model |= entries
    gone = list(model)[:10] + [b"absent"]
    assert client.delete_many(gone) == 10
    assert client.multi_get(list(model)) == [None] * 10 + list(model.values())[10:]
    client.clear()
    assert client.multi_get(list(model)) == [None] * len(model)


def test_rows_are_copied_into_an_array(client):
    keys = [b"row%d" % key for key in range(1001)]
    rows = np.random.default_rng(1).random((1000, 16), dtype=np.float32)
    client.set_many(keys[:1000], rows)
    out, found = np.zeros((1003, 16), np.float32), np.ones(1003, bool)
    answered = client.multi_get([*reversed(keys), keys[7], keys[7]], out=out, found=found)
    assert answered is found
    assert found.tolist() == [False] + [True] * 1002
    assert (out[1:1001] == rows[::-1]).all() and (out[1001:] == rows[7]).all()
    assert not out[0].any()
    with pytest.raises(InvalidArgumentError, match="key 1 has 64 bytes, but a row of `out` has 8"):
        client.multi_get([b"absent", *keys[:2]], out=np.zeros((3, 1)))
    with pytest.raises(InvalidArgumentError, match="found"):
        client.multi_get(keys, found=np.ones(1001, bool))
    with pytest.raises(InvalidArgumentError, match="3 in all, not 2"):
        client.multi_get(keys[:3], out=np.zeros((2, 16), np.float32))


def test_integers_are_keys_in_the_meta_protocol(servers):
    keys, rows = np.arange(500), np.arange(1000).reshape(500, 2)
    protocols = ["meta"] if servers[0].kind == "memcached" else ["meta", "multi_get"]
    for protocol in protocols:
        with forerun.Client(
            addresses(servers), protocol=protocol, timeout_ms=PATIENCE_MS
        ) as client:
            client.set_many(keys, rows)
            out = np.zeros((500, 2), int)
            assert client.multi_get(keys[::-1], out=out).all()
            assert (out == rows[::-1]).all()
    with forerun.Client(addresses(servers)) as classic:
        with pytest.raises(InvalidArgumentError, match="key 0: .*the meta protocol can"):
            classic.multi_get(keys)


def test_a_server_without_multi_get_frames_is_named():
    with started(1, "memcached") as servers:
        address = servers[0].address
        with forerun.Client(address, protocol="multi_get", timeout_ms=PATIENCE_MS) as client:
            client.set("key", b"1")
            with pytest.raises(ServerError, match=f"{address}: it does not accept multi-get"):
                client.get("key")
            with pytest.raises(PartialError, match="does not accept multi-get") as caught:
                client.multi_get(["key", "absent"])
            assert list(caught.value.positions) == [0, 1]


def test_versions_ends_and_lifetimes(client):
    assert client.gets("key") is None and client.get_and_touch("key") is None
    client.set("key", b"old")
    value, version = client.gets("key")
    assert value == b"old"
    assert client.compare_and_set("key", "new", version) is True
    assert client.compare_and_set("key", "newer", version) is False
    assert client.compare_and_set("absent", "", version) is False
    assert client.append("key", b">") and client.prepend("key", b"<")
    assert client.get("key") == b"<new>"
    assert not client.append("absent", b"") and not client.replace("absent", b"")
    assert client.replace("key", b"1") and client.decrement("key", 5) == 0
    assert client.decrement("absent") is None

    client.set("short", b"1", ttl_seconds=2)
    client.set_many(["many"], [b"1"], ttl_seconds=2)
    assert client.touch("key", 2) and not client.touch("absent", 2)
    client.set("kept", b"1", ttl_seconds=2)
    assert client.get_and_touch("kept", 100) == b"1"
    client.set("gone", b"1", ttl_seconds=0)
    assert client.multi_get(["short", "many", "gone"]) == [b"1", b"1", None]
    time.sleep(3.1)
    names = ["short", "many", "key", "kept"]
    assert client.multi_get(names) == [None, None, None, b"1"]


def test_an_entry_whose_time_ends_after_2038_is_there(client):
    year = 365 * 86_400
    for ttl in (12 * year, 100 * year, 2**32 - 1):
        client.set("key", b"1", ttl_seconds=ttl)
        assert client.add("new", b"1", ttl_seconds=ttl)
        assert client.replace("key", b"2", ttl_seconds=ttl)
        client.set_many(["many"], [b"3"], ttl_seconds=ttl)
        assert client.touch("new", ttl) and client.get_and_touch("many", ttl) == b"3"
        assert client.multi_get(["key", "new", "many"]) == [b"2", b"1", b"3"]
        client.delete("new")


def test_a_value_that_a_server_refuses_is_an_error_with_its_position(client):
    long = b"x" * (2 << 20)
    with pytest.raises(ServerError, match="too large"):
        client.set("long", long)
    with pytest.raises(PartialError, match="2 of 4 keys were not written; key 1:") as error:
        client.set_many(["a", "b", "c", "d"], [b"1", long, b"1", long])
    assert error.value.positions == [1, 3]
    assert client.multi_get(["a", "b", "c"]) == [b"1", None, b"1"]
    client.set("word", b"word")
    with pytest.raises(ServerError, match="non-numeric"):
        client.increment("word")


def test_a_value_beyond_the_limit_of_the_client_is_not_read(servers):
    with forerun.Client(addresses(servers), max_value_bytes="1KiB") as client:
        client.clear()
        client.set("long", b"x" * 1025)
        client.set("short", b"x" * 1024)
        with pytest.raises(MemoryLimitError, match="1025 bytes"):
            client.get("long")
        with pytest.raises(PartialError, match="1 values are longer") as error:
            client.multi_get(["short", "long"])
        assert error.value.positions == [1]
        assert client.stats()["get_oversized"] == 2


def test_keys_of_a_dead_server_are_reported_and_all_others_answered(three):
    keys = [b"key%d" % key for key in range(100)]
    with (
        forerun.Client(addresses(three), retry_interval_ms=100) as client,
        forerun.Client(addresses(three), on_failure="miss") as lenient,
    ):
        client.set_many(keys, np.arange(100))
        dead = three[1]
        dead.kill()
        lost = [at for at, key in enumerate(keys) if client.server_of(key) == dead.address]
        assert 0 < len(lost) < 100
        values = [
            None if at in lost else np.int64(at).tobytes() for at in range(100)
        ]
        assert lenient.multi_get(keys) == values
        assert lenient.get(keys[lost[0]], 7) == 7 and lenient.gets(keys[lost[0]]) is None
        out, found = np.full(100, -1), np.ones(100, bool)
        message = f"{len(lost)} of 100 keys have no answer; server {dead.address}: "
        with pytest.raises(PartialError, match=message) as error:
            client.multi_get(keys, out=out, found=found)
        assert error.value.positions == lost
        assert found.tolist() == [value is not None for value in values]
        assert out.tolist() == [-1 if at in lost else at for at in range(100)]
        with pytest.raises(PartialError) as error:
            client.multi_get(keys)
        assert error.value.positions == lost
        for write in (
            lambda: client.set(keys[lost[0]], b""),
            lambda: client.delete(keys[lost[0]]),
            client.clear,
        ):
            with pytest.raises(ServerError, match=f"server {dead.address}: "):
                write()
        with pytest.raises(PartialError, match="not written; server") as error:
            client.set_many(keys, np.arange(100))
        assert error.value.positions == lost
        with pytest.raises(PartialError) as error:
            client.delete_many(keys)
        assert error.value.positions == lost
        stats = client.stats()
        assert stats["ejected_servers"] == 1 and stats["server_failures"] >= 2

        # It returns, without its values.
        three[1] = Server(dead.kind, port=dead.port)
        time.sleep(0.2)
        end = time.monotonic() + PATIENCE_S
        while client.stats()["ejected_servers"] and time.monotonic() < end:
            try:
                client.multi_get(keys)
            except PartialError:
                time.sleep(0.05)
        client.set_many(keys, np.arange(100))
        assert client.multi_get(keys, out=out).all() and (out == np.arange(100)).all()


def test_a_delete_that_failed_is_repeated_when_the_server_is_back(tmp_path):
    snapshot = ("--snapshot", tmp_path / "snapshot")
    options = {"retry_interval_ms": 50, "failed_deletes_max": 10}
    with (
        started(1, "forerun", *snapshot) as servers,
        forerun.Client(addresses(servers), **options) as client,
    ):
        client.set_many(["deleted", "kept"], [b"1", b"2"])
        server = servers[0]
        server.process.terminate()
        server.process.wait(PATIENCE_S)
        with pytest.raises(ServerError):
            client.delete("deleted")
        assert client.stats()["failed_deletes"] == 1
        servers[0] = Server("forerun", *snapshot, port=server.port)
        end = time.monotonic() + PATIENCE_S
        while client.stats()["failed_deletes"]:
            assert time.monotonic() < end, "the server is not tried again"
            with contextlib.suppress(ServerError):
                client.get("kept")
            time.sleep(0.01)
        assert client.multi_get(["deleted", "kept"]) == [None, b"2"]


def test_keys_of_a_dead_server_move_if_they_may(three):
    with forerun.Client(addresses(three), ejected_keys="move", failures_to_eject=1) as client:
        three[0].kill()
        keys = [b"key%d" % key for key in range(100)]
        with pytest.raises(PartialError):
            client.set_many(keys, np.arange(100))
        client.set_many(keys, np.arange(100))
        assert client.multi_get(keys, out=np.zeros(100, int)).all()


def test_other_threads_run_while_a_call_waits():
    with silent() as address, forerun.Client(address, timeout_ms=1000) as client:
        done = threading.Event()
        steps = 0

        def wait():
            with pytest.raises(ServerError, match="no answer within 1s"):
                client.get("key")
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        while not done.is_set():
            steps += 1
            time.sleep(0.01)
        thread.join()
        assert steps > 20


@pytest.fixture
def interrupts():
    # A process that is started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("call", ["get", "multi_get", "multi_get_out", "set", "set_many"])
def test_an_interrupt_ends_a_wait(call, interrupts):
    with silent() as address, forerun.Client(address, timeout_ms=60_000) as client:
        calls = {
            "get": lambda: client.get("key"),
            "multi_get": lambda: client.multi_get(["key"]),
            "multi_get_out": lambda: client.multi_get(["key"], out=np.zeros(1)),
            "set": lambda: client.set("key", b""),
            "set_many": lambda: client.set_many(["key"], [b""]),
        }
        begin = time.monotonic()
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            calls[call]()
        timer.join()
        assert 0.1 < time.monotonic() - begin < 30
        # The server is not blamed.
        assert client.stats()["ejected_servers"] == 0


def test_threads_share_a_client(servers):
    with forerun.Client(addresses(servers), timeout_ms=PATIENCE_MS) as client:

        def work(thread):
            keys = [b"%d:%d" % (thread, n) for n in range(50)]
            for step in range(30):
                client.set_many(keys, np.full((50, 4), thread * 1000 + step))
                out = np.zeros((50, 4), int)
                assert client.multi_get(keys, out=out).all()
                assert (out == thread * 1000 + step).all()
            return True

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(8)))
        assert client.stats()["get_hits"] == 8 * 30 * 50


def test_clients_of_one_ring_place_keys_alike_and_rings_differ(three):
    # Digests, because fnv1a_64 gives keys that differ in their last bytes only hashes close to each
    # other: key0 to key199 are all on one of three servers in 8% of the choices of ports.
    keys = [hashlib.md5(b"%d" % key).hexdigest().encode() for key in range(200)]
    places = {}
    for ring in ("ketama", "ketama_unweighted", "ketama_fnv1a_64", "rendezvous"):
        with (
            forerun.Client(addresses(three), ring=ring) as one,
            forerun.Client(iter(addresses(three)), ring=ring, protocol="meta") as other,
        ):
            places[ring] = [one.server_of(key) for key in keys]
            assert places[ring] == [other.server_of(key) for key in keys]
            assert one.servers == addresses(three)
            assert set(places[ring]) == set(one.servers)
            one.set_many(keys, [ring] * 200)
            assert other.multi_get(keys) == [ring.encode()] * 200
    assert len({tuple(place) for place in places.values()}) == 4
    heavy = [three[0].address + ":9", three[1].address]
    with forerun.Client(heavy) as client:
        assert client.servers == addresses(three[:2])
        share = sum(client.server_of(key) == three[0].address for key in keys)
        assert share > 140


def test_users_and_certificates(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        + ["-nodes", "-days", "2", "-subj", "/CN=cache.test", "-keyout", key, "-out", certificate]
        + ["-addext", "subjectAltName=DNS:cache.test", "-addext", "basicConstraints=CA:FALSE"],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl that makes certificates")
    tls = ["--enable-ssl", "--ssl-chain-cert", certificate, "--ssl-key", key]
    with started(2, "forerun", "--auth-file", users, *tls) as servers:
        options = {
            "tls_ca_file": certificate,
            "tls_server_name": "cache.test",
            "timeout_ms": PATIENCE_MS,
        }
        with forerun.Client(
            addresses(servers), user="ada", password="secret", **options
        ) as client:
            client.set_many(["a", "b", "c"], [b"1", b"2", b"3"])
            assert client.multi_get(["c", "b", "a"]) == [b"3", b"2", b"1"]
        with forerun.Client(
            addresses(servers), user="ada", password="other", **options
        ) as client:
            with pytest.raises(ServerError, match="authentication failed"):
                client.get("a")
        options["tls_server_name"] = "another.test"
        with forerun.Client(addresses(servers), **options) as client:
            with pytest.raises(ServerError, match="(?i)certificate"):
                client.get("a")


def test_impossible_arguments_are_refused_with_a_message(tmp_path):
    address = "127.0.0.1:1"
    for arguments, words in (
        ({"servers": []}, "at least one server"),
        ({"servers": "a:b"}, "the port is not a number"),
        ({"servers": [7]}, "must be a str, not 7"),
        ({"ring": "circle"}, "`ring` must be one of ketama"),
        ({"protocol": "binary"}, "`protocol` must be one of classic"),
        ({"ejected_keys": "drop"}, "`ejected_keys` must be one of"),
        ({"on_failure": "ignore"}, "`on_failure` must be one of"),
        ({"timeout_ms": 0}, "timeout: must be longer than zero"),
        ({"timeout_ms": -1}, "`timeout_ms` must be an integer from 0"),
        ({"resolve_interval_ms": 0}, "resolve_interval: must be longer than zero"),
        ({"idle_timeout_ms": 2**40}, "idle_timeout: must be at most a year"),
        ({"failed_deletes_max": -1}, "`failed_deletes_max` must be an integer from 0"),
        ({"failures_to_eject": 0}, "failures_to_eject: must be at least 1"),
        ({"max_value_bytes": "8GiB"}, "max_value_bytes: must be less than 4 GiB"),
        ({"user": "ada"}, "must be given together"),
        ({"user": "a b", "password": "c"}, "no spaces"),
        ({"tls_server_name": "a"}, "TLS needs `tls_ca_file`"),
        ({"tls_ca_file": "x", "tls_cert_file": "x"}, "must be given together"),
        ({"tls_ca_file": tmp_path / "none"}, "TLS: .*none: "),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            forerun.Client(**{"servers": address, **arguments})
    with forerun.Client(address) as client:
        for key, words in (("", "is empty"), ("k" * 251, "251 bytes"), ("a b", "white space")):
            for call in (client.get, client.delete, lambda key: client.multi_get(["a", key])):
                with pytest.raises(InvalidArgumentError, match=words):
                    call(key)
        with pytest.raises(InvalidArgumentError, match="2 in all, not 1"):
            client.set_many(["a", "b"], [b""])
        with pytest.raises(TypeError):
            client.multi_get("key")
        with pytest.raises(InvalidArgumentError, match="ttl_seconds"):
            client.set("a", b"", ttl_seconds=-1)
        with pytest.raises(ServerError, match="cannot connect"):
            client.get("a")


def test_how_a_client_is_shown_and_closed():
    with forerun.Client(["127.0.0.1:1", "127.0.0.1:2"], ring="rendezvous") as client:
        shown = 'forerun.Client(servers=["127.0.0.1:1", "127.0.0.1:2"], ring="rendezvous")'
        assert repr(client) == shown and not client.closed
    assert client.closed and repr(client) == "forerun.Client(closed)"
    client.close()
    for call in (
        lambda: client.get("a"),
        lambda: client.multi_get([]),
        lambda: client.set("a", b""),
        lambda: client.set_many([], []),
        client.stats,
        lambda: client.servers,
    ):
        with pytest.raises(ClosedError, match="the client is closed"):
            call()
