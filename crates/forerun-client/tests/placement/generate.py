"""Writes the tables of key placements that the tests compare the ring with.

    python3 generate.py libmemcached    asks libmemcached.so.11 (Debian: libmemcached11)
    python3 generate.py twemproxy       asks nutcracker (Debian: nutcracker) before servers that
                                        answer with their own name
    python3 generate.py pymemcache      asks pymemcache's RendezvousHash (PyPI: pymemcache)

Each line of a table is `ring key server`; the rings are those of RINGS. The checked-in tables come
from libmemcached 1.1.4, nutcracker 0.5.0 and pymemcache 4.0.0.
"""

import ctypes
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Host, port and weight of each server. Libmemcached and twemproxy leave port 11211 out of the
# names that they hash.
RINGS = {
    "equal": [("10.0.1.%d" % at, 11211, 1) for at in range(1, 9)],
    "ports": [("127.0.0.1", 21000 + at, 1) for at in range(4)],
    "weights": [("10.0.1.1", 11211, 600), ("10.0.1.2", 11211, 300), ("10.0.1.3", 11212, 200)],
    "uneven": [("cache-%d.example" % at, 11211 + at % 3, 1 + at * at) for at in range(7)],
    "single": [("localhost", 11211, 1)],
}


def keys():
    draw = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_-./"
    for length in [*range(1, 40), 54, 55, 56, 57, 63, 64, 65, 119, 120, 249, 250]:
        yield "".join(draw.choice(letters) for _ in range(length))
    for number in range(150):
        yield f"key:{number:012}"


def libmemcached():
    lib = ctypes.CDLL("libmemcached.so.11")
    lib.memcached_create.restype = ctypes.c_void_p
    lib.memcached_create.argtypes = [ctypes.c_void_p]
    lib.memcached_behavior_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    lib.memcached_server_add_with_weight.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_uint16,
        ctypes.c_uint32,
    ]
    lib.memcached_generate_hash.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    lib.memcached_generate_hash.restype = ctypes.c_uint32
    # Their numbers in memcached_behavior_t.
    for name, behavior in [("ketama", 3), ("ketama_weighted", 16)]:
        for ring, servers in RINGS.items():
            if name == "ketama" and any(weight > 1 for *_, weight in servers):
                continue  # A weight turns the other behavior on.
            handle = lib.memcached_create(None)
            assert lib.memcached_behavior_set(handle, behavior, 1) == 0
            for host, port, weight in servers:
                status = lib.memcached_server_add_with_weight(handle, host.encode(), port, weight)
                assert status == 0
            for key in keys():
                at = lib.memcached_generate_hash(handle, key.encode(), len(key))
                yield f"{name}/{ring} {key} {at}"


def answer_with_name(listener, name):
    def serve(connection):
        stream = connection.makefile("rwb")
        for line in stream:
            key = line.split()[1].decode()
            stream.write(f"VALUE {key} 0 {len(name)}\r\n{name}\r\nEND\r\n".encode())
            stream.flush()

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=[connection], daemon=True).start()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def twemproxy():
    for hash in ["md5", "fnv1a_64"]:
        for ring, servers in RINGS.items():
            lines = []
            for at, (host, port, weight) in enumerate(servers):
                listener = socket.create_server(("127.0.0.1", 0))
                threading.Thread(
                    target=answer_with_name, args=[listener, str(at)], daemon=True
                ).start()
                address = listener.getsockname()[1]
                # The name of a server without one, which twemproxy would hash.
                name = host if port == 11211 else f"{host}:{port}"
                lines.append(f"    - 127.0.0.1:{address}:{weight} {name}\n")
            port = free_port()
            with tempfile.NamedTemporaryFile("w", suffix=".yml") as config:
                config.write(
                    f"pool:\n  listen: 127.0.0.1:{port}\n  hash: {hash}\n"
                    "  distribution: ketama\n  servers:\n" + "".join(lines)
                )
                config.flush()
                proxy = subprocess.Popen(
                    ["/usr/sbin/nutcracker", "-c", config.name, "-s", str(free_port())],
                    stderr=subprocess.DEVNULL,
                )
                try:
                    time.sleep(0.5)
                    stream = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
                    for key in keys():
                        stream.write(f"get {key}\r\n".encode())
                        stream.flush()
                        assert stream.readline().startswith(b"VALUE"), key
                        at = int(stream.readline())
                        assert stream.readline() == b"END\r\n"
                        yield f"{hash}/{ring} {key} {at}"
                finally:
                    proxy.kill()
                    proxy.wait()


def pymemcache():
    from pymemcache.client.rendezvous import RendezvousHash

    for ring, servers in RINGS.items():
        names = [f"{host}:{port}" for host, port, _ in servers]
        hasher = RendezvousHash(nodes=names)
        for key in keys():
            yield f"rendezvous/{ring} {key} {names.index(hasher.get_node(key))}"


if __name__ == "__main__":
    source = sys.argv[1]
    table = pathlib.Path(__file__).with_name(f"{source}.txt")
    table.write_text("".join(f"{line}\n" for line in globals()[source]()))
