//! Runs of other format versions are refused by name, and a repair does not take them for damaged.

use crate::Error;
use crate::run;
use crate::testing::tree_fixture::{Fixture, grown};

#[test]
fn a_repair_leaves_runs_of_other_versions_as_they_are() {
    for (version, is_lost) in [(1, false), (4, false), (1, true), (4, true)] {
        let fixture = grown(false);
        let path = fixture.run_path(0);
        let mut bytes = fixture.io.read(&path).unwrap();
        let salt = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        bytes[..32].copy_from_slice(&run::header_of(version, salt));
        fixture.io.write(&path, &bytes);
        // Another run is damaged.
        let damaged = fixture.run_path(1);
        let mut bytes = fixture.io.read(&damaged).unwrap();
        bytes[100] ^= 1;
        fixture.io.write(&damaged, &bytes);
        if is_lost {
            fixture.io.take("/db/MANIFEST");
        }
        let files = |fixture: &Fixture| -> Vec<_> {
            let paths = fixture.io.files().into_iter();
            let paths = paths.filter(|path| !path.ends_with("LOCK"));
            paths
                .map(|path| (path.clone(), fixture.io.read(&path).unwrap()))
                .collect()
        };
        let before = files(&fixture);
        let error = fixture.repair().unwrap_err();
        match (&error, version) {
            (Error::OlderFormat { path: named, .. }, 1)
            | (Error::NewerFormat { path: named, .. }, 4) => assert_eq!(*named, path),
            _ => panic!("{error}"),
        }
        assert!(files(&fixture) == before, "version {version}");
    }
}
