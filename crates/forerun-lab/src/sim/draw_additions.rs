//! Draws the parts of programs that were added after the others. Their generators are separate, so
//! that the rest of each program stays the same.

use std::ops::Bound;
use std::time::Duration;

use forerun_db::{Access, Create, Durability, Recovery, VerifyChecksums};
use rand::Rng;

use super::draw::{Draw, KEYS, THREADS};
use super::program::{
    BytePattern, CallFilter, Change, ChangeKind, Damage, DamagedFile, End, FaultKind, Incarnation,
    Op, Overwrite, PlannedFault, Program, ReadDirection, Step, StepKeyspace, StoreShape,
    StoreState,
};

impl Draw {
    /// Draws the first parts that were added.
    pub fn add(&mut self, program: &mut Program) {
        program.opens_read_only = self.one_in(2);
        // Programs with crashes or faults draw such clocks last, so that older seeds stay the same.
        let is_in_doubt = |incarnation: &Incarnation| {
            matches!(incarnation.end, End::Crash { .. }) || !incarnation.faults.is_empty()
        };
        let has_doubts = program.incarnations.iter().any(is_in_doubt);
        if program.has_ttl() && self.one_in(2) && !has_doubts {
            self.set_clocks_back(program);
        }
        if self.one_in(3) {
            let create = self.of(&[Create::IfMissing, Create::MustBeNew]);
            self.insert(program, Op::RaceToCreate { create });
        }
        if self.one_in(4) {
            program.damage = Some(self.damage(&program.store));
        }
        if self.one_in(6) {
            let access = Access::ReadOnly;
            self.insert(program, Op::OpenTwice { access });
        }
        for _ in 0..self.random.random_range(0..6) {
            let op = self.read(&program.store);
            self.insert(program, op);
        }
    }

    /// Draws the parts that were added after those of [`add`](Self::add).
    pub fn add_more(&mut self, program: &mut Program) {
        if self.one_in(2) {
            // The checks can be exact only if nothing expires.
            let keyspaces = program.store.keyspaces.iter_mut();
            for keyspace in keyspaces.chain([&mut program.store.private]) {
                keyspace.ttl_s = None;
            }
            for incarnation in &mut program.incarnations {
                let sets_clock = |of: &PlannedFault| matches!(of.kind, FaultKind::ClockBack { .. });
                incarnation.faults.retain(|planned| !sets_clock(planned));
            }
        }
        for _ in 0..self.random.random_range(0..8) {
            let op = self.other_op(&program.store);
            self.insert(program, op);
        }
        if self.one_in(6) && !program.sets_clock_back() {
            // A fault that lasts for a long time and then ends.
            let calls = self.of(&[
                CallFilter::Reads,
                CallFilter::Writes,
                CallFilter::Syncs,
                CallFilter::Manifest,
                CallFilter::Runs,
            ]);
            let incarnation = self.random.random_range(0..program.incarnations.len());
            let planned = PlannedFault {
                id: self.id(),
                at: self.random.random_range(0..300),
                kind: FaultKind::Fail {
                    calls,
                    count: self.of(&[20, 50]),
                    errno: self.of(&[forerun_db::io::fault::EIO, forerun_db::io::fault::ENOSPC]),
                },
            };
            program.incarnations[incarnation].faults.push(planned);
        }
    }

    /// Draws the parts that were added after those of [`add_more`](Self::add_more).
    pub fn add_clocks_and_readers(&mut self, program: &mut Program) {
        if program.has_ttl() && self.one_in(2) && !program.sets_clock_back() {
            self.set_clocks_back(program);
        }
        if self.ingests {
            // A thread that never writes does not wait for ingestions, so it reads in the middle of
            // them.
            for incarnation in &mut program.incarnations {
                if incarnation.threads.len() < THREADS {
                    let steps = self.random.random_range(20..60);
                    let steps = (0..steps).map(|_| Step {
                        id: self.id(),
                        op: self.read_now(&program.store),
                    });
                    incarnation.threads.push(steps.collect());
                }
            }
        }
    }

    /// Draws the options that a store is opened with after its first incarnation.
    pub fn add_options(&mut self, program: &mut Program) {
        for number in 1..program.incarnations.len() {
            let recovery = self.of(&[
                Recovery::DropTail,
                Recovery::DropTail,
                Recovery::SkipCorrupt,
            ]);
            program.incarnations[number].recovery = recovery;
            if !self.ingests && self.one_in(2) {
                let options = self.other_options(&program.store);
                program.incarnations[number].options = Some(Box::new(options));
            }
        }
        for incarnation in &mut program.incarnations {
            if matches!(incarnation.end, End::Close | End::Drop) && self.one_in(3) {
                incarnation.end_fault = Some(self.end_fault());
            }
        }
    }

    /// Draws in which incarnations memtables have an index. In half of the programs, those that
    /// have one are large enough for it.
    pub fn add_memtable_indexes(&mut self, program: &mut Program) {
        program.store.memtable_index = self.random.random();
        for incarnation in &mut program.incarnations {
            if let Some(options) = &mut incarnation.options {
                options.memtable_index = self.random.random();
            }
        }
        if self.random.random() {
            let of_incarnations = program.incarnations.iter_mut();
            let of_incarnations = of_incarnations.filter_map(|of| of.options.as_deref_mut());
            for store in of_incarnations.chain([&mut program.store]) {
                if store.memtable_index {
                    store.memtable_bytes = self.of(&[16 << 10, 24 << 10, 48 << 10]);
                }
            }
        }
    }

    /// Draws how many background threads compact.
    pub fn add_background_threads(&mut self, program: &mut Program) {
        program.store.background_threads = self.of(&[1, 2, 2, 3, 4]);
        for incarnation in &mut program.incarnations {
            if let Some(options) = &mut incarnation.options {
                options.background_threads = self.of(&[1, 2, 2, 3, 4]);
            }
        }
    }

    /// Draws what the system has in memory, and whether lookups trust it.
    pub fn add_cached_reads(&mut self, program: &mut Program) {
        program.store.cached_percent = self.of(&[0, 50, 90, 100]);
        let of_incarnations = program.incarnations.iter_mut();
        let of_incarnations = of_incarnations.filter_map(|of| of.options.as_deref_mut());
        for store in of_incarnations.chain([&mut program.store]) {
            store.verify_checksums = self.of(&[VerifyChecksums::Once, VerifyChecksums::Always]);
        }
    }

    /// Draws whether runs are scrubbed, and how fast.
    pub fn add_scrubs(&mut self, program: &mut Program) {
        let of_incarnations = program.incarnations.iter_mut();
        let of_incarnations = of_incarnations.filter_map(|of| of.options.as_deref_mut());
        for store in of_incarnations.chain([&mut program.store]) {
            store.scrub_rate_bytes = self.of(&[0, 0, 4 << 10, 256 << 10, 1 << 30]);
        }
    }

    /// Draws how old deletions may become, and stretches of keys that are deleted in one keyspace,
    /// as in a queue, while scans of all threads find out that they are dead.
    pub fn add_queues(&mut self, program: &mut Program) {
        let of_incarnations = program.incarnations.iter_mut();
        let of_incarnations = of_incarnations.filter_map(|of| of.options.as_deref_mut());
        for store in of_incarnations.chain([&mut program.store]) {
            for keyspace in store.keyspaces.iter_mut().chain([&mut store.private]) {
                let max_age_s = self.of(&[None, Some(2), Some(86_400)]);
                keyspace.tree.deletion_max_age = max_age_s.map(Duration::from_secs);
            }
        }
        if !self.one_in(3) {
            return;
        }
        let keyspaces = program.store.keyspaces.len() as u8;
        let keyspace = StepKeyspace::Shared(self.random.random_range(0..keyspaces));
        for _ in 0..self.random.random_range(1..4) {
            let ops = self.queue(keyspace);
            self.insert_all(program, ops);
        }
    }

    /// Steps that put all keys of the thread, and delete most of them.
    fn queue(&mut self, keyspace: StepKeyspace) -> Vec<Op> {
        let mut ops = vec![self.write_most(keyspace, 1, true)];
        for _ in 0..self.random.random_range(4..14) {
            let op = match self.random.random_range(0..14) {
                0..5 => Op::Pop {
                    keyspace,
                    count: self.random.random_range(1..6),
                    is_back: self.one_in(3),
                    by_range: self.one_in(3),
                },
                5 | 6 => self.write_most(keyspace, 6, false),
                7 => self.write_most(keyspace, 2, true),
                8 => Op::Flush,
                _ => Op::Scan {
                    keyspace,
                    direction: self.of(&[
                        ReadDirection::Forward,
                        ReadDirection::Backward,
                        ReadDirection::Both,
                    ]),
                },
            };
            ops.push(op);
        }
        ops
    }

    /// Puts or deletes the thread's keys in one batch, but for one in `spared` if that is more than
    /// one.
    fn write_most(&mut self, keyspace: StepKeyspace, spared: u32, is_put: bool) -> Op {
        let keys = (0..KEYS).filter(|_| spared < 2 || !self.one_in(spared));
        let keys: Vec<u8> = keys.collect();
        let change = |key| Change {
            keyspace,
            kind: if is_put {
                ChangeKind::Put { key, len: 20 }
            } else {
                ChangeKind::Delete { key }
            },
        };
        Op::Write {
            changes: keys.into_iter().map(change).collect(),
            durability: Some(Durability::Buffered),
        }
    }

    /// A fault that occurs while a store is being closed.
    fn end_fault(&mut self) -> FaultKind {
        FaultKind::Fail {
            calls: self.of(&[
                CallFilter::Any,
                CallFilter::Reads,
                CallFilter::Writes,
                CallFilter::Syncs,
                CallFilter::LogSyncs,
                CallFilter::Directory,
                CallFilter::Manifest,
                CallFilter::Log,
                CallFilter::Runs,
            ]),
            count: self.of(&[1, 2, 50]),
            errno: self.of(&[forerun_db::io::fault::EIO, forerun_db::io::fault::ENOSPC]),
        }
    }

    /// Draws other values for those options of a store that may change.
    fn other_options(&mut self, store: &StoreShape) -> StoreShape {
        let drawn = self.store();
        let mut options = store.clone();
        options.memtable_bytes = drawn.memtable_bytes;
        options.cache_bytes = drawn.cache_bytes;
        options.max_open_files = drawn.max_open_files;
        options.segment_bytes = drawn.segment_bytes;
        options.background = drawn.background;
        options.checks = drawn.checks;
        for keyspace in options.keyspaces.iter_mut().chain([&mut options.private]) {
            let drawn = self.keyspace_shape();
            (keyspace.run, keyspace.tree) = (drawn.run, drawn.tree);
        }
        options
    }

    /// Sets the clock back once in each incarnation.
    fn set_clocks_back(&mut self, program: &mut Program) {
        for incarnation in &mut program.incarnations {
            let steps = incarnation.threads.iter().map(Vec::len).sum::<usize>() as u64;
            let planned = PlannedFault {
                id: self.id(),
                at: self.random.random_range(0..20 + 12 * steps),
                kind: FaultKind::ClockBack {
                    seconds: self.of(&[1, 2, 5, 30, 100_000]),
                },
            };
            incarnation.faults.push(planned);
        }
    }

    fn other_op(&mut self, store: &StoreShape) -> Op {
        let keyspace = self.keyspace(store);
        match self.random.random_range(0..12) {
            0 => Op::Read {
                keyspace,
                key: self.key(),
            },
            1 => {
                let keys = self.random.random_range(0..20);
                Op::MultiGetToVec {
                    keyspace,
                    keys: (0..keys).map(|_| self.key()).collect(),
                }
            }
            2 => Op::FlushKeyspace { keyspace },
            3 => Op::SetWriteRate {
                bytes_per_second: self.of(&[None, Some(16 << 10), Some(1 << 20)]),
            },
            4 => Op::DeleteBackup {
                is_newest: self.random.random(),
            },
            5 => Op::Backup,
            6 => Op::CreateKeyspace,
            7 => Op::DropKeyspace,
            _ => Op::UseOther {
                thread: self.random.random_range(0..THREADS as u8),
                key: self.key(),
                len: self.len(),
            },
        }
    }

    /// A read of some keys.
    fn read(&mut self, store: &StoreShape) -> Op {
        let keyspace = self.keyspace(store);
        let direction = self.of(&[
            ReadDirection::Forward,
            ReadDirection::Backward,
            ReadDirection::Both,
        ]);
        match self.random.random_range(0..6) {
            0 | 1 => Op::Prefix {
                keyspace,
                key: self.key(),
                len: self.random.random_range(0..5),
                direction,
            },
            2 => {
                let keys = self.random.random_range(1..20);
                let keys = (0..keys).map(|_| self.key()).collect();
                // Not used any more. Without it, older seeds would draw other programs.
                self.of(&[(); 5]);
                Op::MultiGet { keyspace, keys }
            }
            _ => Op::Range {
                keyspace,
                from: self.bound(),
                to: self.bound(),
                direction,
            },
        }
    }

    /// A read of the current state.
    fn read_now(&mut self, store: &StoreShape) -> Op {
        let keyspace = self.keyspace(store);
        match self.random.random_range(0..8) {
            0..4 => Op::Get {
                keyspace,
                key: self.key(),
            },
            4 => Op::Scan {
                keyspace,
                direction: ReadDirection::Forward,
            },
            5 => Op::ReadStamps {
                by_snapshot: self.random.random(),
            },
            _ => self.read(store),
        }
    }

    fn bound(&mut self) -> Bound<u8> {
        let key = self.key();
        self.of(&[
            Bound::Included(key),
            Bound::Excluded(key),
            Bound::Excluded(key),
            Bound::Unbounded,
        ])
    }

    /// The damage that follows everything else.
    fn damage(&mut self, store: &StoreShape) -> Damage {
        let when = self.of(&[
            StoreState::Open,
            StoreState::Closed,
            StoreState::Closed,
            StoreState::Crashed,
        ]);
        let steps = self.of(&[2, 6, 15]);
        let threads = (0..THREADS).map(|_| {
            let steps = (0..steps).map(|_| Step {
                id: self.id(),
                op: match self.random.random_range(0..10) {
                    0 => Op::Flush,
                    1 => self.ingest(store),
                    _ => Op::Write {
                        changes: vec![self.change(store)],
                        durability: Some(Durability::Buffered),
                    },
                },
            });
            steps.collect()
        });
        let threads = threads.collect();
        let count = self.random.random_range(1..4);
        let overwrites = (0..count).map(|_| Overwrite {
            id: self.id(),
            target: match when {
                // An open store reads no other files.
                StoreState::Open => DamagedFile::Run,
                _ => self.of(&[
                    DamagedFile::Run,
                    DamagedFile::Run,
                    DamagedFile::Run,
                    DamagedFile::Log,
                    DamagedFile::Manifest,
                ]),
            },
            at: self.random.random(),
            len: self.of(&[1, 8, 100, 4 << 10, 4 << 10]),
            bytes: self.of(&[BytePattern::Flipped, BytePattern::Zeros, BytePattern::Noise]),
            seed: self.random.random(),
        });
        let overwrites = overwrites.collect();
        Damage {
            threads,
            when,
            overwrites,
        }
    }

    /// Inserts a step at a random position.
    fn insert(&mut self, program: &mut Program, op: Op) {
        self.insert_all(program, vec![op]);
    }

    /// Inserts steps that follow each other at a random position.
    fn insert_all(&mut self, program: &mut Program, ops: Vec<Op>) {
        let incarnation = self.random.random_range(0..program.incarnations.len());
        let threads = &mut program.incarnations[incarnation].threads;
        let thread = self.random.random_range(0..threads.len());
        let steps = &mut threads[thread];
        let index = self.random.random_range(0..=steps.len());
        let ops = ops.into_iter().map(|op| Step { id: self.id(), op });
        drop(steps.splice(index..index, ops));
    }
}
