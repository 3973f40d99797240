//! `MANIFEST` names the runs that make up the store, and the first log segment that is needed.
//!
//! ```text
//!  0       8         12         16       20                     20 + length
//! ┌───────┬─────────┬──────────┬────────┬──────── length bytes ─┬──────────┐
//! │ magic │ version │ checksum │ length │ content               │ checksum │
//! └───────┴─────────┴──────────┴────────┴───────────────────────┴──────────┘
//!
//! content = next_run │ first_segment │ flushed_sequence │ next_keyspace │ marks │ keyspaces
//! marks = count │ count × (second │ first_sequence)      keyspaces = count │ count × keyspace
//! keyspace = id │ name │ comparator │ levels, ranges: 8 × (count │ count × (number │ bytes │ checksum)) │ …
//! ```
//!
//! `docs/internals/format.md` defines it. It is small (24 bytes per run), so each change rewrites
//! it atomically and durably. There is no log of changes to replay, and no state between two
//! manifests.

mod decode;

use std::path::Path;

use crate::bytes::u32_at;
use crate::clock::Mark;
use crate::io::replace::{ReplaceError, replace_file};
use crate::io::{Io, OpenMode, read_all};
use crate::sealed::{Bad, Kind, put_bytes, put_u32, put_u64};
use crate::{Error, KEYSPACE_NAME_BYTES_MAX, Result, TreeOptions};

/// The file's name.
pub(crate) const NAME: &str = "MANIFEST";

/// The number of levels.
pub(crate) const LEVELS: usize = TreeOptions::LEVELS;

pub(crate) const KIND: Kind = Kind {
    magic: *b"FORE-MAN",
    version: 2,
};

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// A number above those of all runs.
    pub(crate) next_run: u64,
    /// The first log segment with anything that is in no run.
    pub(crate) first_segment: u64,
    /// Everything up to this sequence number is in runs.
    pub(crate) flushed_sequence: u64,
    /// A number above those of all keyspaces that have ever existed.
    pub(crate) next_keyspace: u32,
    /// When the entries in runs were written, if entries of any keyspace expire.
    pub(crate) marks: Vec<Mark>,
    /// Ascending by id. The first is the default keyspace, with id 0 and an empty name.
    pub(crate) keyspaces: Vec<Keyspace>,
}

/// The runs of one ordered set of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keyspace {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// The name of the comparator that orders the keys.
    pub(crate) comparator: String,
    /// The runs of each level, in the level's order.
    pub(crate) levels: [Vec<RunRecord>; LEVELS],
    /// The runs that hold range deletions.
    pub(crate) range_runs: Vec<RunRecord>,
    /// Everything up to this sequence number has expired.
    pub(crate) expired_sequence: u64,
    /// How many seconds entries live; 0 means that they never expire.
    pub(crate) ttl: u64,
}

/// Identifies a run's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunRecord {
    pub(crate) number: u64,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// The checksum of the file's footer.
    pub(crate) checksum: u64,
}

impl Keyspace {
    /// A keyspace without runs.
    pub(crate) fn new(id: u32, name: &str, comparator: &str) -> Keyspace {
        Keyspace {
            id,
            name: name.to_owned(),
            comparator: comparator.to_owned(),
            levels: Default::default(),
            range_runs: Vec::new(),
            expired_sequence: 0,
            ttl: 0,
        }
    }
}

impl Manifest {
    /// The manifest of a store without runs.
    pub(crate) fn new(comparator: &str) -> Manifest {
        Manifest {
            next_run: 1,
            first_segment: 1,
            flushed_sequence: 0,
            next_keyspace: 1,
            marks: Vec::new(),
            keyspaces: vec![Keyspace::new(0, "", comparator)],
        }
    }

    /// Reads a store's manifest; `None` if there is none.
    pub(crate) fn read(io: &dyn Io, dir: &Path) -> Result<Option<Manifest>> {
        let path = dir.join(NAME);
        let file = match io.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", &path, error)),
        };
        let bytes = read_all(&*file).map_err(|error| Error::io("read", &path, error))?;
        let decoded = Manifest::decode(&bytes);
        decoded.map(Some).map_err(|bad| bad.of(&KIND, &path, dir))
    }

    /// Replaces the manifest atomically and durably.
    pub(crate) fn write(&self, io: &dyn Io, dir: &Path) -> Result<(), ReplaceError> {
        replace_file(io, dir, NAME, &self.encode())
    }

    /// The name of the comparator of the default keyspace, as in `FORMAT`.
    pub(crate) fn comparator(&self) -> &str {
        self.keyspaces.first().map_or("", |own| &own.comparator)
    }

    /// The records of all runs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &RunRecord> {
        self.keyspaces.iter().flat_map(|keyspace| {
            let of_keys = keyspace.levels.iter().flatten();
            of_keys.chain(&keyspace.range_runs)
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        KIND.seal(|bytes| {
            put_u64(bytes, self.next_run);
            put_u64(bytes, self.first_segment);
            put_u64(bytes, self.flushed_sequence);
            bytes.extend_from_slice(&self.next_keyspace.to_le_bytes());
            put_u32(bytes, self.marks.len());
            for mark in &self.marks {
                put_u64(bytes, mark.second);
                put_u64(bytes, mark.first_sequence);
            }
            put_u32(bytes, self.keyspaces.len());
            for keyspace in &self.keyspaces {
                keyspace.encode_into(bytes);
            }
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, Bad> {
        if KIND.check_head(bytes).is_ok() && u32_at(bytes, 8) < KIND.version {
            return Err(Bad::Bytes {
                offset: 8,
                reason: "its version predates the first release and is no longer supported",
            });
        }
        KIND.unseal(bytes, decode::manifest)
    }
}

impl Keyspace {
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.id.to_le_bytes());
        put_bytes(bytes, self.name.as_bytes());
        put_bytes(bytes, self.comparator.as_bytes());
        for runs in self.levels.iter().chain([&self.range_runs]) {
            put_u32(bytes, runs.len());
            for run in runs {
                for word in [run.number, run.bytes, run.checksum] {
                    put_u64(bytes, word);
                }
            }
        }
        put_u64(bytes, self.expired_sequence);
        put_u64(bytes, self.ttl);
    }
}

/// Whether a keyspace other than the default one may have this name.
pub(crate) fn is_keyspace_name(name: &str) -> bool {
    (1..=KEYSPACE_NAME_BYTES_MAX).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::fault::{EIO, Fault, FaultIo};
    use crate::sealed::HEAD_BYTES;

    fn sample() -> Manifest {
        let run = |number| RunRecord {
            number,
            bytes: number * 1000,
            checksum: !number,
        };
        let mut manifest = Manifest::new("forerun.bytewise");
        manifest.next_run = 40;
        manifest.first_segment = 7;
        manifest.flushed_sequence = 12_345;
        manifest.next_keyspace = 5;
        manifest.marks = [(1_000, 1), (1_002, 40), (2_000, 12_345)]
            .map(|(second, first_sequence)| Mark {
                second,
                first_sequence,
            })
            .to_vec();
        manifest.keyspaces[0].levels[0] = vec![run(39), run(31)];
        manifest.keyspaces[0].levels[6] = vec![run(3), run(11), run(5)];
        manifest.keyspaces[0].range_runs = vec![run(33), run(34)];
        let mut other = manifest.keyspaces[0].clone();
        (other.id, other.name) = (3, "users".into());
        (other.ttl, other.expired_sequence) = (60, 39);
        (other.levels, other.range_runs) = Default::default();
        other.levels[1].push(run(12));
        manifest.keyspaces.push(other);
        manifest
    }

    #[test]
    fn a_record_round_trips_and_every_flipped_bit_is_detected() {
        for manifest in [Manifest::new("x"), sample()] {
            let good = manifest.encode();
            assert_eq!(Manifest::decode(&good), Ok(manifest));
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Manifest::decode(&bad).is_err(), "bit {bit}");
            }
            for len in 0..good.len() {
                assert!(Manifest::decode(&good[..len]).is_err(), "cut to {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_what_decodes_encodes_to_the_same(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let good = sample().encode();
            let mut body = good[HEAD_BYTES..good.len() - 4].to_vec();
            for (at, byte) in changes {
                let at = at.index(body.len());
                body[at] = byte;
            }
            for body in [&body[..], &body[..cut.index(body.len())]] {
                // The output of a faulty writer.
                let bytes = KIND.seal_bytes(body);
                if let Ok(manifest) = Manifest::decode(&bytes) {
                    prop_assert_eq!(manifest.encode(), bytes);
                }
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        type Change = fn(&mut Manifest);
        let changes: [(&str, Change); 14] = [
            ("a number twice", |m| {
                m.keyspaces[1].levels[1][0].number = 39
            }),
            ("a run of keys and of ranges", |m| {
                m.keyspaces[0].range_runs[0].number = 39
            }),
            ("a number of the future", |m| {
                m.keyspaces[1].levels[1][0].number = 40
            }),
            ("the number 0", |m| m.keyspaces[1].levels[1][0].number = 0),
            ("no default keyspace", |m| drop(m.keyspaces.remove(0))),
            ("ids out of order", |m| m.keyspaces[1].id = 0),
            ("an id of the future", |m| m.next_keyspace = 3),
            ("a keyspace without a name", |m| m.keyspaces[1].name.clear()),
            ("a name that is too long", |m| {
                m.keyspaces[1].name = "x".repeat(256)
            }),
            ("a name twice", |m| {
                m.keyspaces.push(Keyspace::new(4, "users", "x"));
            }),
            ("a sequence number beyond all", |m| {
                m.flushed_sequence = 1 << 56
            }),
            ("more has expired than was written", |m| {
                m.keyspaces[1].expired_sequence = 12_346
            }),
            ("seconds out of order", |m| m.marks[1].second = 1_000),
            ("the time of what is not in runs", |m| {
                m.marks[2].first_sequence = 12_346
            }),
        ];
        for (name, change) in changes {
            let mut manifest = sample();
            change(&mut manifest);
            assert!(
                matches!(Manifest::decode(&manifest.encode()), Err(Bad::Bytes { .. })),
                "{name}"
            );
        }
        let newer = Kind { version: 3, ..KIND }.seal_bytes(b"");
        assert_eq!(Manifest::decode(&newer), Err(Bad::Newer(3)));
        let older = Kind { version: 1, ..KIND }.seal_bytes(b"");
        assert!(matches!(
            Manifest::decode(&older),
            Err(Bad::Bytes { offset: 8, .. })
        ));
    }

    #[test]
    fn a_failure_anywhere_leaves_the_old_one_or_the_new_one() {
        let (old, new) = (Manifest::new("x"), sample());
        for call in 0.. {
            for fault in [Fault::Fail(EIO), Fault::TornWrite(EIO), Fault::PowerLoss] {
                let io = FaultIo::new();
                old.write(&io, "/".as_ref()).unwrap();
                io.fail_call(io.calls() + call, fault);
                let written = new.write(&io, "/".as_ref());
                if io.hit().is_none() {
                    written.unwrap();
                    assert!(call > 4);
                    return;
                }
                assert!(written.is_err());
                for seed in 0..20 {
                    let found = Manifest::read(&io.crash(seed), "/".as_ref())
                        .unwrap()
                        .unwrap();
                    assert!(
                        found == old || found == new,
                        "{fault:?} at call {call}, seed {seed}"
                    );
                }
            }
        }
    }
}
