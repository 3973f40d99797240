"""The client of memcached servers for asyncio.

>>> import asyncio
>>> from forerun import aio
>>> async def main():
...     async with aio.Client(["10.0.1.1", "10.0.1.2"]) as client:
...         await client.set("key", b"value")
...         return await client.multi_get(["key", "other"])
>>> asyncio.run(main())  # doctest: +SKIP
[b'value', None]

A call runs in the event loop: the loop watches one descriptor per call, no thread waits, and
nothing blocks. Cancelling a call closes its connections, so that no other call reads its answers;
a write that was cancelled may have happened.
"""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

import forerun
from forerun._forerun import ClientCalls, PendingCall
from forerun.stats import ClientStats

if TYPE_CHECKING:
    from typing_extensions import Self

    from forerun._arguments import Array, Bools, ByteKeys, Bytes, Size, StrPath, Values

__all__ = ["Client"]

_T = TypeVar("_T")

# A timer may be early by the resolution of the loop's clock.
_EARLY_SECONDS = 0.001


async def _end_of(call: PendingCall) -> PendingCall:
    """The call after its end."""
    if call.advance():
        return call
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    descriptor = call.fileno()
    timer: asyncio.TimerHandle | None = None

    def advance() -> None:
        if ended.done():
            return
        try:
            if not call.advance():
                return
        except Exception as error:
            loop.remove_reader(descriptor)
            ended.set_exception(error)
            return
        # Immediately: the end of the call has closed the descriptor; another may get its number.
        loop.remove_reader(descriptor)
        ended.set_result(None)

    def expire() -> None:
        nonlocal timer
        advance()
        if not ended.done():
            timer = loop.call_later(max(call.timeout_seconds(), _EARLY_SECONDS), expire)

    loop.add_reader(descriptor, advance)
    timer = loop.call_later(call.timeout_seconds(), expire)
    try:
        await ended
    except BaseException:
        # The call may have ended just before the task was cancelled.
        if ended.cancelled() or not ended.done():
            loop.remove_reader(descriptor)
        call.cancel()
        raise
    finally:
        timer.cancel()
    return call


class Client:
    """A client of several memcached servers, with the calls of `forerun.Client` as coroutines.

    It takes the arguments of `forerun.Client`, and `max_calls`: the number of calls that run at the
    same time. Each uses its own connections, at most one to each server. Further calls wait for
    their turn, and their time limit begins when they get it. A client belongs to one event loop.
    Names of servers are resolved when the client is made, which may block.
    """

    def __init__(
        self,
        servers: "str | Iterable[str]",
        *,
        max_calls: int = 64,
        ring: Literal["ketama", "ketama_unweighted", "ketama_fnv1a_64", "rendezvous"] = "ketama",
        protocol: Literal["classic", "meta", "multi_get"] = "classic",
        timeout_ms: int = 1000,
        failures_to_eject: int = 2,
        retry_interval_ms: int = 2000,
        ejected_keys: Literal["fail", "move"] = "fail",
        on_failure: Literal["raise", "miss"] = "raise",
        resolve_interval_ms: int = 30_000,
        idle_timeout_ms: int = 10_000,
        failed_deletes_max: int = 0,
        max_value_bytes: "Size" = 16 << 20,
        user: str | None = None,
        password: str | None = None,
        tls_ca_file: "StrPath | None" = None,
        tls_server_name: str | None = None,
        tls_cert_file: "StrPath | None" = None,
        tls_key_file: "StrPath | None" = None,
        ucx_token_file: "StrPath | None" = None,
    ) -> None:
        if max_calls < 1:
            raise forerun.errors.InvalidArgumentError("`max_calls` must be at least 1")
        self._client = forerun.Client(
            servers,
            ring=ring,
            protocol=protocol,
            timeout_ms=timeout_ms,
            failures_to_eject=failures_to_eject,
            retry_interval_ms=retry_interval_ms,
            ejected_keys=ejected_keys,
            on_failure=on_failure,
            resolve_interval_ms=resolve_interval_ms,
            idle_timeout_ms=idle_timeout_ms,
            failed_deletes_max=failed_deletes_max,
            max_value_bytes=max_value_bytes,
            user=user,
            password=password,
            tls_ca_file=tls_ca_file,
            tls_server_name=tls_server_name,
            tls_cert_file=tls_cert_file,
            tls_key_file=tls_key_file,
            ucx_token_file=ucx_token_file,
        )
        self._calls = ClientCalls(self._client)
        self._turns = asyncio.Semaphore(max_calls)

    async def _run(self, start: Callable[..., PendingCall], *arguments: object) -> object:
        # A call that waits for its turn has no descriptor yet.
        async with self._turns:
            return (await _end_of(start(*arguments))).result()

    @overload
    async def get(self, key: "Bytes", default: None = None) -> bytes | None: ...
    @overload
    async def get(self, key: "Bytes", default: bytes) -> bytes: ...
    @overload
    async def get(self, key: "Bytes", default: _T) -> bytes | _T: ...
    async def get(self, key: "Bytes", default: object = None) -> object:
        """Returns the value of a key, or `default` if the key is missing."""
        value = await self._run(self._calls.get, key)
        return default if value is None else value

    async def gets(self, key: "Bytes") -> tuple[bytes, int] | None:
        """Returns the value of a key and its version, for `compare_and_set`."""
        return cast("tuple[bytes, int] | None", await self._run(self._calls.gets, key))

    async def get_and_touch(self, key: "Bytes", ttl_seconds: int | None = None) -> bytes | None:
        """Returns the value of a key and makes it expire after `ttl_seconds`."""
        return cast("bytes | None", await self._run(self._calls.get_and_touch, key, ttl_seconds))

    @overload
    async def multi_get(
        self, keys: "ByteKeys", *, out: None = None, found: None = None
    ) -> list[bytes | None]: ...
    @overload
    async def multi_get(
        self, keys: "ByteKeys", *, out: "Array", found: "Bools | None" = None
    ) -> NDArray[np.bool_]: ...
    async def multi_get(
        self, keys: "ByteKeys", *, out: "Array | None" = None, found: "Bools | None" = None
    ) -> "list[bytes | None] | NDArray[np.bool_]":
        """Looks up a batch of keys on all servers at once, as `forerun.Client.multi_get`.

        `out` and `found` are written at the end of the call, so a call that is cancelled leaves
        them as they are.
        """
        if out is None and found is not None:
            message = "`found` is only for a lookup into `out`, and `out` is missing"
            raise forerun.errors.InvalidArgumentError(message)
        async with self._turns:
            call = await _end_of(self._calls.multi_get(keys))
            return cast("list[bytes | None] | NDArray[np.bool_]", call.result(out, found))

    async def set(
        self, key: "Bytes", value: "Bytes", *, ttl_seconds: int | None = None
    ) -> None:
        """Stores a value. With `ttl_seconds` it expires after that time."""
        await self._run(self._calls.set, key, value, ttl_seconds)

    async def add(
        self, key: "Bytes", value: "Bytes", *, ttl_seconds: int | None = None
    ) -> bool:
        """Stores a value if the key is missing. Returns whether it did."""
        return cast("bool", await self._run(self._calls.add, key, value, ttl_seconds))

    async def replace(
        self, key: "Bytes", value: "Bytes", *, ttl_seconds: int | None = None
    ) -> bool:
        """Stores a value if the key exists. Returns whether it did."""
        return cast("bool", await self._run(self._calls.replace, key, value, ttl_seconds))

    async def append(self, key: "Bytes", value: "Bytes") -> bool:
        """Appends to the value of a key. Returns whether the key exists."""
        return cast("bool", await self._run(self._calls.append, key, value))

    async def prepend(self, key: "Bytes", value: "Bytes") -> bool:
        """Puts bytes before the value of a key. Returns whether the key exists."""
        return cast("bool", await self._run(self._calls.prepend, key, value))

    async def compare_and_set(
        self, key: "Bytes", value: "Bytes", version: int, *, ttl_seconds: int | None = None
    ) -> bool:
        """Stores a value if the key still has this version. Returns whether it did."""
        start = self._calls.compare_and_set
        return cast("bool", await self._run(start, key, value, version, ttl_seconds))

    async def set_many(
        self, keys: "ByteKeys", values: "Values", *, ttl_seconds: int | None = None
    ) -> None:
        """Stores many values on all servers at once."""
        await self._run(self._calls.set_many, keys, values, ttl_seconds)

    async def delete(self, key: "Bytes") -> bool:
        """Deletes a key. Returns whether it existed."""
        return cast("bool", await self._run(self._calls.delete, key))

    async def delete_many(self, keys: "ByteKeys") -> int:
        """Deletes many keys on all servers at once. Returns how many existed."""
        return cast("int", await self._run(self._calls.delete_many, keys))

    async def touch(self, key: "Bytes", ttl_seconds: int | None = None) -> bool:
        """Makes an entry expire after `ttl_seconds`. Returns whether the key exists."""
        return cast("bool", await self._run(self._calls.touch, key, ttl_seconds))

    async def increment(self, key: "Bytes", delta: int = 1) -> int | None:
        """Adds to a decimal number and returns the sum, or `None` if the key is missing."""
        return cast("int | None", await self._run(self._calls.increment, key, delta))

    async def decrement(self, key: "Bytes", delta: int = 1) -> int | None:
        """Subtracts from a decimal number, down to 0, and returns the difference."""
        return cast("int | None", await self._run(self._calls.decrement, key, delta))

    async def clear(self) -> None:
        """Deletes all entries of all servers."""
        await self._run(self._calls.clear)

    @property
    def servers(self) -> list[str]:
        """The servers' addresses."""
        return self._client.servers

    def server_of(self, key: "Bytes") -> str:
        """Returns the address of the server that has a key while no server is left out."""
        return self._client.server_of(key)

    def stats(self) -> ClientStats:
        """Returns what this client has counted, as a dict."""
        return self._client.stats()

    def close(self) -> None:
        """Closes the connections, those of running calls when they end."""
        self._client.close()

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._client.closed

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.__exit__(error, value, traceback)

    def __repr__(self) -> str:
        return repr(self._client).replace("forerun.Client", "forerun.aio.Client", 1)

    def __reduce__(self) -> str:
        raise forerun.errors.InvalidArgumentError(
            "a client has connections of this process and cannot be pickled: make one in the other "
            "process"
        )
