//! A loss of power may take unsynced parts of several segments. No thread syncs the log in these
//! tests, so nothing is durable before it must be.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::log_file;
use super::open_segment::Failure;
use super::record;
use super::record::Record;
use super::recovery::{Flushed, Recovery, RecoveryContext, Tail, recover};
use super::recovery_report::RecoveryReport;
use super::writer::LogWriter;
use crate::clock::Clock;
use crate::io::Io;
use crate::io::fault::{EIO, Fault, FaultIo};
use crate::{Error, Result, WriteBatch};

const DIR: &str = "/log";

/// Bytes of a value: a record reaches over several sectors.
const VALUE_BYTES: usize = 1_500;

/// Two records fill a segment.
const SEGMENT_BYTES: u64 = 2_500;

fn new_disk() -> FaultIo {
    let disk = FaultIo::new();
    disk.create_dir(DIR.as_ref()).unwrap();
    disk.sync_dir("/".as_ref()).unwrap();
    disk
}

/// Reads the log back. Each record's value must be its sequence number.
fn read(disk: &FaultIo, recovery: Recovery, power_lost: bool) -> Result<(Tail, RecoveryReport)> {
    let number = |path: PathBuf| log_file::number(path.file_name()?.to_str()?);
    let numbers: Vec<u64> = disk.files().into_iter().filter_map(number).collect();
    let circumstances = RecoveryContext {
        recovery,
        clean_shutdown: None,
        power_lost,
        flushed: Flushed {
            sequence: 0,
            first_segment: 1,
        },
        next_keyspace: 1,
    };
    let mut next = 1;
    let mut apply = |record: &Record<'_>| {
        assert_eq!(
            record.first_sequence, next,
            "records in order, without a gap"
        );
        next += 1;
        Ok(())
    };
    let io: Arc<dyn Io> = Arc::new(disk.clone());
    recover(&io, DIR.as_ref(), &numbers, &circumstances, &mut apply)
}

fn writer(disk: &FaultIo, tail: Tail) -> LogWriter {
    let io: Arc<dyn Io> = Arc::new(disk.clone());
    let clock = Arc::new(Clock::new(Arc::clone(&io), Vec::new(), [].into_iter()));
    LogWriter::new(
        io,
        Path::new(DIR),
        SEGMENT_BYTES,
        usize::MAX,
        clock,
        tail,
        false,
    )
}

fn open(disk: &FaultIo) -> LogWriter {
    writer(disk, read(disk, Recovery::DropTail, true).unwrap().0)
}

fn append(log: &mut LogWriter, sync: bool) -> Result<u64, Failure> {
    let mut batch = WriteBatch::new();
    batch.put("key", [b'v'; VALUE_BYTES]).unwrap();
    let mut group = Vec::new();
    let checksum = crc32c::crc32c(batch.encoded());
    record::begin(&mut group, batch.encoded(), checksum, 1);
    log.append(&mut group, sync)
}

/// Two records in each segment; the first `synced` records are synced.
fn written(records: u64, synced: u64) -> (FaultIo, LogWriter) {
    let disk = new_disk();
    let mut log = open(&disk);
    for n in 1..=records {
        assert_eq!(append(&mut log, n == synced).unwrap(), n);
    }
    (disk, log)
}

#[test]
fn a_loss_of_power_leaves_a_beginning_of_the_log_with_all_that_was_synced() {
    for (synced, seeds) in [(0, 400), (5, 400), (6, 200), (10, 50)] {
        let mut ends = Vec::new();
        for seed in 0..seeds {
            let (disk, _log) = written(10, synced);
            let disk = disk.crash(seed);
            let (tail, report) = read(&disk, Recovery::DropTail, true).unwrap();
            assert!(report.last_sequence >= synced, "seed {seed}: {report}");
            ends.push(report.last_sequence);
            // The log continues there, and the second loss takes nothing that was synced by then.
            let mut log = writer(&disk, tail);
            for n in 1..=3 {
                assert_eq!(append(&mut log, n == 3).unwrap(), report.last_sequence + n);
            }
            let again = read(&disk.crash(seed + 1), Recovery::DropTail, true)
                .unwrap()
                .1;
            assert_eq!(again.last_sequence, report.last_sequence + 3, "seed {seed}");
        }
        ends.sort_unstable();
        ends.dedup();
        assert!(
            ends.len() as u64 > (10 - synced) / 2,
            "{synced} synced: {ends:?}"
        );
    }
}

#[test]
fn recovery_after_a_loss_of_power_may_be_interrupted_at_any_call() {
    for seed in 0..60 {
        let (disk, _log) = written(10, 3);
        let disk = disk.crash(seed);
        let end = read(&disk.kill(), Recovery::DropTail, true)
            .unwrap()
            .1
            .last_sequence;
        for call in 0.. {
            let (disk, _log) = written(10, 3);
            let disk = disk.crash(seed);
            disk.fail_call(disk.calls() + call, Fault::PowerLoss);
            let is_done = read(&disk, Recovery::DropTail, true).is_ok();
            let report = read(&disk.crash(seed + call), Recovery::DropTail, true)
                .unwrap()
                .1;
            assert!(
                (3..=end).contains(&report.last_sequence),
                "seed {seed}, call {call}"
            );
            if is_done {
                break;
            }
        }
    }
}

#[test]
fn a_lost_part_is_an_error_if_the_log_must_be_complete_and_if_the_power_was_not_lost() {
    let (disk, _log) = written(6, 0);
    let disk = disk.kill();
    let cut = disk.read("/log/wal-000001.log").unwrap()[..900].to_vec();
    let lose = |name: &str, bytes: &[u8]| {
        let disk = disk.kill();
        disk.write(format!("/log/{name}"), bytes);
        disk
    };
    for (disk, at) in [
        (lose("wal-000001.log", &cut), "wal-000001.log"),
        (lose("wal-000001.log", &[]), "wal-000001.log"),
        (lose("wal-000002.log", &[]), "wal-000002.log"),
    ] {
        let is_error = |recovery, power_lost| {
            let disk = disk.kill();
            match read(&disk, recovery, power_lost) {
                Err(Error::CorruptFile { path, .. }) => assert!(path.ends_with(at), "{path:?}"),
                other => panic!("{at}: {:?}", other.map(|of| of.1)),
            }
        };
        is_error(Recovery::Strict, true);
        if at == "wal-000001.log" {
            let dropped = read(&disk.kill(), Recovery::DropTail, true).unwrap().1;
            assert!(dropped.dropped_tail.unwrap().len_bytes > 4 * VALUE_BYTES as u64);
        }
    }
    let disk = lose("wal-000001.log", &cut);
    assert!(
        read(&disk, Recovery::DropTail, false).is_err(),
        "the same boot"
    );
}

#[test]
fn damage_to_segments_that_were_durable_is_an_error_after_a_loss_of_power_too() {
    // Everything up to record 6 is durable, and records 7 and 8 say so.
    let (disk, _log) = written(8, 6);
    let disk = disk.crash(1);
    for number in 1..=3 {
        let path = format!("/log/wal-{number:06}.log");
        let good = disk.read(&path).unwrap();
        let mut bad = good.clone();
        bad[800] ^= 1;
        let mut no_header = good.clone();
        no_header[..512].fill(0);
        for bytes in [&bad[..], &no_header, &good[..900], &[]] {
            let disk = disk.kill();
            disk.write(&path, bytes);
            let read = read(&disk, Recovery::DropTail, true);
            assert!(
                matches!(read, Err(Error::CorruptFile { .. })),
                "segment {number}"
            );
        }
        let disk = disk.kill();
        disk.take(&path);
        assert!(
            read(&disk, Recovery::DropTail, true).is_err(),
            "segment {number}"
        );
    }
}

#[test]
fn a_sync_of_an_earlier_segment_that_fails_is_not_tried_again() {
    let (disk, mut log) = written(3, 0);
    disk.set_forgetful(true);
    disk.fail_call(disk.calls(), Fault::Fail(EIO));
    for _ in 0..2 {
        assert!(matches!(append(&mut log, true), Err(Failure::Unknown(_))));
    }
    assert!(disk.hit().unwrap().contains("wal-000001"));
    assert!(log.close().is_err());
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_space_and_loses_none() {
    let (disk, mut log) = written(4, 0);
    disk.set_capacity_bytes(Some(disk.used_bytes() + 20));
    for _ in 0..3 {
        assert!(matches!(
            append(&mut log, false),
            Err(Failure::NotWritten(_))
        ));
    }
    disk.set_capacity_bytes(None);
    for n in 5..=8 {
        assert_eq!(append(&mut log, n == 6).unwrap(), n);
    }
    for seed in 0..50 {
        let report = read(&disk.kill().crash(seed), Recovery::DropTail, true)
            .unwrap()
            .1;
        assert!(report.last_sequence >= 6, "seed {seed}: {report}");
    }
}

#[test]
fn what_a_dead_process_left_unsynced_is_synced_before_a_synced_write_returns() {
    for seed in 0..100 {
        let (disk, _log) = written(7, 0);
        disk.set_forgetful(true);
        // The process lost a sync, too: only writing the bytes again helps.
        let disk = disk.kill();
        let (tail, report) = read(&disk, Recovery::DropTail, false).unwrap();
        assert_eq!(report.last_sequence, 7);
        assert_eq!(append(&mut writer(&disk, tail), true).unwrap(), 8);
        let report = read(&disk.crash(seed), Recovery::DropTail, true).unwrap().1;
        assert_eq!(report.last_sequence, 8, "seed {seed}");
    }
}

#[test]
fn a_segment_of_a_dead_process_that_cannot_be_read_is_tried_again() {
    let mut reads = 0;
    for call in 0..8 {
        let (disk, _log) = written(7, 0);
        let disk = disk.kill();
        let mut log = writer(&disk, read(&disk, Recovery::DropTail, false).unwrap().0);
        assert_eq!(append(&mut log, false).unwrap(), 8);
        disk.fail_call(disk.calls() + call, Fault::Fail(EIO));
        let refused = append(&mut log, true);
        if !disk.hit().is_some_and(|hit| hit.starts_with("read")) {
            continue;
        }
        reads += 1;
        assert!(matches!(refused, Err(Failure::NotWritten(_))));
        assert_eq!(append(&mut log, true).unwrap(), 9, "call {call}");
        let report = read(&disk.crash(0), Recovery::DropTail, true).unwrap().1;
        assert_eq!(report.last_sequence, 9);
    }
    assert!(reads > 0, "a segment is read");
}
