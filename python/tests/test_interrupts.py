"""An exception that Python code raises inside a call reaches the caller: that of a signal handler,
and any other that does not say that an argument is wrong."""

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap

import forerun
import numpy as np
import pytest


class Interrupted(BaseException):
    pass


class Raises:
    """Raises an exception wherever a call uses it as an argument."""

    def __init__(self, error):
        self.error = error

    def fail(self, *_, **__):
        raise self.error

    __array__ = __index__ = __int__ = __float__ = __len__ = __dlpack__ = fail

    def __dlpack_device__(self):
        return 1, 0


class OfADevice(Raises):
    def __dlpack_device__(self):
        return Raises(self.error), 0


class OnAGpu(Raises):
    def __dlpack_device__(self):
        return 2, 0


class OfAType(Raises):
    dtype = property(Raises.fail)


class OfAStream:
    def __init__(self, error):
        self.error = error

    cuda_stream = property(Raises.fail)


def calls(directory):
    table, host = forerun.Table(1), np.zeros((1, 1), np.float32)
    db, cache = forerun.Db(directory / "store"), forerun.Cache("64MiB")
    return {
        "a list of keys": lambda it: table.contains([it]),
        "a tensor of keys": lambda it: table.contains(it),
        "one key": lambda it: table[it],
        "a question": lambda it: it in table,
        "a list of rows": lambda it: table.insert([1], [it]),
        "a tensor of rows": lambda it: table.insert([1], it),
        "a device": lambda it: table.insert([1], OfADevice(it.error)),
        "a tensor on a GPU": lambda it: table.find([1], OnAGpu(it.error)),
        "a stream": lambda it: table.find([1], OnAGpu(TypeError()), stream=OfAStream(it.error)),
        "a type": lambda it: forerun.Table(1, OfAType(it.error)),
        "a size": lambda it: forerun.Cache(it),
        "a number": lambda it: forerun.Table(it),
        "a device number": lambda it: forerun.Table(1, device=it),
        "pairs": lambda it: forerun.gather(host, host, it),
        "values": lambda it: db.put_many(["a"], it),
        "a list of values": lambda it: cache.set_many(["a"], [it]),
    }


@pytest.mark.parametrize("error", [Interrupted, MemoryError, RuntimeError, OSError])
def test_an_exception_of_an_argument_reaches_the_caller(tmp_path, error):
    for name, call in calls(tmp_path).items():
        raised = error("from the argument")
        try:
            call(Raises(raised))
        except BaseException as caught:
            assert caught is raised, f"{name}: {caught!r}"
        else:
            raise AssertionError(f"{name}: the exception is lost")


@pytest.mark.parametrize("error", [TypeError, ValueError, OverflowError])
def test_an_argument_that_python_refuses_is_refused(tmp_path, error):
    for name, call in calls(tmp_path).items():
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call(Raises(error("cannot be used")))


@pytest.fixture
def interrupted():
    """Returns a function that repeats a call until a signal handler raises, and says what came."""

    def handle(*_):
        came.append(1)
        raise Interrupted

    def repeat(call):
        came.clear()
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.01))
            while not came:
                call()
        except Interrupted:
            return "raised"
        except Exception as error:
            return repr(error)
        return "lost"

    came = []
    before = signal.signal(signal.SIGALRM, handle)
    yield repeat
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_during_a_call_with_lists_is_not_lost(interrupted):
    table = forerun.Table(1)
    for call in (
        lambda: table.contains([5]),
        lambda: table.erase([1 << 50]),
        lambda: table.insert([1], [[1.0]]),
        lambda: table.find_pooled([1, 2], [0, 2]),
    ):
        assert {interrupted(call) for _ in range(20)} == {"raised"}


def test_a_signal_in_the_first_wait_of_a_process_is_not_lost():
    program = """
        import signal, sys, forerun
        def handle(*_):
            raise KeyError("from the handler")
        client = forerun.Client("127.0.0.1:" + sys.argv[1], timeout_ms=2000)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
        try:
            client.get("a")
        except KeyError:
            print("raised")
    """
    # It accepts connections and answers nothing.
    with socket.create_server(("127.0.0.1", 0)) as server:
        for delay in "0.002", "0.02", "0.04":
            port = server.getsockname()[1]
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(program), str(port), delay],
                capture_output=True,
                text=True,
                timeout=60,
                env=os.environ,
            )
            assert (done.stdout, done.stderr) == ("raised\n", ""), delay
