//! YCSB's core workloads A to F, and their operations.
//!
//! ```text
//!       reads   writes                     requested records
//!  A     50%    50% updates                zipfian
//!  B     95%     5% updates                zipfian
//!  C    100%                               zipfian
//!  D     95%     5% inserts                latest
//!  E     95%     5% inserts                zipfian; a read is a scan of 1 to 100 records, uniformly
//!  F     50%    50% read-modify-writes     zipfian
//! ```
//!
//! A to C and F request the loaded records; D and E also request those inserted since, once their
//! inserts have returned. Updates write whole records (YCSB's `writeallfields`), since a store of
//! bytes has no fields: updating a field would need a read first, which is workload F.

use super::choose::{Latest, Scrambled};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The longest scan.
pub const SCAN_MAX: usize = 100;

/// A core workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Workload {
    /// Half reads, half updates
    A,
    /// 95% reads, 5% updates
    B,
    /// Reads
    C,
    /// 95% reads of new records, 5% inserts
    D,
    /// 95% short scans, 5% inserts
    E,
    /// Half reads, half read-modify-writes
    F,
}

impl Workload {
    /// All of them, in order.
    pub const ALL: [Workload; 6] = [
        Workload::A,
        Workload::B,
        Workload::C,
        Workload::D,
        Workload::E,
        Workload::F,
    ];

    /// Its letter, as on the command line and in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Workload::A => "a",
            Workload::B => "b",
            Workload::C => "c",
            Workload::D => "d",
            Workload::E => "e",
            Workload::F => "f",
        }
    }

    /// A short description.
    pub fn about(self) -> &'static str {
        match self {
            Workload::A => "50% reads, 50% updates",
            Workload::B => "95% reads, 5% updates",
            Workload::C => "reads",
            Workload::D => "95% reads of new records, 5% inserts",
            Workload::E => "95% scans of 1 to 100, 5% inserts",
            Workload::F => "50% reads, 50% read-modify-writes",
        }
    }

    /// Whether it adds records.
    pub fn inserts(self) -> bool {
        matches!(self, Workload::D | Workload::E)
    }

    /// Whether its batches have reads to look up together.
    pub fn is_batched(self) -> bool {
        self != Workload::E
    }

    /// The share of its operations that only read.
    fn reads(self) -> f64 {
        match self {
            Workload::A | Workload::F => 0.5,
            Workload::B | Workload::D | Workload::E => 0.95,
            Workload::C => 1.0,
        }
    }

    /// An operation on a record; `length` is called if it is a scan.
    fn operation(self, reads: bool, record: u64, length: impl FnOnce() -> usize) -> Operation {
        match (self, reads) {
            (Workload::E, true) => Operation::Scan {
                from: record,
                length: length(),
            },
            (_, true) => Operation::Read(record),
            (Workload::D | Workload::E, false) => Operation::Insert,
            (Workload::F, false) => Operation::Modify(record),
            (_, false) => Operation::Update(record),
        }
    }
}

/// One operation, on a record by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a record.
    Read(u64),
    /// Writes a new version of a record.
    Update(u64),
    /// Writes a new record.
    Insert,
    /// Reads several records in key order, beginning with one.
    Scan {
        /// The first.
        from: u64,
        /// How many.
        length: usize,
    },
    /// Reads a record, then writes a new version of it.
    Modify(u64),
}

/// One client's endless operations.
pub struct Operations {
    workload: Workload,
    rng: SmallRng,
    chosen: Chosen,
}

#[derive(Clone)]
enum Chosen {
    Scrambled(Scrambled),
    Latest(Latest),
    /// Each record in turn, from this one on.
    InTurn(u64),
}

/// How clients of a workload choose their records, made once for all of them.
#[derive(Clone)]
pub struct Requests {
    workload: Workload,
    chosen: Chosen,
}

impl Requests {
    /// The requests of `workload` with `loaded` records, at least one, and at most `max` records
    /// in the end.
    pub fn new(workload: Workload, loaded: u64, max: u64) -> Requests {
        let chosen = match workload {
            Workload::D => Chosen::Latest(Latest::new(loaded)),
            // As in YCSB, a record's popularity does not change when others are inserted: records
            // that do not exist yet are drawn too, and then redrawn.
            Workload::E => Chosen::Scrambled(Scrambled::new(max.max(loaded))),
            _ => Chosen::Scrambled(Scrambled::new(loaded)),
        };
        Requests { workload, chosen }
    }

    /// Reads each of `records` records once, in load order, which is spread over the key order.
    pub fn all(records: u64) -> Requests {
        Requests {
            workload: Workload::C,
            chosen: Chosen::InTurn(records),
        }
    }

    /// A client's operations.
    pub fn operations(&self, seed: u64) -> Operations {
        Operations {
            workload: self.workload,
            rng: SmallRng::seed_from_u64(seed),
            chosen: self.chosen.clone(),
        }
    }
}

impl Operations {
    /// The next operation, if the records from 0 to below `known` exist.
    pub fn draw(&mut self, known: u64) -> Operation {
        let rng = &mut self.rng;
        // random() is below 1, so a share of 1 is always met.
        let reads = rng.random::<f64>() < self.workload.reads();
        let record = match &mut self.chosen {
            Chosen::Latest(latest) => latest.draw(known, rng),
            Chosen::InTurn(next) => {
                let record = *next % known.max(1);
                *next = record + 1;
                record
            }
            Chosen::Scrambled(scrambled) => loop {
                let record = scrambled.draw(rng);
                if record < known {
                    break record;
                }
            },
        };
        self.workload
            .operation(reads, record, || rng.random_range(1..=SCAN_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const DRAWS: usize = 40_000;

    fn shares(workload: Workload) -> BTreeMap<&'static str, f64> {
        let mut operations = Requests::new(workload, 1000, 2000).operations(3);
        let mut counts = BTreeMap::new();
        for at in 0..DRAWS {
            let known = 1000 + at as u64 / 100;
            let (name, record) = match operations.draw(known) {
                Operation::Read(record) => ("read", record),
                Operation::Update(record) => ("update", record),
                Operation::Insert => ("insert", 0),
                Operation::Modify(record) => ("modify", record),
                Operation::Scan { from, length } => {
                    assert!((1..=SCAN_MAX).contains(&length));
                    ("scan", from)
                }
            };
            assert!(record < known);
            *counts.entry(name).or_insert(0.0) += 1.0 / DRAWS as f64;
        }
        counts
    }

    #[test]
    fn each_workload_mixes_its_operations_as_ycsb_says() {
        let expected: [(Workload, &[(&str, f64)]); 6] = [
            (Workload::A, &[("read", 0.5), ("update", 0.5)]),
            (Workload::B, &[("read", 0.95), ("update", 0.05)]),
            (Workload::C, &[("read", 1.0)]),
            (Workload::D, &[("insert", 0.05), ("read", 0.95)]),
            (Workload::E, &[("insert", 0.05), ("scan", 0.95)]),
            (Workload::F, &[("modify", 0.5), ("read", 0.5)]),
        ];
        for (workload, expected) in expected {
            let shares = shares(workload);
            let names: Vec<&str> = shares.keys().copied().collect();
            assert_eq!(names, expected.iter().map(|e| e.0).collect::<Vec<_>>());
            for (name, share) in expected {
                assert!((shares[name] - share).abs() < 0.01, "{workload:?} {name}");
            }
        }
    }

    #[test]
    fn scan_lengths_are_uniform() {
        let mut operations = Requests::new(Workload::E, 1000, 1000).operations(4);
        let mut lengths = [0u32; SCAN_MAX + 1];
        for _ in 0..DRAWS {
            if let Operation::Scan { length, .. } = operations.draw(1000) {
                lengths[length] += 1;
            }
        }
        let even = DRAWS as u32 * 95 / 10_000;
        assert!(
            lengths[1..]
                .iter()
                .all(|n| (even / 2..even * 2).contains(n))
        );
    }

    #[test]
    fn equal_seeds_give_equal_operations_and_others_differ() {
        let requests = Requests::new(Workload::A, 1000, 1000);
        let draw = |seed| {
            let mut operations = requests.operations(seed);
            (0..100).map(|_| operations.draw(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn all_records_are_requested_in_turn() {
        let mut operations = Requests::all(5).operations(1);
        let drawn: Vec<Operation> = (0..6).map(|_| operations.draw(5)).collect();
        assert_eq!(drawn, [0, 1, 2, 3, 4, 0].map(Operation::Read));
    }

    #[test]
    fn without_inserts_only_loaded_records_are_requested() {
        let mut operations = Requests::new(Workload::C, 10, 1000).operations(1);
        for _ in 0..1000 {
            assert!(matches!(operations.draw(1000), Operation::Read(record) if record < 10));
        }
    }
}
