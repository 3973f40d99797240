//! Opens a whole store over damaged files: bytes of a good store are overwritten, and a file is
//! truncated.

#![no_main]

use std::sync::Arc;

use forerun_db::io::fault::FaultIo;
use forerun_db::{Db, Durability, Error, Options, Recovery};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, Vec<(u16, u8)>, Option<u16>)| {
    let (recovery, file, changes, cut) = input;
    let options = Options::default()
        .memory_limit_bytes(64 << 10)
        .wal_segment_bytes(300);
    let io = FaultIo::new();
    let db =
        Db::open_with_io(Arc::new(io.clone()), "/store", options.clone()).expect("nothing fails");
    for i in 0..8_u8 {
        let durability = if i % 3 == 0 {
            Durability::Synced
        } else {
            Durability::Buffered
        };
        db.put_with(&[i], &[i; 60], durability)
            .expect("nothing fails");
    }
    if recovery & 0x80 != 0 {
        db.close().expect("nothing fails");
    }
    let io = if recovery & 0x40 != 0 {
        io.crash(recovery.into())
    } else {
        io.kill()
    };

    let files = io.files();
    let Some(path) = files.get(usize::from(file) % files.len().max(1)) else {
        return;
    };
    let mut bytes = io.read(path).unwrap_or_default();
    for (at, value) in changes {
        if let Some(byte) = bytes.get_mut(usize::from(at)) {
            *byte = value;
        }
    }
    if let Some(len) = cut {
        bytes.truncate(len.into());
    }
    io.write(path, &bytes);

    let recovery =
        [Recovery::DropTail, Recovery::Strict, Recovery::SkipCorrupt][usize::from(recovery) % 3];
    match Db::open_with_io(Arc::new(io.clone()), "/store", options.recovery(recovery)) {
        Ok(db) => {
            for entry in db.iter() {
                let (key, value) = entry.expect("entries are read");
                assert!(key.len() == 1 && value == [key[0]; 60], "a wrong value");
            }
            db.put(b"more", b"value").expect("the store continues");
        }
        Err(
            Error::CorruptFile { .. }
            | Error::NotAStore { .. }
            | Error::NewerFormat { .. }
            | Error::OlderFormat { .. },
        ) => {}
        Err(other) => panic!("{other}"),
    }
});
