//! The model file system itself: what it loses, keeps, tears and fails.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use forerun_db::io::fault::{EIO, ENOSPC, Fault, FaultIo};
use forerun_db::io::{Io, IoFile, OpenMode, read_all, write_all_at};

fn create(io: &FaultIo, path: &str) -> Box<dyn IoFile> {
    io.open(path.as_ref(), OpenMode::Create).unwrap()
}

#[test]
fn bytes_and_names_are_durable_separately() {
    let io = FaultIo::new();
    let root = Path::new("/");
    let named = create(&io, "/named");
    io.sync_dir(root).unwrap();
    write_all_at(&*named, b"unsynced", 0).unwrap();
    let synced = create(&io, "/synced");
    write_all_at(&*synced, b"bytes", 0).unwrap();
    synced.sync().unwrap();
    assert_eq!(io.clone().files().len(), 2);

    let nothing = io.crash(0);
    assert_eq!(
        nothing.read("/named").as_deref(),
        Some(&b""[..]),
        "the name is kept and the bytes are not"
    );
    assert_eq!(
        nothing.read("/synced"),
        None,
        "the bytes are kept and the name is not"
    );
    let everything = io.crash(1);
    assert_eq!(everything.read("/named").as_deref(), Some(&b"unsynced"[..]));
    assert_eq!(everything.read("/synced").as_deref(), Some(&b"bytes"[..]));
    let killed = io.kill();
    assert_eq!(killed.read("/named").as_deref(), Some(&b"unsynced"[..]));
    assert_eq!(
        killed.crash(0).read("/synced"),
        None,
        "after the process died, it is no more durable than before"
    );
    assert_eq!(io.boot_id(), killed.boot_id());
    assert_ne!(io.boot_id(), everything.boot_id());
}

#[test]
fn a_crash_tears_writes_and_loses_them_out_of_order() {
    let io = FaultIo::new();
    let file = create(&io, "/file");
    io.sync_dir("/".as_ref()).unwrap();
    write_all_at(&*file, &[1; 600], 0).unwrap();
    write_all_at(&*file, &[2; 600], 600).unwrap();
    let found: BTreeSet<Vec<u8>> = (0..400)
        .map(|seed| io.crash(seed).read("/file").unwrap())
        .collect();
    assert!(found.contains(&Vec::new()) && found.contains(&[[1; 600], [2; 600]].concat()));
    assert!(
        found
            .iter()
            .any(|bytes| bytes.len() % 512 != 0 && bytes.len() % 600 != 0),
        "torn at some byte"
    );
    assert!(
        found
            .iter()
            .any(|bytes| bytes.ends_with(&[2; 50]) && bytes[..512] == [0; 512]),
        "the later without the earlier"
    );
    assert!(
        found
            .iter()
            .any(|bytes| bytes.len() == 600 && bytes.ends_with(&[0; 50])),
        "a length without its bytes"
    );
    for bytes in &found {
        let is_right = |(at, byte): (usize, &u8)| *byte == 0 || *byte == 1 + u8::from(at >= 600);
        assert!(
            bytes.len() <= 1200 && bytes.iter().enumerate().all(is_right),
            "bytes that were never written"
        );
    }
}

#[test]
fn a_rename_is_atomic() {
    let io = FaultIo::new();
    for (path, bytes) in [("/old", b"old"), ("/new", b"new")] {
        let file = create(&io, path);
        write_all_at(&*file, bytes, 0).unwrap();
        file.sync().unwrap();
    }
    io.sync_dir("/".as_ref()).unwrap();
    io.rename("/new".as_ref(), "/old".as_ref()).unwrap();
    let states: BTreeSet<_> = (0..20)
        .map(|seed| io.crash(seed))
        .map(|io| (io.read("/old"), io.read("/new")))
        .collect();
    let before = (Some(b"old".to_vec()), Some(b"new".to_vec()));
    assert_eq!(
        states,
        BTreeSet::from([before, (Some(b"new".to_vec()), None)])
    );
}

#[test]
fn planned_faults_happen_once() {
    let io = FaultIo::new();
    let file = create(&io, "/file");
    assert_eq!(io.calls(), 1);
    for (call, fault) in [
        (1, Fault::ShortWrite),
        (2, Fault::TornWrite(ENOSPC)),
        (4, Fault::Fail(EIO)),
        (6, Fault::PowerLoss),
    ] {
        io.fail_call(call, fault);
    }
    assert_eq!(file.write_at(b"abcd", 0).unwrap(), 2);
    assert_eq!(io.hit().as_deref(), Some("write /file"));
    assert_eq!(
        file.write_at(b"ABCD", 2).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    assert_eq!(file.len().unwrap(), 4, "half was written");
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(EIO));
    assert_eq!(
        read_all(&*file).unwrap_err().to_string(),
        "the power was lost"
    );
    assert!(
        file.len().is_err() && io.list("/".as_ref()).is_err(),
        "there is no power"
    );
    assert_eq!(io.kill().read("/file").as_deref(), Some(&b"abAB"[..]));
}

#[test]
fn a_full_disk_accepts_data_that_fits() {
    let io = FaultIo::new();
    let file = create(&io, "/file");
    io.set_capacity_bytes(Some(10));
    assert_eq!(file.write_at(&[1; 8], 0).unwrap(), 8);
    assert_eq!(file.write_at(&[2; 8], 8).unwrap(), 2);
    assert_eq!(
        file.write_at(&[3; 8], 10).unwrap_err().raw_os_error(),
        Some(ENOSPC)
    );
    assert_eq!(
        file.write_at(&[4; 10], 0).unwrap(),
        10,
        "what is there can be overwritten"
    );
    assert_eq!(file.set_len(11).unwrap_err().raw_os_error(), Some(ENOSPC));
    file.set_len(4).unwrap();
    assert_eq!(
        write_all_at(&*file, &[5; 8], 4).unwrap_err().raw_os_error(),
        Some(ENOSPC)
    );
    assert_eq!(file.len().unwrap(), 10);
}

#[test]
fn a_removed_file_takes_space_until_it_is_closed() {
    let io = FaultIo::new();
    let (first, second) = (create(&io, "/removed"), create(&io, "/file"));
    let again = io.open("/removed".as_ref(), OpenMode::Read).unwrap();
    write_all_at(&*first, &[1; 8], 0).unwrap();
    io.set_capacity_bytes(Some(10));
    io.remove("/removed".as_ref()).unwrap();
    drop(first);
    assert_eq!(
        (io.used_bytes(), second.write_at(&[2; 8], 0).unwrap()),
        (8, 2)
    );
    drop(again);
    assert_eq!(
        (io.used_bytes(), second.write_at(&[3; 8], 2).unwrap()),
        (2, 8)
    );

    io.remove("/file".as_ref()).unwrap();
    assert_eq!((io.used_bytes(), io.kill().used_bytes()), (10, 0));
}

#[test]
fn files_are_locked_against_each_other_until_they_are_dropped_or_the_process_dies() {
    let io = FaultIo::new();
    let (first, second) = (create(&io, "/file"), create(&io, "/file"));
    assert!(first.try_lock().unwrap() && first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    assert!(create(&io.kill(), "/file").try_lock().unwrap());
    drop(first);
}

#[test]
fn a_forgetful_file_system_loses_what_a_failed_sync_was_to_make_durable() {
    for is_forgetful in [false, true] {
        let io = FaultIo::new();
        io.set_forgetful(is_forgetful);
        let file = create(&io, "/file");
        io.sync_dir("/".as_ref()).unwrap();
        write_all_at(&*file, b"lost", 0).unwrap();
        io.fail_call(io.calls(), Fault::Fail(EIO));
        file.sync().unwrap_err();
        write_all_at(&*file, b"kept", 4).unwrap();
        file.sync().unwrap();
        assert_eq!(io.read("/file").as_deref(), Some(&b"lostkept"[..]));
        let durable = if is_forgetful {
            b"\0\0\0\0kept"
        } else {
            b"lostkept"
        };
        assert_eq!(io.kill().read("/file").as_deref(), Some(&b"lostkept"[..]));
        for seed in 0..10 {
            assert_eq!(io.crash(seed).read("/file").as_deref(), Some(&durable[..]));
        }
    }
}

#[test]
fn a_torn_overwrite_leaves_old_or_new_bytes() {
    let io = FaultIo::new();
    let file = create(&io, "/file");
    write_all_at(&*file, &[1; 1500], 0).unwrap();
    file.sync().unwrap();
    io.sync_dir("/".as_ref()).unwrap();
    write_all_at(&*file, &[2; 2000], 0).unwrap();
    let mut longer_with_zeros = 0;
    for seed in 0..100 {
        let bytes = io.crash(seed).read("/file").unwrap();
        let (over, behind) = bytes.split_at(1500);
        assert!(over.iter().all(|byte| matches!(byte, 1 | 2)), "seed {seed}");
        longer_with_zeros += usize::from(behind.contains(&0));
    }
    assert!(longer_with_zeros > 0, "no length arrived before its bytes");
}

#[test]
fn a_lock_is_held_by_one_or_shared_by_several() {
    let io = FaultIo::new();
    let (first, second) = (create(&io, "/lock"), create(&io, "/lock"));
    let third = create(&io, "/lock");
    assert!(first.try_lock_shared().unwrap());
    assert!(second.try_lock_shared().unwrap());
    assert!(!third.try_lock().unwrap());
    drop(first);
    assert!(!third.try_lock().unwrap(), "one still shares it");
    drop(second);
    assert!(third.try_lock().unwrap());
    let fourth = create(&io, "/lock");
    assert!(!fourth.try_lock_shared().unwrap());
    drop(third);
    assert!(fourth.try_lock_shared().unwrap());
}

#[test]
fn bytes_that_are_overwritten_are_seen_by_all_and_survive_the_power() {
    let io = FaultIo::new();
    let file = create(&io, "/file");
    write_all_at(&*file, b"0123456789", 0).unwrap();
    file.sync().unwrap();
    io.sync_dir(Path::new("/")).unwrap();
    io.overwrite("/file", 8, b"abc");
    assert_eq!(read_all(&*file).unwrap(), b"01234567ab");
    io.overwrite("/file", 20, b"abc");
    io.overwrite("/none", 0, b"abc");
    assert_eq!(io.crash(0).read("/file").unwrap(), b"01234567ab");
}
