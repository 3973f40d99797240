//! Which log segments exist.

mod testing;

use std::path::{Path, PathBuf};

use forerun_db::io::fault::FaultIo;
use testing::{STORE, open, small_options, tiny_options};

/// The log's segments in a directory, and their lengths.
fn segments(io: &FaultIo, dir: &str) -> Vec<(PathBuf, usize)> {
    let is_segment =
        |path: &PathBuf| path.starts_with(dir) && path.extension() == Some("log".as_ref());
    let files = io.files().into_iter().filter(is_segment);
    files
        .map(|path| (path.clone(), io.read(&path).unwrap().len()))
        .collect()
}

#[test]
fn a_flush_of_all_that_was_written_leaves_nothing_in_the_log_nor_in_a_checkpoint() {
    for options in [small_options(), tiny_options()] {
        let options = options.wal_segment_bytes(1 << 20);
        let io = FaultIo::new();
        let db = open(&io, &options).unwrap();
        for number in 0..200_u32 {
            db.put(&number.to_be_bytes(), &[7; 100]).unwrap();
        }
        assert!(segments(&io, STORE).iter().map(|of| of.1).sum::<usize>() > 64);
        for round in 0..3 {
            db.compact().unwrap();
            db.wait_idle().unwrap();
            let left = segments(&io, STORE);
            assert!(
                left.len() == 1 && left[0].1 <= 32,
                "round {round}: {left:?}"
            );
        }
        db.checkpoint("/copy").unwrap();
        let copied = segments(&io, "/copy");
        assert!(copied.iter().all(|of| of.1 <= 32), "{copied:?}");
        let copy =
            forerun_db::Db::open_with_io(std::sync::Arc::new(io.clone()), "/copy", options.clone());
        assert_eq!(copy.unwrap().iter().count(), 200);
        // The log continues after it, however the process ends.
        db.put(b"after", b"").unwrap();
        db.flush_wal().unwrap();
        let db = open(&io.crash(0), &options).unwrap();
        assert_eq!(db.iter().count(), 201);
    }
}

#[test]
fn a_store_that_was_closed_after_a_flush_opens_with_and_without_more_writes() {
    let io = FaultIo::new();
    for round in 0..4_u32 {
        let db = open(&io, &small_options()).unwrap();
        assert_eq!(db.iter().count() as u32, round.div_ceil(2), "round {round}");
        assert!(round == 0 || db.recovery().clean_close);
        if round % 2 == 0 {
            db.put(&round.to_be_bytes(), b"value").unwrap();
        }
        db.flush().unwrap();
        db.close().unwrap();
    }
    assert!(
        segments(&io, STORE)
            .iter()
            .all(|(path, _)| path.parent() == Some(Path::new(STORE)))
    );
}
