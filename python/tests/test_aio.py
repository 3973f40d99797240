"""`forerun.aio.Client`: the calls of the client in an event loop."""

import asyncio
import inspect
import pickle
import os
import signal
import subprocess
import sys
import threading
import time

import forerun
import numpy as np
import pytest
from forerun import aio
from forerun.errors import ClosedError, InvalidArgumentError, PartialError, ServerError
from memcached import KINDS, PATIENCE_S, any_kind, silent, started

PATIENCE_MS = PATIENCE_S * 1000


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """`asyncio.run`, and uvloop's, which has an event loop of its own."""
    return pytest.importorskip(request.param).run


@pytest.fixture(scope="module", params=KINDS)
def addresses(request):
    with started(3, request.param) as servers:
        yield [server.address for server in servers]


def parameters(call):
    """The parameters after `self`, which is of another kind in a module not written in Python."""
    signature = inspect.signature(call)
    every = [(one.name, one.kind, one.default) for one in signature.parameters.values()]
    return every[1:] if every[0][0] == "self" else every


def test_it_has_the_calls_and_the_arguments_of_the_blocking_client():
    public = {name for name in dir(forerun.Client) if not name.startswith("_")}
    assert public == {name for name in dir(aio.Client) if not name.startswith("_")}
    for name in public - {"close", "closed", "servers", "server_of", "stats"}:
        call, blocking = getattr(aio.Client, name), getattr(forerun.Client, name)
        assert inspect.iscoroutinefunction(call), name
        assert parameters(call) == parameters(blocking), name
    own = [one for one in parameters(aio.Client) if one[0] != "max_calls"]
    assert own == parameters(forerun.Client)


@pytest.mark.parametrize("protocol", ["classic", "meta", "multi_get"])
def test_every_call_answers(addresses, protocol, run, request):
    if protocol == "multi_get" and request.node.callspec.params["addresses"] == "memcached":
        pytest.skip("memcached has no multi-get frames")

    async def main():
        async with aio.Client(addresses, protocol=protocol, timeout_ms=PATIENCE_MS) as client:
            await client.clear()
            assert await client.get("key") is None and await client.get("key", 7) == 7
            await client.set("key", b"1", ttl_seconds=100 * 365 * 86_400)
            assert await client.add("key", b"") is False
            assert await client.replace("key", b"2") is True
            assert await client.increment("key", 5) == 7 and await client.decrement("key") == 6
            assert await client.increment("absent") is None
            assert await client.append("key", ">") and await client.prepend("key", "<")
            value, version = await client.gets("key")
            assert value == b"<6>"
            assert await client.compare_and_set("key", b"new", version) is True
            assert await client.compare_and_set("key", b"newer", version) is False
            assert await client.touch("key", 100) and not await client.touch("absent")
            assert await client.get_and_touch("key", 100) == b"new"
            assert await client.get_and_touch("absent") is None
            assert await client.delete("key") is True and await client.delete("key") is False

            keys, rows = [b"row%d" % n for n in range(1000)], np.arange(2000).reshape(1000, 2)
            await client.set_many(keys, rows)
            out, found = np.zeros((1001, 2), int), np.ones(1001, bool)
            answered = await client.multi_get([b"absent", *keys[::-1]], out=out, found=found)
            assert answered is found and found.tolist() == [False] + [True] * 1000
            assert (out[1:] == rows[::-1]).all()
            found[:] = True
            with pytest.raises(InvalidArgumentError, match="key 0 has 16 bytes, but a row of"):
                await client.multi_get([keys[0], "absent"], out=np.zeros((2, 1)), found=found[:2])
            assert found[:2].tolist() == [False, False]
            assert await client.multi_get([keys[3], "absent"]) == [rows[3].tobytes(), None]
            assert await client.delete_many([*keys[:10], "absent"]) == 10
            assert client.stats()["server_failures"] == 0
        with pytest.raises(ClosedError):
            await client.get("key")

    run(main())


def test_many_calls_run_at_once_on_few_connections_and_no_thread(addresses, run):
    async def main():
        threads, begin = threading.active_count(), time.monotonic()
        async with aio.Client(addresses, max_calls=8, timeout_ms=PATIENCE_MS) as client:

            async def work(task):
                keys = [b"%d:%d" % (task, n) for n in range(20)]
                for step in range(5):
                    await client.set_many(keys, np.full(20, task * 100 + step))
                    out = np.zeros(20, int)
                    assert (await client.multi_get(keys, out=out)).all()
                    assert (out == task * 100 + step).all()

            await asyncio.gather(*(work(task) for task in range(100)))
            assert threading.active_count() == threads
            assert client.stats()["idle_connection_sets"] <= 8
            # No call missed its answer and waited for the end of its time.
            assert time.monotonic() - begin < PATIENCE_S

    run(main())


def test_the_loop_runs_while_a_call_waits_and_a_call_ends_in_time(run):
    async def main(address):
        async with aio.Client(address, timeout_ms=500) as client:
            steps = 0

            async def count():
                nonlocal steps
                while True:
                    steps += 1
                    await asyncio.sleep(0.01)

            counting = asyncio.ensure_future(count())
            begin, cpu = time.monotonic(), time.process_time()
            with pytest.raises(ServerError, match="no answer within 500ms"):
                await client.get("key")
            assert 0.4 < time.monotonic() - begin < 10
            # It sleeps while it waits.
            assert time.process_time() - cpu < 0.4
            counting.cancel()
            assert steps > 10
            with pytest.raises(PartialError) as error:
                await client.multi_get(["a", "b"])
            assert error.value.positions == [0, 1]

    with silent() as address:
        run(main(address))


def test_a_cancelled_call_leaves_its_answer_to_nobody(run):
    async def main(servers):
        addresses = [server.address for server in servers]
        async with aio.Client(addresses, timeout_ms=PATIENCE_MS) as client:
            keys = [b"key%d" % n for n in range(50)]
            await client.set_many(keys, keys)
            for _ in range(5):
                for server in servers:
                    server.process.send_signal(signal.SIGSTOP)
                    # Its threads run on until the signal has reached each of them.
                    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
                task = asyncio.ensure_future(client.multi_get(keys[::-1]))
                await asyncio.sleep(0.02)
                assert task.cancel()
                for server in servers:
                    server.process.send_signal(signal.SIGCONT)
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await client.multi_get(keys) == keys
            assert client.stats()["server_failures"] == 0

    with started(3, any_kind()) as servers:
        run(main(servers))


def test_a_cancelled_call_writes_no_array(run):
    async def main(address):
        async with aio.Client(address, timeout_ms=PATIENCE_MS) as client:
            out, found = np.full(2, 7), np.ones(2, bool)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.multi_get(["a", "b"], out=out, found=found), 0.1)
            assert out.tolist() == [7, 7] and found.all()
            # Nothing is left of the call that was cancelled.
            assert client._turns._value == 64

    with silent() as address:
        run(main(address))


def test_keys_of_a_dead_server_are_reported(run):
    async def main(servers):
        addresses = [server.address for server in servers]
        keys = [b"key%d" % key for key in range(50)]
        async with (
            aio.Client(addresses) as client,
            aio.Client(addresses, on_failure="miss") as lenient,
        ):
            await client.set_many(keys, np.arange(50))
            servers[0].kill()
            lost = [n for n, key in enumerate(keys) if client.server_of(key) == addresses[0]]
            out = np.full(50, -1)
            with pytest.raises(PartialError) as error:
                await client.multi_get(keys, out=out)
            assert error.value.positions == lost
            assert out.tolist() == [-1 if n in lost else n for n in range(50)]
            with pytest.raises(ServerError):
                await client.set(keys[lost[0]], b"")
            assert await lenient.get(keys[lost[0]], b"none") == b"none"
            assert await lenient.gets(keys[lost[0]]) is None
            found = await lenient.multi_get(keys)
            assert [n for n, value in enumerate(found) if value is None] == lost

    with started(3, any_kind()) as servers:
        run(main(servers))


def test_an_interrupt_ends_the_loop():
    program = """
import asyncio, signal, sys
from forerun import aio

# A process that is started in the background ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with aio.Client(sys.argv[1], timeout_ms=60_000) as client:
        print("waiting", flush=True)
        await client.get("key")

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    with silent() as address:
        process = subprocess.Popen(
            [sys.executable, "-c", program, address], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[0] == "interrupted\n"


def test_impossible_arguments_are_refused(run):
    async def main():
        async with aio.Client("127.0.0.1:1") as client:
            for call in (
                client.get(""),
                client.multi_get(["a", "b" * 251]),
                client.set_many(["a"], []),
                client.multi_get(["a"], found=np.zeros(1, bool)),
                client.set("a", b"", ttl_seconds=-1),
            ):
                with pytest.raises(InvalidArgumentError):
                    await call
            with pytest.raises(InvalidArgumentError, match="pickled"):
                pickle.dumps(client)
            assert repr(client) == 'forerun.aio.Client(servers=["127.0.0.1:1"], ring="ketama")'

    run(main())
    with pytest.raises(InvalidArgumentError, match="max_calls"):
        aio.Client("127.0.0.1:1", max_calls=0)
