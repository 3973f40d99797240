"""`forerun.Client` over UCX.

The tests are skipped where UCX or `forerun` is not installed, or was built without UCX.
"""

import asyncio
import contextlib
import ctypes
import subprocess
import time

import forerun
import numpy as np
import pytest
from forerun import aio
from forerun.errors import Error, InvalidArgumentError, ServerError
from memcached import PATIENCE_S, command, free_port

PATIENCE_MS = PATIENCE_S * 1000


@contextlib.contextmanager
def server_over_ucx(listen, *arguments):
    """A server over UCX alone."""
    path = command("forerun")
    if path is None:
        pytest.skip("forerun is not installed")
    help_text = subprocess.check_output([path, "serve", "--help"], text=True)
    if "lacks UCX" in help_text:
        pytest.skip("this forerun was built without UCX (cargo's feature ucx)")
    try:
        ctypes.CDLL("libucp.so.0")
    except OSError:
        pytest.skip("UCX is not installed (Debian: package libucx0)")
    program = [path, "serve", "--transport", "ucx", "--ucx-listen", listen, *arguments]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(program, stdout=quiet, stderr=quiet) as process:
        try:
            yield process
        finally:
            process.kill()


def connected(address, **options):
    """A client of a server that may not listen yet."""
    end = time.monotonic() + PATIENCE_S
    while True:
        client = forerun.Client([address], timeout_ms=PATIENCE_MS, **options)
        try:
            client.get(b"k")
            return client
        except ServerError:
            client.close()
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.05)


@pytest.fixture
def address(tmp_path):
    """The address of a server behind a Unix socket."""
    with server_over_ucx(f"unix:{tmp_path}/ucx"):
        yield f"ucx://{tmp_path}/ucx"


@pytest.mark.parametrize("protocol", ["classic", "meta", "multi_get"])
def test_values_and_batches_travel_over_ucx(address, protocol):
    with connected(address, protocol=protocol) as client:
        large = bytes(range(256)) * 2000
        client.set(b"large", large)
        assert client.get(b"large") == large
        names = [b"row:%d" % row for row in range(1000)]
        rows = np.random.default_rng(1).random((1000, 16)).astype(np.float32)
        client.set_many(names, rows)
        out = np.zeros((1001, 16), np.float32)
        found = client.multi_get([*names, b"none"], out=out)
        assert found[:1000].all() and not found[1000]
        assert (out[:1000] == rows).all()
        assert client.delete(b"large") and client.get(b"large") is None


def test_calls_overlap_in_an_event_loop(address):
    async def main():
        async with aio.Client([address], timeout_ms=PATIENCE_MS, max_calls=8) as client:
            keys = [b"key%d" % number for number in range(50)]
            await asyncio.gather(*(client.set(key, key * 100) for key in keys))
            values = await asyncio.gather(*(client.get(key) for key in keys))
            assert values == [key * 100 for key in keys]
            assert await client.multi_get([*keys, b"none"]) == [*values, None]

    connected(address).close()
    asyncio.run(main())


def test_a_server_at_an_ip_address_requires_its_token(tmp_path):
    token, other = tmp_path / "token", tmp_path / "other"
    token.write_text("a token of enough bytes\n")
    other.write_text("another token, also long\n")
    place = f"127.0.0.1:{free_port()}"
    with server_over_ucx(place, "--ucx-token-file", str(token)):
        with connected(f"ucx://{place}", ucx_token_file=token) as client:
            client.set(b"k", b"v")
            assert client.get(b"k") == b"v"
        for options in [{}, {"ucx_token_file": other}]:
            with (
                forerun.Client([f"ucx://{place}"], timeout_ms=PATIENCE_MS, **options) as client,
                pytest.raises(Error, match="token"),
            ):
                client.get(b"k")
    short = tmp_path / "short"
    short.write_text("short")
    for path, words in [(short, "16"), (tmp_path / "none", "none")]:
        with pytest.raises(InvalidArgumentError, match=words):
            forerun.Client([f"ucx://{place}"], ucx_token_file=path)
