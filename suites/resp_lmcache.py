"""Round trips of KV-cache chunks through LMCache's connectors `redis://` (redis-py) and `resp://`
(its own client in C++). `suites/resp` runs it with SUITE_PORT, against a server whose values may
have 64 MiB."""

import asyncio
import os

import pytest
import redis
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

PORT = int(os.environ["SUITE_PORT"])
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
TOKENS = 256
# Layers, keys and values, tokens, heads, and the size of a head.
SMALL = (2, 2, TOKENS, 8, 128)
# 32 MiB, as of a model with 8 billion parameters.
WHOLE = (32, 2, TOKENS, 8, 128)


@pytest.fixture
def server():
    client = redis.Redis(port=PORT)
    client.flushall()
    return client


class Connected:
    """A connector and what it needs, made in the event loop that runs it."""

    def __init__(self, scheme, shape, dtype):
        self.dtype = dtype
        self.metadata = LMCacheMetadata(MODEL, 1, 1, 0, 0, dtype, shape, chunk_size=TOKENS)
        config = LMCacheEngineConfig.from_dict(
            {
                "chunk_size": TOKENS,
                "local_cpu": False,
                "save_unfull_chunk": False,
                "extra_config": {"save_chunk_meta": scheme == "redis"},
            }
        )
        self.backend = LocalCPUBackend(
            config, self.metadata, dst_device="cpu", memory_allocator=AdHocMemoryAllocator()
        )
        self.connector = CreateConnector(
            f"{scheme}://127.0.0.1:{PORT}",
            asyncio.get_running_loop(),
            self.backend,
            config,
            self.metadata,
        )

    async def close(self):
        # The connector's own `close` waits for tasks of the loop that runs it.
        wrapped = self.connector.getWrappedConnector()
        await wrapped.pq_executor.shutdown_async(wait=False)
        if hasattr(wrapped, "connection"):
            await wrapped.connection.aclose()
        else:
            wrapped.client.close()

    def chunk(self, seed):
        """A chunk of numbers that depend on the seed."""
        made = self.backend.allocate(self.metadata.get_shapes(), self.metadata.get_dtypes())
        torch.manual_seed(seed)
        made.raw_data.copy_(torch.randint(0, 256, made.raw_data.shape, dtype=torch.uint8))
        return made

    def keys(self, count, first=0):
        return [
            CacheEngineKey(MODEL, 1, 0, hash((first + at, "chunk")), self.dtype)
            for at in range(count)
        ]


def run(body, scheme="redis", shape=SMALL, dtype=torch.bfloat16):
    async def inside():
        connected = Connected(scheme, shape, dtype)
        try:
            await asyncio.wait_for(body(connected), 60)
        finally:
            await connected.close()

    asyncio.run(inside())


def same(one, other):
    return other is not None and torch.equal(one.raw_data, other.raw_data)


SCHEMES = pytest.mark.parametrize("scheme", ["redis", "resp"])


@SCHEMES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8], ids=str)
def test_a_chunk_comes_back(server, scheme, dtype):
    async def body(connected):
        (key,) = connected.keys(1)
        chunk = connected.chunk(1)
        assert not await connected.connector.exists(key)
        await connected.connector.put(key, chunk)
        assert await connected.connector.exists(key)
        found = await connected.connector.get(key)
        assert same(chunk, found)
        assert found.get_shape() == chunk.get_shape()
        assert found.get_dtype() == chunk.get_dtype()

    run(body, scheme, dtype=dtype)


@SCHEMES
def test_a_chunk_of_a_whole_model_comes_back(server, scheme):
    async def body(connected):
        (key,) = connected.keys(1)
        chunk = connected.chunk(1)
        assert chunk.raw_data.numel() == 32 << 20
        await connected.connector.put(key, chunk)
        assert same(chunk, await connected.connector.get(key))

    run(body, scheme, shape=WHOLE)


def test_a_missing_chunk_is_none(server):
    async def body(connected):
        assert await connected.connector.get(connected.keys(1)[0]) is None

    run(body)


def test_a_chunk_replaces_another(server):
    async def body(connected):
        (key,) = connected.keys(1)
        await connected.connector.put(key, connected.chunk(1))
        await connected.connector.put(key, connected.chunk(2))
        assert same(connected.chunk(2), await connected.connector.get(key))

    run(body)


def test_metadata_without_its_chunk_is_removed(server):
    async def body(connected):
        (key,) = connected.keys(1)
        await connected.connector.put(key, connected.chunk(1))
        assert server.delete(key.to_string() + "kv_bytes") == 1
        assert await connected.connector.get(key) is None
        assert not await connected.connector.exists(key)
        assert server.dbsize() == 0

    run(body)


@SCHEMES
def test_chunks_come_back_in_batches(server, scheme):
    async def body(connected):
        keys = connected.keys(64)
        chunks = [connected.chunk(at) for at in range(64)]
        await connected.connector.batched_put(keys, chunks)
        found = await connected.connector.batched_get_non_blocking("lookup", keys)
        assert len(found) == 64
        assert all(same(one, other) for one, other in zip(chunks, found, strict=True))

    run(body, scheme)


@SCHEMES
def test_the_prefix_that_exists_is_counted(server, scheme):
    async def body(connected):
        keys = connected.keys(8)
        for at in (0, 1, 2, 4):
            await connected.connector.put(keys[at], connected.chunk(at))
        wrapped = connected.connector.getWrappedConnector()
        assert await wrapped._batched_async_contains(*prefix_arguments(scheme, keys)) == 3
        assert await wrapped._batched_async_contains(*prefix_arguments(scheme, keys[3:])) == 0

    def prefix_arguments(scheme, keys):
        return (keys,) if scheme == "resp" else ("lookup", keys)

    run(body, scheme)


@SCHEMES
def test_many_chunks_at_once(server, scheme):
    async def body(connected):
        keys = connected.keys(100)
        chunks = [connected.chunk(at) for at in range(100)]
        puts = [connected.connector.put(*one) for one in zip(keys, chunks, strict=True)]
        await asyncio.gather(*puts)
        found = await asyncio.gather(*[connected.connector.get(key) for key in keys])
        assert all(same(one, other) for one, other in zip(chunks, found, strict=True))

    run(body, scheme)
