"""What happens in a store, told to a function of the program."""

import gc
import threading
import weakref

import forerun
import pytest
from forerun import errors


def test_a_function_is_told_what_the_store_does(tmp_path):
    told, threads = [], set()

    def listen(event):
        told.append(event)
        threads.add(threading.current_thread())

    with forerun.Db(tmp_path / "store", event_listener=listen) as db:
        db.update({b"%06d" % i: b"value" for i in range(1000)})
        db.flush()
        db["key"] = b"value"
        db.keyspace("users")["key"] = b"value"
        db.compact()
        stats = db.stats()
    names = [event["event"] for event in told]
    assert len(threads) == 1 and threading.current_thread() not in threads
    flushes = [event for event in told if event["event"] == "flush_ended"]
    assert len(flushes) == stats["tree_flushes"] == names.count("flush_begun")
    assert flushes[0]["keyspaces"] == [""] and flushes[0]["error"] is None
    assert "users" in flushes[-1]["keyspaces"]
    assert sum(event["written_bytes"] for event in flushes) == stats["tree_flushed_bytes"]
    compactions = [event for event in told if event["event"] == "compaction_ended"]
    assert len(compactions) == stats["tree_compactions"] == names.count("compaction_begun")
    assert {event["keyspace"] for event in compactions} == {"", "users"}
    for event in compactions:
        assert event["reason"] in ("level", "requested")
        assert event["into_level"] >= event["from_level"]
        assert event["seconds"] >= 0 and event["error"] is None
    read = sum(event["read_bytes"] for event in compactions)
    assert read == stats["tree_compaction_read_bytes"]


def test_what_a_listener_raises_is_reported_and_the_store_works_on(tmp_path, monkeypatch):
    reported, names = [], []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(report.exc_value))

    def listen(event):
        names.append(event["event"])
        raise ValueError(event["event"])

    with forerun.Db(tmp_path / "store", event_listener=listen) as db:
        for _ in range(2):
            db["key"] = b"value"
            db.flush()
        assert db["key"] == b"value"
    assert names.count("flush_ended") == 2
    assert [str(error) for error in reported] == names
    with pytest.raises(TypeError, match="`event_listener` must be callable with a dict, not int"):
        forerun.Db(tmp_path / "store", event_listener=7)


def test_a_slow_listener_delays_nobody_and_learns_what_it_missed(tmp_path):
    told, go_on = [], threading.Event()

    def listen(event):
        assert go_on.wait(60)
        told.append(event)

    db = forerun.Db(tmp_path / "store", event_listener=listen)
    for _ in range(700):
        db["key"] = b"value"
        db.flush()
    go_on.set()
    db.close()
    lost = sum(event["count"] for event in told if event["event"] == "events_lost")
    known = [event for event in told if event["event"] != "events_lost"]
    assert lost > 0 and len(known) + lost >= 1400 and len(known) >= 1024


def test_a_listener_may_use_the_store_and_close_it(tmp_path):
    closed = threading.Event()

    def listen(event):
        if event["event"] == "flush_ended" and not closed.is_set():
            db["told"] = b"%d" % event["written_bytes"]
            db.close()
            closed.set()

    db = forerun.Db(tmp_path / "store", event_listener=listen)
    db["key"] = b"value"
    db.flush()
    assert closed.wait(60)
    with pytest.raises(errors.ClosedError):
        db["key"]
    with forerun.Db(tmp_path / "store") as db:
        assert int(db["told"]) > 0


def test_a_listener_goes_with_its_store(tmp_path):
    class Listener:
        def __call__(self, event):
            pass

    listener = Listener()
    gone = threading.Event()
    weakref.finalize(listener, gone.set)
    db = forerun.Db(tmp_path / "store", event_listener=listener)
    del listener
    gc.collect()
    assert not gone.is_set()
    db["key"] = b"value"
    db.flush()
    del db
    gc.collect()
    assert gone.wait(60)


def test_a_scrub_reports_damage_and_that_it_has_read_everything(tmp_path):
    path = tmp_path / "store"
    with forerun.Db(path) as db:
        db.update({b"%06d" % i: b"value %d" % i**2 for i in range(20_000)})
        db.flush()
    run = next(path.glob("*.run"))
    with run.open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    told, ended = [], threading.Event()

    def listen(event):
        told.append(event)
        if event["event"] == "scrub_ended":
            ended.set()

    with forerun.Db(path, scrub_rate_bytes="1GiB", event_listener=listen) as db:
        assert ended.wait(60)
        stats = db.stats()
    found = [event["error"] for event in told if event["event"] == "damage_found"]
    assert len(found) == 1 and isinstance(found[0], errors.CorruptionError)
    assert str(run) in str(found[0])
    ends = [event for event in told if event["event"] == "scrub_ended"]
    assert [event["damaged_pages"] for event in ends] == [1] == [stats["scrub_damaged_pages"]]
    assert ends[0]["read_bytes"] == stats["scrub_read_bytes"] == run.stat().st_size
