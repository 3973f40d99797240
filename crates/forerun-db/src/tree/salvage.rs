//! Reads the readable part of a damaged run.
//!
//! ```text
//!   root ──> [ leaf ][ leaf ][ ░░░░ ][ leaf ] …      each page has its own checksum, so one bad page does not affect
//!                             lost: keys from "m"    the others; the separators beside it say which keys are lost
//!                             up to "p"
//! ```

use forerun_core::size::counted;
use std::fmt;
use std::path::PathBuf;

use crate::run::{Page, PageKind, PageLocation, Run};
use crate::versions::{Kind, SEQUENCE_MAX, Version, VersionCursor};
use crate::{CorruptRange, Error, Result};

/// Maximum number of internal pages above a leaf; see `verify.rs`.
const DEPTH_LIMIT: usize = 40;

/// Data in a file that can no longer be read.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DataLoss {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
    /// The keys between which data is lost; `None` for the whole file.
    pub keys: Option<KeyRange>,
}

/// A range of keys. Both ends may be in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct KeyRange {
    /// The first key; `None` for no lower bound.
    pub from: Option<Vec<u8>>,
    /// The last key; `None` for no upper bound.
    pub to: Option<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub(crate) fn all() -> KeyRange {
        KeyRange {
            from: None,
            to: None,
        }
    }
}

impl From<&CorruptRange> for DataLoss {
    fn from(bad: &CorruptRange) -> DataLoss {
        DataLoss {
            path: bad.path.clone(),
            reason: format!(
                "{} at {}: {}",
                counted(bad.len_bytes, "byte"),
                bad.offset,
                bad.reason
            ),
            keys: Some(KeyRange::all()),
        }
    }
}

impl fmt::Display for DataLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; lost: ", self.path.display(), self.reason)?;
        match &self.keys {
            None => f.write_str("the whole file"),
            Some(KeyRange { from, to }) => {
                f.write_str("its data")?;
                for (word, key) in [("from", from), ("to", to)] {
                    if let Some(key) = key {
                        write!(f, " {word} \"{}\"", key.escape_ascii())?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// The versions in a run's readable leaves. Records and skips what cannot be read.
pub(crate) struct Salvage<'r> {
    run: &'r Run,
    leaves: Vec<Leaf>,
    losses: Vec<DataLoss>,
    /// The current leaf's index, and its bytes.
    at: Option<(usize, usize)>,
    page: Vec<u8>,
    stored: Vec<u8>,
    key: Vec<u8>,
}

struct Leaf {
    number: u32,
    location: PageLocation,
    keys: KeyRange,
    is_lost: bool,
}

impl<'r> Salvage<'r> {
    /// Reads the pages above the leaves.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, for a reason other than its contents.
    pub(crate) fn new(run: &'r Run) -> Result<Salvage<'r>> {
        let mut salvage = Salvage {
            run,
            leaves: Vec::new(),
            losses: Vec::new(),
            at: None,
            page: Vec::new(),
            stored: Vec::new(),
            key: Vec::new(),
        };
        let root = run.meta().pages() - 1;
        salvage.descend(root, run.root_location(), KeyRange::all(), 0)?;
        Ok(salvage)
    }

    /// The losses found so far.
    pub(crate) fn into_losses(self) -> Vec<DataLoss> {
        self.losses
    }

    fn descend(
        &mut self,
        number: u32,
        location: PageLocation,
        keys: KeyRange,
        depth: usize,
    ) -> Result<()> {
        if number < self.run.meta().leaf_pages {
            self.leaves.push(Leaf {
                number,
                location,
                keys,
                is_lost: false,
            });
            return Ok(());
        }
        let mut bytes = Vec::new();
        let stored = &mut self.stored;
        match self.run.read_page(number, location, stored, &mut bytes) {
            Ok(()) => {}
            Err(error @ Error::CorruptFile { .. }) => {
                self.record_loss(&error, keys);
                return Ok(());
            }
            Err(other) => return Err(other),
        }
        let page = Page::new(&bytes);
        if page.kind() != PageKind::Internal || depth > DEPTH_LIMIT {
            let error = self
                .run
                .corrupt(location.offset, "its kind does not match its number");
            self.record_loss(&error, keys);
            return Ok(());
        }
        let mut from = keys.from;
        for row in 0..page.rows() {
            let to = if row + 1 < page.rows() {
                page.key_into(row + 1, &mut self.key);
                Some(self.key.clone())
            } else {
                keys.to.clone()
            };
            let (child, child_place) = page.child(row);
            let range = KeyRange {
                from: std::mem::replace(&mut from, to.clone()),
                to,
            };
            if child < number {
                self.descend(child, child_place, range, depth + 1)?
            } else {
                let error = self.run.corrupt(
                    location.offset,
                    "a child's number is not lower than its own",
                );
                self.record_loss(&error, range);
            }
        }
        Ok(())
    }

    fn record_loss(&mut self, error: &Error, keys: KeyRange) {
        self.losses.push(DataLoss {
            path: self.run.path().to_owned(),
            reason: error.to_string(),
            keys: Some(keys),
        });
    }

    /// Reads a leaf, and returns whether that was possible.
    fn load(&mut self, leaf: usize) -> Result<bool> {
        if self.leaves[leaf].is_lost {
            return Ok(false);
        }
        let Leaf {
            number, location, ..
        } = self.leaves[leaf];
        let read = self
            .run
            .read_page(number, location, &mut self.stored, &mut self.page);
        let error = match read {
            Ok(()) if Page::new(&self.page).kind() == PageKind::Leaf => return Ok(true),
            Ok(()) => self
                .run
                .corrupt(location.offset, "its kind does not match its number"),
            Err(error @ Error::CorruptFile { .. }) => error,
            Err(other) => return Err(other),
        };
        self.leaves[leaf].is_lost = true;
        let keys = self.leaves[leaf].keys.clone();
        self.record_loss(&error, keys);
        Ok(false)
    }

    /// Moves to the first row at or after a leaf.
    fn enter_forward(&mut self, mut leaf: usize) -> Result<()> {
        self.at = None;
        while leaf < self.leaves.len() {
            if self.load(leaf)? {
                self.set_row(leaf, 0);
                break;
            }
            leaf += 1;
        }
        Ok(())
    }

    /// Moves to the last row of the leaves before this one.
    fn enter_backward(&mut self, mut leaf: usize) -> Result<()> {
        self.at = None;
        while leaf > 0 {
            leaf -= 1;
            if self.load(leaf)? {
                self.set_row(leaf, Page::new(&self.page).rows() - 1);
                break;
            }
        }
        Ok(())
    }

    fn set_row(&mut self, leaf: usize, row: usize) {
        Page::new(&self.page).key_into(row, &mut self.key);
        self.at = Some((leaf, row));
    }

    fn is_before(&self, key: &[u8], sequence: u64) -> bool {
        let target = Version {
            key,
            sequence,
            kind: Kind::Deletion,
            value: b"",
        };
        self.at()
            .is_some_and(|at| at.compare(self.run.order(), &target).is_lt())
    }
}

impl VersionCursor for Salvage<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.enter_forward(0)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.enter_backward(self.leaves.len())
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        // Start from the beginning: a damaged run is searched only once.
        self.seek_first()?;
        while self.is_before(key, sequence.min(SEQUENCE_MAX)) {
            self.next()?;
        }
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.seek(key, sequence)?;
        match self.at {
            Some(_) => self.prev(),
            None => self.seek_last(),
        }
    }

    fn next(&mut self) -> Result<()> {
        match self.at {
            Some((leaf, row)) if row + 1 < Page::new(&self.page).rows() => {
                self.set_row(leaf, row + 1)
            }
            Some((leaf, _)) => self.enter_forward(leaf + 1)?,
            None => {}
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        match self.at {
            Some((leaf, row)) if row > 0 => self.set_row(leaf, row - 1),
            Some((leaf, _)) => self.enter_backward(leaf)?,
            None => {}
        }
        Ok(())
    }

    fn at(&self) -> Option<Version<'_>> {
        let (_, row) = self.at?;
        let page = Page::new(&self.page);
        Some(Version {
            key: &self.key,
            sequence: self.run.sequence(page.sequence(row)),
            kind: page.version_kind(row),
            value: page.value(row),
        })
    }
}
