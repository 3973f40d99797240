//! Stores that are missing, damaged, too new or in use: each case is a worded error with exit code
//! 3, and nothing is lost.

use crate::testing;

use std::path::PathBuf;
use std::process::Stdio;
use testing::{Workspace, files};

/// A store of a hundred entries, and the output of a scan.
fn filled() -> (Workspace, String) {
    let workspace = Workspace::new();
    let rows: String = (0..100)
        .map(|n| format!("key{n:03},{}\n", "v".repeat(n)))
        .collect();
    workspace
        .file("t.csv", format!("id,v\n{rows}"))
        .succeeds(&["load", "db", "t.csv", "--key", "id"]);
    let scan = workspace.succeeds(&["scan", "db"]);
    assert_eq!(scan.lines().count(), 100);
    (workspace, scan)
}

fn log(workspace: &Workspace) -> PathBuf {
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    files(&workspace.path("db"))
        .into_iter()
        .find(is_log)
        .expect("a store has a log")
}

fn contents(workspace: &Workspace) -> Vec<(PathBuf, Vec<u8>)> {
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("a file can be read");
        (path, bytes)
    };
    // The lock file contains the process that opened the store last.
    files(&workspace.path("db"))
        .into_iter()
        .filter(|path| !path.ends_with("LOCK"))
        .map(read)
        .collect()
}

#[test]
fn a_directory_that_is_no_store_is_reported_and_left_untouched() {
    let workspace = Workspace::new();
    for command in [
        &["get", "db", "k"][..],
        &["scan", "db"],
        &["stats", "db"],
        &["multiget", "db", "--keys", "-"],
    ] {
        let reported = workspace.fails(3, command);
        assert!(
            reported.contains("cannot open the store: ")
                && reported.contains("/db is not a Forerun store"),
            "{reported}"
        );
        assert!(!workspace.path("db").exists(), "reading creates no store");
    }
    std::fs::create_dir(workspace.path("db")).expect("a directory can be made");
    workspace
        .file("db/letter.txt", "precious")
        .file("t.csv", "id\n1\n");
    for command in [&["scan", "db"][..], &["load", "db", "t.csv", "--key", "id"]] {
        assert!(
            workspace
                .fails(3, command)
                .contains("db is not a Forerun store")
        );
    }
    assert_eq!(
        files(&workspace.path("db")),
        [workspace.path("db/letter.txt")]
    );
    assert!(
        workspace
            .fails(3, &["scan", "t.csv"])
            .contains("t.csv is not a Forerun store")
    );
}

#[test]
fn a_store_of_a_newer_format_is_reported_and_left_untouched() {
    let (workspace, _) = filled();
    // docs/internals/format.md: the magic, the version, and a checksum of both. Every later version
    // keeps these.
    let mut format = std::fs::read(workspace.path("db/FORMAT")).expect("it can be read");
    format[8..12].copy_from_slice(&9u32.to_le_bytes());
    let checksum = crc32c(&format[..12]);
    format[12..16].copy_from_slice(&checksum.to_le_bytes());
    workspace.file("db/FORMAT", &format);
    let before = contents(&workspace);
    let reported = workspace.fails(3, &["scan", "db"]);
    assert!(
        reported.contains("format version 9") && reported.contains("reads up to version 1"),
        "{reported}"
    );
    assert_eq!(contents(&workspace), before);
}

/// CRC-32C (Castagnoli), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| {
        if crc & 1 == 1 {
            (crc >> 1) ^ 0x82f6_3b78
        } else {
            crc >> 1
        }
    };
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc))
    })
}

#[test]
fn check_reports_a_flipped_bit_with_file_and_offset() {
    let (workspace, _) = filled();
    let path = log(&workspace);
    let whole = std::fs::read(&path).expect("it can be read");
    for at in [40, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x04;
        std::fs::write(&path, damaged).expect("it can be written");
        let before = contents(&workspace);
        let reported = workspace.fails(3, &["scan", "db"]);
        assert!(
            reported.contains("wal-000001.log is corrupt at offset "),
            "{reported}"
        );
        assert_eq!(
            contents(&workspace),
            before,
            "a damaged log is kept as it is"
        );
    }
}

#[test]
fn a_log_truncated_after_a_clean_close_is_reported() {
    let (workspace, _) = filled();
    let path = log(&workspace);
    let whole = std::fs::read(&path).expect("it can be read");
    std::fs::write(&path, &whole[..whole.len() - 10]).expect("it can be written");
    let reported = workspace.fails(3, &["scan", "db"]);
    assert!(reported.contains("wal-000001.log"), "{reported}");
}

/// A store that was killed has no mark of a clean close. The entry that the kill cut short is
/// dropped and reported; the rest is still there.
#[test]
fn a_torn_tail_is_dropped_and_reported() {
    let (workspace, _) = filled();
    workspace
        .file("more.csv", "id,v\nmore1,x\n")
        .succeeds(&["load", "db", "more.csv", "--key", "id"]);
    let _ = std::fs::remove_file(workspace.path("db/CLOSED"));
    let path = log(&workspace);
    let whole = std::fs::read(&path).expect("it can be read");
    std::fs::write(&path, &whole[..whole.len() - 3]).expect("it can be written");
    assert!(
        workspace
            .fails(3, &["scan", "db", "--recovery", "strict"])
            .contains("wal-000001.log")
    );
    let ran = workspace.run(&["scan", "db", "--keys-only"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        ran.text().lines().count(),
        100,
        "batches are atomic: the last one is gone, the one before is complete"
    );
    assert!(
        ran.complaint().contains("dropped") && ran.stderr.contains("wal-000001.log"),
        "{ran:?}"
    );
}

#[test]
fn damage_can_be_skipped_on_request() {
    let (workspace, _) = filled();
    workspace
        .file("more.csv", "id,v\nmore1,x\n")
        .succeeds(&["load", "db", "more.csv", "--key", "id"]);
    let path = log(&workspace);
    let mut damaged = std::fs::read(&path).expect("it can be read");
    damaged[100] ^= 1;
    std::fs::write(&path, damaged).expect("it can be written");
    workspace.fails(3, &["scan", "db"]);
    let ran = workspace.run(&["scan", "db", "--recovery", "skip-corrupt", "--keys-only"]);
    assert_eq!((ran.code, ran.text().as_str()), (0, "more1\n"), "{ran:?}");
    assert!(ran.complaint().contains("wal-000001.log"), "{ran:?}");
}

#[test]
fn a_store_in_use_is_reported() {
    let (workspace, scan) = filled();
    // A load that waits for its input keeps the store open.
    let mut holder = workspace
        .command(&["load", "db", "-", "--format", "csv", "--key", "id"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("it can be started");
    let mut input = holder.stdin.take().expect("asked for");
    std::io::Write::write_all(&mut input, b"id,v\n").expect("it reads");
    // Wait until the holder has read the header and opened the store. The test only reads LOCK: if
    // it opened the store first, the holder would fail.
    let name = format!("process {:010}", holder.id());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !std::fs::read_to_string(workspace.path("db/LOCK")).is_ok_and(|text| text.contains(&name))
    {
        assert!(
            std::time::Instant::now() < deadline,
            "the holder has not opened the store"
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let reported = workspace.fails(3, &["scan", "db"]);
    assert!(reported.contains("db is already open"), "{reported}");
    assert!(
        reported.contains(&format!("process {}", holder.id())),
        "{reported}"
    );
    drop(input);
    assert!(holder.wait().expect("it ends").success());
    assert_eq!(workspace.succeeds(&["scan", "db"]), scan);
}

/// A tiny file system simulates a full disk, if the test may mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_and_written_data_stays() {
    let workspace = Workspace::new();
    std::fs::create_dir(workspace.path("small")).expect("a directory can be made");
    let small = workspace.path("small");
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&small)
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!(
            "no file system can be mounted here: the store's own tests cover a full disk by fault \
             injection"
        );
        return;
    }
    let rows: String = (0..4000)
        .map(|n| format!("key{n:04},{}\n", "v".repeat(500)))
        .collect();
    workspace.file("t.csv", format!("id,v\n{rows}"));
    let reported = workspace.fails(3, &["load", "small/db", "t.csv", "--key", "id"]);
    let kept = workspace.run(&["scan", "small/db", "--keys-only"]);
    let unmounted = std::process::Command::new("umount").arg(&small).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert!(reported.contains("No space left on device"), "{reported}");
    assert!(
        kept.code == 0 && kept.text().lines().count() >= 512,
        "{kept:?}"
    );
}
