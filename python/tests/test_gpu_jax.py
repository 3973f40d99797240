"""`forerun.gpu_jax`: a table on the CPU inside `jax.jit`."""

import doctest

import forerun
import numpy as np
import pytest
from forerun.errors import InvalidArgumentError

jax = pytest.importorskip("jax", reason="JAX is not installed")
from forerun import gpu_jax  # noqa: E402

jnp = jax.numpy


def ones(*shape):
    return jnp.ones(shape, "float32")


def new_table(dtype="float32"):
    return forerun.GpuTable(4096, 4, dtype, device="cpu")


def test_compiled_lookups_and_changes_keep_their_order():
    table = new_table()

    @jax.jit
    def training_step(keys):
        _, absent = gpu_jax.find(table, keys)
        inserted = gpu_jax.insert_or_assign(table, keys, ones(*keys.shape, 4))
        before, _ = gpu_jax.find(table, keys)
        gpu_jax.assign(table, keys, before * 2)
        between, _ = gpu_jax.find(table, keys)
        erased = gpu_jax.erase(table, keys[0])
        return absent, inserted, before, between, erased, gpu_jax.contains(table, keys)

    for first in (0, 100):
        keys = jnp.arange(first, first + 6).reshape(2, 3)
        absent, inserted, before, between, erased, left = training_step(keys)
        assert not absent.any() and (inserted == 2).all() and (erased == 1).all()
        assert (before == 1).all() and (between == 2).all()
        assert left.tolist() == [[False] * 3, [True] * 3]
    jax.effects_barrier()
    assert len(table) == 6


def test_a_change_whose_outcome_is_not_used_is_made():
    table = new_table()
    change = jax.jit(lambda keys: gpu_jax.find_or_insert(table, keys, ones(3, 4))[0].sum())
    assert change(jnp.arange(3)) == 12
    jax.jit(lambda keys: gpu_jax.erase(table, keys).shape)(jnp.arange(2))
    jax.effects_barrier()
    assert table.contains(np.arange(3)).tolist() == [False, False, True]


def test_many_keys_pass():
    table = forerun.GpuTable(1 << 17, 4, device="cpu")
    keys = jnp.arange(1 << 16)
    rows = jnp.broadcast_to(keys[:, None].astype("float32"), (1 << 16, 4))
    write = jax.jit(lambda keys, rows: gpu_jax.insert_or_assign(table, keys, rows))
    read = jax.jit(lambda keys: gpu_jax.find(table, keys))
    for _ in range(5):
        write(keys, rows)
        found_rows, found = read(keys)
        assert found.all() and (found_rows == rows).all()


def test_rows_have_the_type_of_the_table_and_no_gradient():
    table = new_table("bfloat16")
    keys, rows = jnp.arange(2), jnp.ones((2, 4), "bfloat16")

    def loss(scale):
        gpu_jax.insert_or_assign(table, keys, rows * scale.astype("bfloat16"))
        found, _ = gpu_jax.find(table, keys)
        assert found.dtype == jnp.bfloat16
        return (found.astype("float32") * scale).sum()

    assert jax.jit(jax.grad(loss))(jnp.float32(3)) == 24  # the rows, as if they were constant


def test_what_cannot_be_used_is_refused_before_it_runs():
    table, keys = new_table(), jnp.arange(2)
    for call, words in [
        (lambda: gpu_jax.find(table, ones(2)), "keys must be integers"),
        (lambda: gpu_jax.assign(table, keys, ones(3, 4)), "of shape .2, 4., not float32"),
        (lambda: gpu_jax.assign(table, keys, jnp.ones((2, 4), "float16")), "must be float32"),
        (lambda: gpu_jax.assign(table, keys, ones(2, 4), ones(2)), "scores"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            jax.jit(call)()
    if not jax.config.jax_enable_x64:
        with pytest.raises(InvalidArgumentError, match="jax_enable_x64"):
            gpu_jax.find(new_table("float64"), keys)


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="integers have 64 bits")
def test_numbers_that_32_bits_do_not_hold_are_refused():
    table, rows = new_table(), ones(2, 4)
    for wide in (2**31, -(2**31) - 1):
        keys = np.array([1, wide])
        with pytest.raises(InvalidArgumentError, match="`keys` beyond 32 bits"):
            gpu_jax.find(table, keys)
        with pytest.raises(InvalidArgumentError, match="`scores` beyond 32 bits"):
            gpu_jax.insert_or_assign(table, np.arange(2), rows, keys)
    keys = np.array([2**31 - 1, -(2**31)])
    gpu_jax.insert_or_assign(table, keys, rows)
    assert gpu_jax.find(table, keys)[1].all()
    jax.effects_barrier()
    assert table.contains(keys).all()


def test_the_example_of_the_module_runs():
    result = doctest.testmod(gpu_jax)
    assert result.attempted > 0 and result.failed == 0
