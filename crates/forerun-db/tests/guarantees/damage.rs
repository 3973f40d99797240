//! The examination of a store that is closed or damaged.

use std::sync::Arc;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Access, Compression, Db, Options, Result, repair_with_io};

use crate::holds;
use crate::testing::{STORE, open, run_files, tiny_options};

/// With values of 300 bytes, they take several pages.
const KEYS: u8 = 60;

fn value(key: u8) -> Vec<u8> {
    vec![key + 1; 300]
}

/// Values stored uncompressed in one run.
fn uncompressed() -> Options {
    let options = tiny_options();
    let tree = options.tree.run_bytes(64 << 10);
    let run = options.run.compression(Compression::None);
    options.memtable_bytes(64 << 10).tree(tree).run(run)
}

fn open_read_only(io: &FaultIo) -> Result<Db> {
    let options = tiny_options().access(Access::ReadOnly);
    open(io, &options)
}

/// A closed store in whose runs one byte of a value is changed.
fn damaged() -> FaultIo {
    let io = FaultIo::new();
    let db = open(&io, &uncompressed()).unwrap();
    (0..KEYS).for_each(|key| db.put(&[key], &value(key)).unwrap());
    db.flush().unwrap();
    db.close().unwrap();
    let wanted = value(0);
    for path in run_files(&io) {
        let bytes = io.read(&path).unwrap();
        if let Some(at) = bytes.windows(300).position(|window| window == wanted) {
            io.overwrite(&path, at + 10, b"\0");
            return io;
        }
    }
    panic!("no run has the value");
}

#[test]
fn a_page_with_a_changed_byte_is_an_error() {
    holds(|| {
        let db = open(&damaged(), &uncompressed()).unwrap();
        db.get(&[0]).is_err()
    });
}

#[test]
fn a_repair_reports_what_is_lost() {
    holds(|| {
        let repaired = repair_with_io(Arc::new(damaged()), STORE, &uncompressed()).unwrap();
        !repaired.losses.is_empty()
    });
}

#[test]
fn an_opening_for_reading_only_shows_all_of_the_log() {
    holds(|| {
        let io = FaultIo::new();
        let large = tiny_options().memtable_bytes(64 << 10);
        let db = open(&io, &large).unwrap();
        (0..KEYS).for_each(|key| db.put(&[key], &value(key)).unwrap());
        let io = io.kill();
        let db = open_read_only(&io).unwrap();
        (0..KEYS).all(|key| db.get(&[key]).unwrap() == Some(value(key)))
    });
}

#[test]
fn an_opening_for_reading_only_removes_nothing() {
    holds(|| {
        let io = FaultIo::new();
        let db = open(&io, &tiny_options()).unwrap();
        db.put(b"key", b"value").unwrap();
        let is_log = |path: &&std::path::PathBuf| path.extension().is_some_and(|of| of == "log");
        let files = io.files();
        let segment = files.iter().find(is_log).unwrap();
        let bytes = io.read(segment).unwrap();
        db.put(b"key", &[0; 800]).unwrap();
        db.put(b"key", b"other").unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        assert!(io.read(segment).is_none(), "it is not needed any more");
        io.write(segment, &bytes);
        drop(open_read_only(&io).unwrap());
        io.read(segment).is_some()
    });
}
