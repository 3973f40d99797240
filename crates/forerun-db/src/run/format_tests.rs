//! The bytes of a run's file, which earlier and later releases must agree on.

use std::path::Path;

use twox_hash::XxHash3_64;

use super::{Compression, RunOptions, RunWriter};
use crate::comparator::{Bytewise, Comparator, KeyOrder};
use crate::io::fault::FaultIo;
use crate::versions::{Kind, Version};

/// If this test fails, the format of runs has changed: files of earlier releases are read wrongly.
/// Increase the versions in `meta.rs`, change `docs/internals/format-runs.md`, and write the new
/// hash here. Compression is off, because a new release of its library may choose other bytes.
#[test]
fn a_run_has_the_same_bytes_as_in_every_release_with_its_version() {
    let io = FaultIo::new();
    io.set_unix_time_s(Some(1_700_000_000));
    let path = Path::new("/run-000007.run");
    let options = RunOptions {
        page_bytes: 4 << 10,
        compression: Compression::None,
        ..RunOptions::default()
    };
    let order = KeyOrder::Bytewise;
    let mut writer = RunWriter::with_salt(&io, path, &order, Bytewise.name(), options, 77).unwrap();
    writer.note_keyspace(3, "users");
    let mut add = |key: &[u8], sequence, kind, value: &[u8]| {
        let version = Version {
            key,
            sequence,
            kind,
            value,
        };
        writer.add(version).unwrap();
    };
    for n in 0..400_u32 {
        let key = format!("user:{n:08}");
        add(
            key.as_bytes(),
            1000 - u64::from(n % 7),
            Kind::Value,
            &n.to_le_bytes(),
        );
        if n % 5 == 0 {
            add(key.as_bytes(), 9, Kind::Deletion, &[]);
        }
    }
    // The length of its suffix is in the record.
    add(&[b'z'; 5000], 1, Kind::Value, &[7; 6000]);
    assert!(writer.finish().unwrap().internal_pages > 0);
    let bytes = io.read(path).unwrap();
    let hash = XxHash3_64::oneshot(&bytes);
    assert_eq!(
        (bytes.len(), hash),
        (33_738, 0xb331_dbd2_0af0_18f8),
        "{hash:#x}"
    );
}
