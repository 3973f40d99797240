//! Draws a program from a seed.

use forerun_db::{
    Access, Background, Compression, Durability, MemoryChecks, Recovery, RunOptions, TreeOptions,
    VerifyChecksums, WalMode, ZstdOptions,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::key_order::KeyOrder;
use super::program::{
    CallFilter, Change, ChangeKind, Crash, End, FaultKind, Incarnation, KeyspaceShape, Op,
    PlannedFault, Program, ReadDirection, Step, StepKeyspace, StoreShape,
};

/// The number of keys that each thread has in each keyspace.
pub const KEYS: u8 = 14;

/// Names of the threads' own keyspaces.
pub fn private_name(thread: usize) -> String {
    format!("private {thread}")
}

/// Names of the shared keyspaces; the name of the store's own is empty.
pub fn shared_name(number: usize) -> String {
    match number {
        0 => String::new(),
        _ => format!("shared {number}"),
    }
}

/// The maximum number of threads in an incarnation.
pub const THREADS: usize = 5;

/// Draws the program of a seed.
pub fn draw(seed: u64) -> Program {
    let mut draw = Draw {
        random: SmallRng::seed_from_u64(seed),
        next_id: 0,
        ingests: false,
    };
    let mut store = draw.store();
    // Not drawn from the generator, because that would change the programs of all other seeds.
    draw.ingests = seed % 8 == 5;
    if draw.ingests {
        store.compact_ingestions();
    }
    if seed % 16 == 13 {
        store.make_levels_small();
    }
    let incarnations = draw.random.random_range(1..=3);
    let incarnations = (0..incarnations)
        .map(|_| draw.incarnation(&store))
        .collect();
    let mut program = Program {
        seed,
        store,
        incarnations,
        opens_read_only: false,
        damage: None,
    };
    draw.random = SmallRng::seed_from_u64(!seed);
    draw.add(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(32));
    draw.add_more(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(16));
    draw.add_clocks_and_readers(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(48));
    draw.add_options(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(8));
    draw.add_memtable_indexes(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(24));
    draw.add_background_threads(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(40));
    draw.add_cached_reads(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(56));
    draw.add_queues(&mut program);
    draw.random = SmallRng::seed_from_u64(seed.rotate_left(4));
    draw.add_scrubs(&mut program);
    program
}

/// Draws the parts of a program.
pub struct Draw {
    pub random: SmallRng,
    next_id: u32,
    /// Whether many steps are ingestions.
    pub ingests: bool,
}

impl Draw {
    pub fn one_in(&mut self, n: u32) -> bool {
        self.random.random_ratio(1, n)
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        // No list of choices is empty.
        *choices.choose(&mut self.random).unwrap_or(&choices[0])
    }

    pub fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    pub fn store(&mut self) -> StoreShape {
        let wal = if self.one_in(10) {
            WalMode::Off
        } else {
            WalMode::On
        };
        let keyspaces = self.random.random_range(1..=4);
        StoreShape {
            memory_limit_bytes: self.of(&[128 << 10, 256 << 10, 512 << 10]),
            memtable_bytes: self.of(&[1 << 10, 2 << 10, 4 << 10, 16 << 10]),
            memtable_index: true,
            cache_bytes: self.of(&[16 << 10, 64 << 10, 512 << 10]),
            max_open_files: self.of(&[None, Some(1), Some(2), Some(8)]),
            segment_bytes: self.of(&[300, 700, 2000, 1 << 20]),
            background: self.of(&[
                Background::Threads,
                Background::Threads,
                Background::Threads,
                Background::Caller,
            ]),
            background_threads: 1,
            durability: self.of(&[Durability::Buffered, Durability::Synced]),
            wal,
            checks: self.of(&[MemoryChecks::Off, MemoryChecks::Off, MemoryChecks::Paranoid]),
            verify_checksums: VerifyChecksums::Once,
            cached_percent: 0,
            scrub_rate_bytes: 0,
            keyspaces: (0..keyspaces).map(|_| self.keyspace_shape()).collect(),
            private: self.keyspace_shape(),
            has_links: !self.one_in(4),
            sync_us: self.of(&[0, 0, 200, 2000]),
            is_forgetful: self.random.random(),
        }
        .consistent()
    }

    pub fn keyspace_shape(&mut self) -> KeyspaceShape {
        let level0_runs = self.of(&[1, 2, 4]);
        let mut shape = KeyspaceShape {
            order: self.of(&[
                KeyOrder::Bytes,
                KeyOrder::Bytes,
                KeyOrder::Reverse,
                KeyOrder::Length,
                KeyOrder::Folding,
            ]),
            ttl_s: self.of(&[None, None, Some(1), Some(3), Some(20)]),
            run: {
                let compression = self.of(&[Compression::None, Compression::Lz4]);
                let filter_bits = self.of(&[0, 2, 10]);
                RunOptions::default()
                    .page_bytes(4 << 10)
                    .compression(compression)
                    .filter_bits_per_key(filter_bits)
                    // This value has no draw of its own, so that the programs of recorded seeds
                    // stay the same.
                    .index(filter_bits != 2)
            },
            tree: TreeOptions::default()
                .level0_runs(level0_runs)
                .level0_slow_runs(level0_runs + self.random.random_range(1..6))
                .level0_stop_runs(level0_runs + self.random.random_range(1..8))
                .level1_bytes(self.of(&[2 << 10, 6 << 10, 1 << 20]))
                .level_factor(self.of(&[2, 4, 10]))
                .run_bytes(self.of(&[1 << 10, 3 << 10, 64 << 10]))
                .write_rate_bytes(self.of(&[None, None, None, Some(64 << 10)])),
        };
        shape.tree.compression_per_level = compression_per_level(&shape);
        shape
    }

    fn incarnation(&mut self, store: &StoreShape) -> Incarnation {
        let threads = self.random.random_range(1..=THREADS);
        let max_steps = self.of(&[6, 15, 30]);
        let threads: Vec<Vec<Step>> = (0..threads)
            .map(|_| {
                let steps = self.random.random_range(1..=max_steps);
                (0..steps).map(|_| self.step(store)).collect()
            })
            .collect();
        let faults = match self.random.random_range(0..4) {
            0 | 1 => 0,
            2 => 1,
            _ => self.random.random_range(1..5),
        };
        let calls = 20 + 12 * threads.iter().map(Vec::len).sum::<usize>() as u64;
        let faults = (0..faults).map(|_| self.fault(calls)).collect();
        let at_call = if self.one_in(3) {
            None
        } else {
            Some(self.random.random_range(0..calls))
        };
        let end = match self.random.random_range(0..6) {
            0 => End::Close,
            1 => End::Drop,
            2 | 3 => End::Crash {
                how: Crash::Process,
                at_call,
            },
            _ => End::Crash {
                how: Crash::Power,
                at_call,
            },
        };
        Incarnation {
            options: None,
            recovery: Recovery::DropTail,
            threads,
            faults,
            end,
            end_fault: None,
            end_id: self.id(),
        }
    }

    fn fault(&mut self, calls: u64) -> PlannedFault {
        let kind = match self.random.random_range(0..14) {
            0 => FaultKind::ShortWrite,
            1 => FaultKind::TornWrite,
            2 => FaultKind::Full {
                count: self.of(&[1, 10, 60]),
            },
            12.. => FaultKind::Fail {
                calls: CallFilter::LogSyncs,
                count: 1,
                errno: forerun_db::io::fault::EIO,
            },
            3..6 => FaultKind::Panic {
                count: self.of(&[1, 1, 3, 50]),
            },
            _ => FaultKind::Fail {
                calls: self.of(&[
                    CallFilter::Any,
                    CallFilter::Reads,
                    CallFilter::Writes,
                    CallFilter::Syncs,
                    CallFilter::LogSyncs,
                    CallFilter::LogSyncs,
                    CallFilter::Directory,
                    CallFilter::Manifest,
                    CallFilter::Log,
                    CallFilter::Runs,
                ]),
                count: self.of(&[1, 1, 2, 8]),
                errno: self.of(&[forerun_db::io::fault::EIO, forerun_db::io::fault::ENOSPC]),
            },
        };
        let at = match kind {
            FaultKind::Panic { .. } => self.random.random_range(0..calls * 4),
            _ => self.random.random_range(0..calls),
        };
        PlannedFault {
            id: self.id(),
            at,
            kind,
        }
    }

    pub fn keyspace(&mut self, store: &StoreShape) -> StepKeyspace {
        if self.one_in(5) {
            StepKeyspace::Private
        } else {
            StepKeyspace::Shared(self.random.random_range(0..store.keyspaces.len() as u8))
        }
    }

    pub fn key(&mut self) -> u8 {
        self.random.random_range(0..KEYS)
    }

    pub fn len(&mut self) -> u16 {
        match self.random.random_range(0..20) {
            0 => 0,
            1 => self.random.random_range(1000..5000),
            2..5 => self.random.random_range(100..800),
            _ => self.random.random_range(10..60),
        }
    }

    pub fn change(&mut self, store: &StoreShape) -> Change {
        let kind = match self.random.random_range(0..20) {
            0 => {
                let (from, to) = (self.key(), self.key());
                ChangeKind::DeleteRange { from, to }
            }
            1..5 => ChangeKind::Delete { key: self.key() },
            _ => ChangeKind::Put {
                key: self.key(),
                len: self.len(),
            },
        };
        Change {
            keyspace: self.keyspace(store),
            kind,
        }
    }

    /// Writes one key many times.
    fn overwrites(&mut self, store: &StoreShape) -> Vec<Change> {
        let (keyspace, key) = (self.keyspace(store), self.key());
        let count = self.random.random_range(9..16);
        let put = || Change {
            keyspace,
            kind: ChangeKind::Put { key, len: 20 },
        };
        std::iter::repeat_with(put).take(count).collect()
    }

    fn durability(&mut self) -> Durability {
        self.of(&[
            Durability::Buffered,
            Durability::Buffered,
            Durability::Synced,
        ])
    }

    fn step(&mut self, store: &StoreShape) -> Step {
        let id = self.id();
        let op = self.op(store);
        Step { id, op }
    }

    fn op(&mut self, store: &StoreShape) -> Op {
        if self.ingests && self.one_in(4) {
            return self.ingest(store);
        }
        match self.random.random_range(0..114) {
            0..30 => Op::Write {
                changes: vec![self.change(store)],
                durability: if self.one_in(3) {
                    Some(self.durability())
                } else {
                    None
                },
            },
            30 => Op::Write {
                changes: self.overwrites(store),
                durability: Some(self.durability()),
            },
            31..40 => {
                let changes = self.random.random_range(2..8);
                Op::Write {
                    changes: (0..changes).map(|_| self.change(store)).collect(),
                    durability: Some(self.durability()),
                }
            }
            40..46 => Op::Stamp {
                durability: self.durability(),
            },
            46..50 => self.ingest(store),
            50..57 => Op::Get {
                keyspace: self.keyspace(store),
                key: self.key(),
            },
            57..61 => {
                let keys = self.random.random_range(0..20);
                Op::MultiGet {
                    keyspace: self.keyspace(store),
                    keys: (0..keys).map(|_| self.key()).collect(),
                }
            }
            61..66 => Op::Scan {
                keyspace: self.keyspace(store),
                direction: self.of(&[
                    ReadDirection::Forward,
                    ReadDirection::Backward,
                    ReadDirection::Both,
                ]),
            },
            66..70 => Op::ReadStamps {
                by_snapshot: self.random.random(),
            },
            70..73 => Op::TakeSnapshot,
            73..76 => Op::ReadSnapshot,
            76 => Op::DropSnapshot,
            77..80 => Op::BeginIter {
                keyspace: self.keyspace(store),
            },
            80..84 => Op::StepIter {
                steps: self.random.random_range(1..20),
                is_back: self.random.random(),
            },
            84 => Op::DropIter,
            85..88 => Op::Flush,
            88..90 => Op::FlushLog,
            90..92 => Op::Compact,
            92 => Op::CompactKeyspace {
                keyspace: self.keyspace(store),
            },
            93 => Op::WaitIdle,
            94 => Op::Checkpoint,
            95 => Op::Backup,
            96 => Op::Restore,
            97 => Op::KeepBackups {
                newest: self.random.random_range(1..3),
            },
            98..101 => Op::CreateKeyspace,
            101 => Op::DropKeyspace,
            102 => Op::Reopen,
            103 => Op::OpenTwice {
                access: Access::ReadWrite,
            },
            104 => Op::Verify,
            105 => Op::Oversized {
                keyspace: self.keyspace(store),
                is_ranges: self.random.random(),
            },
            106 if self.one_in(3) => Op::Outage,
            _ => Op::Wait {
                ms: self.of(&[1, 50, 400, 1100, 3000]),
            },
        }
    }

    pub fn ingest(&mut self, store: &StoreShape) -> Op {
        let mut keys: Vec<u8> = (0..KEYS).collect();
        keys.retain(|_| self.random.random_ratio(2, 5));
        let keys = keys.into_iter().map(|key| {
            let len = if self.one_in(5) {
                None
            } else {
                Some(self.len())
            };
            (key, len)
        });
        Op::Ingest {
            keys: keys.collect(),
            keyspace: self.keyspace(store),
            commits: !self.one_in(6),
        }
    }
}

impl StoreShape {
    /// Each thread's own keyspace needs memory too.
    fn consistent(mut self) -> StoreShape {
        if self.wal == WalMode::Off {
            self.durability = Durability::Buffered;
        }
        self
    }

    /// Makes a compaction follow each ingestion, with entries that stay.
    fn compact_ingestions(&mut self) {
        self.background = Background::Threads;
        for keyspace in &mut self.keyspaces {
            keyspace.ttl_s = None;
            keyspace.tree.level0_runs = 1;
        }
    }

    /// Makes a compaction due for each run above the last level. Ingested runs go to the deepest
    /// level above those that they overlap, and most levels would keep them.
    fn make_levels_small(&mut self) {
        for keyspace in &mut self.keyspaces {
            keyspace.tree.level1_bytes = 1;
        }
    }
}

/// Compressions of the levels. They have no draws of their own, so that the programs of recorded
/// seeds stay the same.
fn compression_per_level(shape: &KeyspaceShape) -> [Option<Compression>; TreeOptions::LEVELS] {
    let mut levels = [None; TreeOptions::LEVELS];
    let zstd = |max_dict_bytes| {
        let zstd = ZstdOptions::default().level(1);
        Some(Compression::Zstd(zstd.max_dict_bytes(max_dict_bytes)))
    };
    // The smallest dictionary for these pages: runs are small too.
    let smallest = (7 * shape.run.page_bytes).div_ceil(100);
    let (first, last) = match (shape.tree.level_factor, shape.run.filter_bits_per_key) {
        (2, 10) => (None, zstd(smallest)),
        (2, _) => (Some(Compression::None), zstd(0)),
        (4, 0) => (zstd(smallest), zstd(smallest)),
        (4, _) => (zstd(0), Some(Compression::Lz4)),
        _ => (None, None),
    };
    levels[0] = first;
    levels[TreeOptions::LEVELS - 1] = last;
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_draws_the_same_program() {
        for seed in 0..50 {
            let (first, second) = (draw(seed), draw(seed));
            assert_eq!(format!("{first:?}"), format!("{second:?}"));
            let ids = first.ids();
            assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
        }
    }
}
