//! The shape of a tree of runs.

use std::time::Duration;

use forerun_core::setters;

use crate::run::{Compression, DELETE_RATE_BYTES, RunOptions};
use crate::{Error, Result};

/// The shape of the tree of runs, and how fast it may be rebuilt.
///
/// Level 0 holds flushed memtables, in runs that overlap. Each level below holds runs that do not
/// overlap. The last level, 6, may have any size. Going up from it, each level may have the size of
/// the next one divided by `level_factor`, until that is at most `level1_bytes`. Level 0 is merged
/// into the level reached there, and the levels between stay empty. So little data is stored twice.
///
/// ```
/// use forerun_db::{Options, TreeOptions};
///
/// // Flushes and compactions write at most 50 MB per second.
/// let tree = TreeOptions::default().write_rate_bytes(50_000_000);
/// let options = Options::default().tree(tree);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct TreeOptions {
    /// The number of runs in level 0 at which they are merged: into the first level in use below,
    /// or, if they are small beside it, with each other. Default: 4.
    pub level0_runs: usize,
    /// The number of runs in level 0 that include the same key at which the keyspace's writes are
    /// slowed down. Default: 12.
    pub level0_slow_runs: usize,
    /// The number of runs in level 0 that include the same key at which the keyspace's writes wait
    /// until there are fewer. Default: 20.
    pub level0_stop_runs: usize,
    /// The maximum size of the first level in use below level 0, in bytes. Default: 256 MiB.
    pub level1_bytes: u64,
    /// How many times larger each level may be than the one above. Default: 10.
    pub level_factor: u32,
    /// The size at which a compaction starts a new run, in bytes. The last one may be a quarter
    /// larger. Runs below an eighth of it are merged with each other. Default: 64 MiB.
    pub run_bytes: u64,
    /// How long deletions stay in a level that does not grow. A run with older ones is merged into
    /// the next level, and so on to the last, where they and what they hide are gone; one that is
    /// dated in the future, since the clock was set back, is only old once that time has come. A
    /// run of which half of the entries are deletions does not wait, if its compaction reads at
    /// most 16 entries for each, or 4 in level 0. Snapshots delay both. `None` for no limit.
    /// Default: 7 days.
    pub deletion_max_age: Option<Duration>,
    /// The maximum number of bytes that flushes, compactions, backups, checkpoints and ingestions
    /// together write per second; `None` or 0 for no limit. Flushes and compactions of level 0 go
    /// first, then other compactions, then the rest; each keeps a share beside those before it.
    /// Default: none.
    pub write_rate_bytes: Option<u64>,
    /// How many bytes of files of replaced runs are removed per second; 0 to remove them without
    /// pauses. They are removed faster if they take much space or have waited for long. With
    /// [`Background::Caller`](crate::Background::Caller), they are removed at once. Default:
    /// 128 MiB.
    pub delete_rate_bytes: u64,
    /// The compression of each level, from level 0, which flushes write, to level 6, which has most
    /// of the data and which ingestions are written for. `None`, the default:
    /// [`RunOptions::compression`](crate::RunOptions::compression).
    pub compression_per_level: [Option<Compression>; TreeOptions::LEVELS],
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            level0_runs: 4,
            level0_slow_runs: 12,
            level0_stop_runs: 20,
            level1_bytes: 256 << 20,
            level_factor: 10,
            run_bytes: 64 << 20,
            deletion_max_age: Some(Duration::from_secs(7 * 86_400)),
            write_rate_bytes: None,
            delete_rate_bytes: DELETE_RATE_BYTES,
            compression_per_level: [None; TreeOptions::LEVELS],
        }
    }
}

setters! {
    TreeOptions {
        level0_runs: usize,
        level0_slow_runs: usize,
        level0_stop_runs: usize,
        level1_bytes: u64,
        level_factor: u32,
        run_bytes: u64,
        delete_rate_bytes: u64,
        compression_per_level: [Option<Compression>; TreeOptions::LEVELS],
    } into {
        deletion_max_age: Option<Duration>,
        write_rate_bytes: Option<u64>,
    }
}

impl TreeOptions {
    /// The number of levels.
    pub const LEVELS: usize = 7;

    /// The level that an ingestion is written for: the last one, where most of it goes.
    pub(crate) const BOTTOMMOST_LEVEL: usize = Self::LEVELS - 1;

    /// Sets the compression of the last level in
    /// [`compression_per_level`](Self::compression_per_level).
    #[must_use]
    pub fn bottommost_compression(mut self, compression: Compression) -> TreeOptions {
        self.compression_per_level[Self::BOTTOMMOST_LEVEL] = Some(compression);
        self
    }

    /// Refuses limits at which writes would wait for a compaction that never becomes due, and
    /// compressions that do not exist or have dictionaries too small for these runs.
    pub(crate) fn check(&self, run: &RunOptions) -> Result<()> {
        for compression in self.compression_per_level.iter().flatten() {
            compression.check("compression_per_level", run.page_limit_bytes())?;
        }
        if self.level0_stop_runs > self.level0_runs {
            return Ok(());
        }
        Err(Error::BadOption {
            option: "level0_stop_runs",
            reason: format!(
                "writes would wait at {} runs, but compaction begins at {}: set a greater value",
                self.level0_stop_runs, self.level0_runs
            ),
        })
    }
}
