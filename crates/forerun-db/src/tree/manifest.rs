//! `MANIFEST`: which runs the store is made of, and from where on the log is needed.
//!
//! ```text
//!  0       8         12         16       20
//! ┌───────┬─────────┬──────────┬────────┬──────────┬───────────────┬──────────────────┬───────────────┬───────────┬───────────┬──────────┐
//! │ magic │ version │ checksum │ length │ next_run │ first_segment │ flushed_sequence │ next_keyspace │ keyspaces │ keyspaces │ checksum │
//! └───────┴─────────┴──────────┴────────┴──────────┴───────────────┴──────────────────┴───────────────┴─ count ───┴───────────┴──────────┘
//!                                       └────────────────────────────────── length bytes ──────────────────────────────────┘
//! keyspace = id │ name │ comparator │ levels: 7 × (count │ count × (number │ bytes │ checksum))
//! ```
//!
//! `docs/format.md` defines it. It is small (24 bytes a run), so each change writes it anew, in one piece and durably:
//! there is no log of changes to replay, and no state between two manifests.

use std::collections::BTreeSet;
use std::path::Path;

use crate::io::{Io, OpenMode, read_all};
use crate::ranges::RangeTombstone;
use crate::store_dir::write_whole;
use crate::versions::MAX_SEQUENCE;
use crate::wal::record::{u32_at, u64_at};
use crate::{Error, MAX_KEYSPACE_NAME_BYTES, Result};

/// Name of the file.
pub(crate) const NAME: &str = "MANIFEST";

/// How many levels there are.
pub(crate) const LEVELS: usize = 7;

const MAGIC: [u8; 8] = *b"FORE-MAN";
/// The newest version, which is the one that is written.
const VERSION: u32 = 1;
/// Bytes before the body.
const HEAD_BYTES: usize = 20;
/// Bytes of a run's record.
const RUN_BYTES: usize = 24;

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// A number above those of all runs.
    pub(crate) next_run: u64,
    /// The first segment of the log that holds anything that is in no run.
    pub(crate) first_segment: u64,
    /// Everything up to this sequence number is in runs.
    pub(crate) flushed_sequence: u64,
    /// A number above those of all keyspaces that there ever were.
    pub(crate) next_keyspace: u32,
    /// Ascending by id. The first is the default one: id 0, and an empty name.
    pub(crate) keyspaces: Vec<Keyspace>,
}

/// The runs of one ordered set of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keyspace {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// Name of the comparator that orders the keys.
    pub(crate) comparator: String,
    /// The runs of each level, in the level's order.
    pub(crate) levels: [Vec<RunRecord>; LEVELS],
    /// Deletions of ranges of keys that cover something in runs.
    pub(crate) ranges: Vec<RangeTombstone>,
    /// Everything up to this sequence number has expired.
    pub(crate) expired_sequence: u64,
    /// When, in seconds since 1970, everything up to which sequence number had been written; both ascending.
    pub(crate) times: Vec<(u64, u64)>,
}

/// A run, so that its file is told from any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunRecord {
    pub(crate) number: u64,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Checksum of the file's footer.
    pub(crate) checksum: u64,
}

impl Keyspace {
    /// One without runs.
    pub(crate) fn new(id: u32, name: &str, comparator: &str) -> Keyspace {
        Keyspace {
            id,
            name: name.to_owned(),
            comparator: comparator.to_owned(),
            levels: Default::default(),
            ranges: Vec::new(),
            expired_sequence: 0,
            times: Vec::new(),
        }
    }
}

impl Manifest {
    /// That of a store without runs.
    pub(crate) fn new(comparator: &str) -> Manifest {
        Manifest {
            next_run: 1,
            first_segment: 1,
            flushed_sequence: 0,
            next_keyspace: 1,
            keyspaces: vec![Keyspace::new(0, "", comparator)],
        }
    }

    /// Reads the one of a store; `None` if there is none.
    pub(crate) fn read(io: &dyn Io, dir: &Path) -> Result<Option<Manifest>> {
        let path = dir.join(NAME);
        let file = match io.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", &path, error)),
        };
        let bytes = read_all(&*file).map_err(|error| Error::io("read", &path, error))?;
        Manifest::decode(&bytes).map(Some).map_err(|bad| match bad {
            Bad::Bytes { offset, reason } => Error::corrupt_file(&path, offset as u64, reason),
            Bad::Newer(found) => Error::NewerFormat {
                path: dir.to_owned(),
                found,
                supported: VERSION,
            },
        })
    }

    /// Writes it durably, in place of the one before. After an error either of the two is there.
    pub(crate) fn write(&self, io: &dyn Io, dir: &Path) -> Result<()> {
        write_whole(io, dir, NAME, &self.encode())
    }

    /// The records of all runs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &RunRecord> {
        self.keyspaces
            .iter()
            .flat_map(|keyspace| keyspace.levels.iter().flatten())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put_u32(&mut bytes, VERSION as usize);
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        put_u64(&mut bytes, self.next_run);
        put_u64(&mut bytes, self.first_segment);
        put_u64(&mut bytes, self.flushed_sequence);
        bytes.extend_from_slice(&self.next_keyspace.to_le_bytes());
        put_u32(&mut bytes, self.keyspaces.len());
        for keyspace in &self.keyspaces {
            bytes.extend_from_slice(&keyspace.id.to_le_bytes());
            for text in [&keyspace.name, &keyspace.comparator] {
                put_u32(&mut bytes, text.len());
                bytes.extend_from_slice(text.as_bytes());
            }
            for level in &keyspace.levels {
                put_u32(&mut bytes, level.len());
                for run in level {
                    for word in [run.number, run.bytes, run.checksum] {
                        put_u64(&mut bytes, word);
                    }
                }
            }
            put_u32(&mut bytes, keyspace.ranges.len());
            for range in &keyspace.ranges {
                put_u64(&mut bytes, range.sequence);
                for key in [&range.start, &range.end] {
                    put_u32(&mut bytes, key.len());
                    bytes.extend_from_slice(key);
                }
            }
            put_u64(&mut bytes, keyspace.expired_sequence);
            put_u32(&mut bytes, keyspace.times.len());
            for (time, sequence) in &keyspace.times {
                put_u64(&mut bytes, *time);
                put_u64(&mut bytes, *sequence);
            }
        }
        let length = (bytes.len() - HEAD_BYTES) as u32;
        bytes[16..20].copy_from_slice(&length.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[16..]);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, Bad> {
        let bad = |offset, reason| Err(Bad::Bytes { offset, reason });
        if bytes.len() < HEAD_BYTES + 4 {
            return bad(bytes.len(), "the file is too short");
        }
        if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..12]) != u32_at(bytes, 12) {
            return bad(0, "the checksum of the version does not match");
        }
        match u32_at(bytes, 8) {
            VERSION => {}
            0 => return bad(8, "the version is 0"),
            newer => return Err(Bad::Newer(newer)),
        }
        let end = bytes.len() - 4;
        if u32_at(bytes, 16) as usize != end - HEAD_BYTES {
            return bad(16, "the length is not the file's");
        }
        if crc32c::crc32c(&bytes[16..end]) != u32_at(bytes, end) {
            return bad(16, "the checksum does not match");
        }
        let mut reader = Reader {
            bytes: &bytes[..end],
            at: HEAD_BYTES,
        };
        let manifest = reader.manifest()?;
        match reader.at == end {
            true => Ok(manifest),
            false => bad(reader.at, "there is more behind the last keyspace"),
        }
    }
}

/// Whether a keyspace other than the store's own may have this name.
pub(crate) fn is_keyspace_name(name: &str) -> bool {
    (1..=MAX_KEYSPACE_NAME_BYTES).contains(&name.len())
}

/// Why bytes are no manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Bytes {
        offset: usize,
        reason: &'static str,
    },
    /// It is of a newer version.
    Newer(u32),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn manifest(&mut self) -> Result<Manifest, Bad> {
        let next_run = self.u64()?;
        let first_segment = self.u64()?;
        let flushed_sequence = self.u64()?;
        if flushed_sequence > MAX_SEQUENCE {
            return Err(self.bad("a sequence number is out of range"));
        }
        let next_keyspace = self.u32()?;
        let count = self.u32()?;
        let mut keyspaces: Vec<Keyspace> = Vec::new();
        let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..count {
            let at = self.at;
            let keyspace = self.keyspace(next_run, flushed_sequence, &mut numbers)?;
            let is_in_order = match keyspaces.last() {
                None => keyspace.id == 0 && keyspace.name.is_empty(),
                Some(last) => last.id < keyspace.id && is_keyspace_name(&keyspace.name),
            };
            if !is_in_order || keyspace.id >= next_keyspace || !names.insert(keyspace.name.clone())
            {
                return Err(Bad::Bytes {
                    offset: at,
                    reason: "a keyspace's id or name is out of order, or there twice",
                });
            }
            keyspaces.push(keyspace);
        }
        match keyspaces.is_empty() {
            true => Err(self.bad("there is no keyspace")),
            false => Ok(Manifest {
                next_run,
                first_segment,
                flushed_sequence,
                next_keyspace,
                keyspaces,
            }),
        }
    }

    fn keyspace(
        &mut self,
        next_run: u64,
        flushed_sequence: u64,
        numbers: &mut BTreeSet<u64>,
    ) -> Result<Keyspace, Bad> {
        let id = self.u32()?;
        let name = self.text()?;
        let comparator = self.text()?;
        let mut levels: [Vec<RunRecord>; LEVELS] = Default::default();
        for level in &mut levels {
            let count = self.u32()? as usize;
            if count > (self.bytes.len() - self.at) / RUN_BYTES {
                return Err(self.bad("a level has more runs than there are bytes"));
            }
            level.reserve_exact(count);
            for _ in 0..count {
                let run = RunRecord {
                    number: self.u64()?,
                    bytes: self.u64()?,
                    checksum: self.u64()?,
                };
                if run.number == 0 || run.number >= next_run || !numbers.insert(run.number) {
                    return Err(self.bad("a run's number is out of range, or is there twice"));
                }
                level.push(run);
            }
        }
        let mut ranges = Vec::new();
        for _ in 0..self.u32()? {
            let range = RangeTombstone {
                sequence: self.u64()?,
                start: self.key()?,
                end: self.key()?,
            };
            if range.sequence > flushed_sequence {
                return Err(self.bad("a range was deleted later than all that is in runs"));
            }
            ranges.push(range);
        }
        let expired_sequence = self.u64()?;
        let mut times = Vec::new();
        for _ in 0..self.u32()? {
            times.push((self.u64()?, self.u64()?));
        }
        let is_ascending = times.is_sorted() && times.is_sorted_by_key(|(_, sequence)| *sequence);
        if !is_ascending || expired_sequence > flushed_sequence {
            return Err(self.bad("times are out of order, or more has expired than was written"));
        }
        Ok(Keyspace {
            id,
            name,
            comparator,
            levels,
            ranges,
            expired_sequence,
            times,
        })
    }

    fn key(&mut self) -> Result<Vec<u8>, Bad> {
        let len = self.u32()? as usize;
        self.take(len).map(<[u8]>::to_vec)
    }

    fn text(&mut self) -> Result<String, Bad> {
        let len = self.u32()? as usize;
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.bad("a name is not UTF-8")),
        }
    }

    fn u32(&mut self) -> Result<u32, Bad> {
        self.take(4).map(|bytes| u32_at(bytes, 0))
    }

    fn u64(&mut self) -> Result<u64, Bad> {
        self.take(8).map(|bytes| u64_at(bytes, 0))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Bad> {
        match self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) {
            Some(bytes) => {
                self.at += len;
                Ok(bytes)
            }
            None => Err(self.bad("it ends early")),
        }
    }

    fn bad(&self, reason: &'static str) -> Bad {
        Bad::Bytes {
            offset: self.at,
            reason,
        }
    }
}

fn put_u32(bytes: &mut Vec<u8>, value: usize) {
    // Counts and lengths of what is in memory here; a store has no 2^32 runs.
    bytes.extend_from_slice(&(value as u32).to_le_bytes());
}

fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::fault::{EIO, Fault, FaultIo};

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
        manifest.keyspaces[0].levels[0] = vec![run(39), run(31)];
        manifest.keyspaces[0].levels[6] = vec![run(3), run(11), run(5)];
        let mut other = manifest.keyspaces[0].clone();
        (other.id, other.name) = (3, "users".into());
        other.levels = Default::default();
        other.levels[1].push(run(12));
        manifest.keyspaces.push(other);
        manifest
    }

    #[test]
    fn it_is_read_back_and_any_changed_bit_is_seen() {
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

    /// A body under right checksums, as a faulty writer would leave it.
    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut bytes = sample().encode()[..16].to_vec();
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
        let checksum = crc32c::crc32c(&bytes[16..]);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
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
                let bytes = sealed(body);
                if let Ok(manifest) = Manifest::decode(&bytes) {
                    prop_assert_eq!(manifest.encode(), bytes);
                }
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        type Change = fn(&mut Manifest);
        let changes: [(&str, Change); 10] = [
            ("a number twice", |m| {
                m.keyspaces[1].levels[1][0].number = 39
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
        ];
        for (name, change) in changes {
            let mut manifest = sample();
            change(&mut manifest);
            assert!(
                matches!(Manifest::decode(&manifest.encode()), Err(Bad::Bytes { .. })),
                "{name}"
            );
        }
        let mut newer = sample().encode();
        newer[8] = 2;
        let checksum = crc32c::crc32c(&newer[..12]);
        newer[12..16].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Manifest::decode(&newer), Err(Bad::Newer(2)));
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
