"""No other call can use memory that a running call uses, whatever object it is passed as."""

import asyncio
import threading
import time

import forerun
import numpy as np
import pytest
from test_dlpack import Tensor

refused = forerun.errors.InvalidArgumentError
KEYS = 1 << 18


@pytest.fixture(scope="module")
def table():
    table = forerun.Table(2, "int64")
    table.insert(np.arange(KEYS), np.arange(2 * KEYS).reshape(KEYS, 2))
    return table


def under_way(call):
    """Starts a thread that makes a call. Returns the thread, and a list for the exception that the
    call raises."""
    raised = []

    def run():
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def until_refused(long_call, call):
    """Repeats a call beside a long one until it is refused, and returns the message. If it comes
    first, the long one is
    refused."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        thread, raised = under_way(long_call)
        words = None
        while words is None and thread.is_alive():
            try:
                call()
            except refused as error:
                words = str(error)
        thread.join()
        if words is not None:
            assert not raised, raised
            return words
        assert all(isinstance(error, refused) for error in raised), raised
    raise AssertionError("the call was never refused")


def test_the_memory_of_keys_is_not_written_through_another_tensor(table):
    memory = np.arange(8)
    for out in (Tensor(memory[:4].reshape(2, 2)), Tensor(memory[2:6].reshape(2, 2))):
        with pytest.raises(refused, match="`out` cannot be written.* `keys`"):
            table.find(Tensor(memory[:2] if out.array[0, 0] == 0 else memory[4:6]), out)
    assert memory.tolist() == list(range(8))
    table.find(Tensor(memory[:2]), Tensor(memory[2:6].reshape(2, 2)))


def test_rows_and_flags_are_not_written_to_the_same_bytes(table):
    memory = np.zeros(32, np.uint8)
    with pytest.raises(refused, match="`found` cannot be written.* 2 bytes .* `out`"):
        table.find(
            [1, 2], Tensor(memory.view(np.int64).reshape(2, 2)), Tensor(memory[30:].view(bool))
        )


def test_two_calls_do_not_write_to_the_same_memory_at_once(table):
    memory, keys = np.zeros((KEYS, 2), np.int64), np.random.permutation(KEYS)
    for second in (lambda: Tensor(memory[-1:]), lambda: memory[-1:]):
        words = until_refused(
            lambda: table.find(keys, Tensor(memory)), lambda: table.find([1], second())
        )
        assert "`out`" in words and "16 bytes" in words
    # Memory is free again when the call that used it ends, and neighbouring memory is not affected.
    table.find([5], Tensor(memory[-1:]))
    assert memory[-1].tolist() == [10, 11]
    first, raised = under_way(lambda: table.find(keys[: KEYS // 2], Tensor(memory[: KEYS // 2])))
    while first.is_alive():
        table.find([5], Tensor(memory[KEYS // 2 : KEYS // 2 + 1]))
    assert not raised, raised


def test_what_is_read_may_be_read_by_others_and_not_written(table):
    memory, wanted = np.arange(2 * KEYS).reshape(KEYS, 2), np.arange(KEYS)
    first, raised = under_way(lambda: table.insert(wanted, Tensor(memory)))
    while first.is_alive():
        table.assign([0], Tensor(memory[:1]))
    assert not raised, raised
    words = until_refused(
        lambda: table.insert(wanted, Tensor(memory)), lambda: table.find([0], Tensor(memory[:1]))
    )
    assert "`out` cannot be written" in words and "read as `rows`" in words
    assert np.array_equal(memory, np.arange(2 * KEYS).reshape(KEYS, 2))


def test_copies_of_rows_and_the_store_respect_them_too(table, tmp_path):
    memory, keys = np.zeros((KEYS, 2), np.int64), np.random.permutation(KEYS)
    db = forerun.Db(tmp_path / "store")
    names = np.array([1], np.uint64)
    db.put_many(names, np.zeros((1, 16), np.uint8))
    others = [
        lambda: db.multi_get(names, out=Tensor(memory[:1])),
        lambda: forerun.gather(
            np.ones((1, 2), np.int64), Tensor(memory[:1]), np.zeros((1, 2), np.int64)
        ),
    ]
    for other in others:
        assert "`out`" in until_refused(lambda: table.find(keys, Tensor(memory)), other)
        other()


def test_a_cancelled_lookup_keeps_its_memory_until_it_ends(table):
    memory, keys = np.zeros((KEYS, 2), np.int64), np.random.permutation(KEYS)

    async def is_refused(call):
        """Whether a call is refused. If not, its result is awaited."""
        try:
            answer = call([1], Tensor(memory[:1]))
        except refused as error:
            assert "`out`" in str(error)
            return True
        if asyncio.isfuture(answer):
            await answer
        return False

    async def cancel():
        # A lookup may end before the calls after it are made; then everything is repeated.
        for _ in range(1000):
            memory.fill(0)
            lookup = table.find_async(keys, Tensor(memory))
            lookup.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lookup
            if await is_refused(table.find) and await is_refused(table.find_async):
                break
        else:
            raise AssertionError("no call was refused")
        deadline = time.monotonic() + 60
        while True:
            try:
                return table.find([3], Tensor(memory[:1]))
            except refused:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

    asyncio.run(cancel())
    # It ran to its end. Only the row that was looked up afterwards differs.
    assert memory[0].tolist() == [6, 7]
    assert np.array_equal(memory[1:, 0], 2 * keys[1:])


def test_two_lookups_that_are_awaited_together_do_not_share_memory(table):
    memory, keys = np.zeros((KEYS, 2), np.int64), np.random.permutation(KEYS)

    async def both():
        # The first may end before the second begins; then both are repeated.
        for _ in range(1000):
            first = table.find_async(keys, Tensor(memory))
            try:
                second = table.find_async([1], Tensor(memory[-1:]))
            except refused as error:
                assert "`out`" in str(error)
                break
            await asyncio.gather(first, second)
        else:
            raise AssertionError("no lookup was refused")
        await first
        await table.find_async([5], Tensor(memory[-1:]))

    asyncio.run(both())
    assert memory[-1].tolist() == [10, 11] and np.array_equal(memory[:-1, 0], 2 * keys[:-1])


class Versioned(Tensor):
    """A tensor that counts its in-place changes, as PyTorch's do."""

    _version = 0
    of_inference = False

    def is_inference(self):
        return self.of_inference


@pytest.fixture
def graph(monkeypatch):
    import sys
    import types

    def increment_version(tensor):
        assert not tensor.of_inference
        tensor._version += 1

    for name in ("torch", "torch.autograd", "torch.autograd.graph"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["torch.autograd.graph"].increment_version = increment_version


def test_a_tensor_that_is_written_is_counted_as_changed(table, graph):
    out, found = Versioned(np.zeros((2, 2), np.int64)), Versioned(np.zeros(2, bool))
    table.find([1, 2], out, found)
    assert (out._version, found._version) == (1, 1)
    keys = Versioned(np.arange(2))
    table.find(keys, out)
    assert (keys._version, out._version) == (0, 2)
    forerun.gather(np.ones((1, 2), np.int64), out, np.zeros((1, 2), np.int64))
    assert out._version == 3
    inference = Versioned(np.zeros((2, 2), np.int64))
    inference.of_inference = True
    table.find([1, 2], inference)
    assert inference.array.tolist() == [[2, 3], [4, 5]]


def test_backward_refuses_tensors_changed_by_a_lookup():
    torch = pytest.importorskip("torch")
    table = forerun.Table(2)
    table.insert([1, 2], [[1, 2], [3, 4]])
    out = torch.zeros(2, 2)
    weight = torch.ones(2, 2, requires_grad=True)
    product = weight * out
    before = out._version
    table.find([1, 2], out)
    assert out._version > before
    with pytest.raises(RuntimeError, match="inplace"):
        product.sum().backward()
    with torch.inference_mode():
        table.find([1, 2], torch.zeros(2, 2))


def test_rows_are_not_copied_into_memory_that_a_lookup_writes(table):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from forerun.kvcacheio import transfer_kv_per_layer_mla

    pool, keys = torch.zeros(KEYS, 2, dtype=torch.int64), np.random.permutation(KEYS)
    source, index = torch.ones(1, 2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    words = until_refused(
        lambda: table.find(keys, out=pool.numpy()),
        lambda: transfer_kv_per_layer_mla(source, pool, index, index, 16),
    )
    assert "`dst` cannot be written" in words and "`out`" in words
    transfer_kv_per_layer_mla(source, pool, index, index, 16)
    assert pool[0].tolist() == [1, 1]
