//! One warp of the writing kernel does exactly what the CPU does: the same slots, victims, scores
//! and answers.

use crate::lookups::fits;
use crate::{Order, contents, on_shim, proptest_config, rows_of};
use forerun_gpu::table::{
    Answers, Batch, Candidates, Condition, Element, Entries, GpuEvictStrategy, GpuTable,
    LookupMode, Operation, ScoreBytes, Status, TableOptions, Width,
};
use proptest::prelude::*;
use std::ops::Range;

#[derive(Clone, Debug)]
enum Step {
    Apply {
        operation: Operation,
        keys: Vec<u64>,
        scores: Option<Vec<u64>>,
        flags: Vec<u8>,
        epoch: u64,
        with_rows: bool,
        wants: Wants,
    },
    Find {
        keys: Vec<u64>,
        lookup: LookupMode,
        wants: Wants,
    },
    EraseIf {
        from: u64,
        to: u64,
        slots: Range<u64>,
    },
    Clear,
}

/// Which answers a step asks for, one bit each: rows, scores, slots, pointers, status.
#[derive(Clone, Copy, Debug)]
struct Wants(u8);

impl Wants {
    fn any() -> impl Strategy<Value = Wants> {
        (0u8..32).prop_map(Wants)
    }

    /// An array with an entry per key if the answer is wanted.
    fn array<T: Clone>(self, bit: u8, value: T, len: usize) -> Option<Vec<T>> {
        (self.0 >> bit & 1 != 0).then(|| vec![value; len])
    }
}

/// Keys from a few ranges at both ends of u64, including those that HierarchicalKV reserves.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0u64..400,
        1 => (0u64..6).prop_map(|below| u64::MAX - below),
        1 => any::<u64>(),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => Just(Operation::InsertOrAssign),
        4 => Just(Operation::InsertAndEvict),
        2 => Just(Operation::FindOrInsert),
        1 => Just(Operation::AccumulateOrAssign(Element::I32)),
        1 => Just(Operation::AccumulateOrAssign(Element::I64)),
        1 => Just(Operation::Assign),
        1 => Just(Operation::AssignRows),
        1 => Just(Operation::AssignScores),
        1 => Just(Operation::FindAndUpdate),
        1 => Just(Operation::Lock),
        1 => Just(Operation::Unlock),
        2 => Just(Operation::Erase),
        1 => Just(Operation::Restore),
    ]
}

fn needs_rows(operation: Operation) -> bool {
    !matches!(
        operation,
        Operation::FindOrInsert
            | Operation::AssignScores
            | Operation::FindAndUpdate
            | Operation::Lock
            | Operation::Unlock
            | Operation::Erase
    )
}

fn step() -> impl Strategy<Value = Step> {
    let apply = (
        operation(),
        prop::collection::vec((key(), 0u64..50, any::<bool>()), 1..60),
        any::<bool>(),
        0u64..3,
        any::<bool>(),
        Wants::any(),
    )
        .prop_map(|(operation, keys, scored, epoch, with_rows, wants)| {
            let scored = scored || operation == Operation::Restore;
            Step::Apply {
                with_rows: with_rows || needs_rows(operation),
                wants,
                operation,
                scores: scored.then(|| keys.iter().map(|k| k.1).collect()),
                flags: keys.iter().map(|k| k.2.into()).collect(),
                keys: keys.iter().map(|k| k.0).collect(),
                epoch,
            }
        });
    prop_oneof![
        12 => apply,
        3 => (
            prop::collection::vec(key(), 0..40),
            prop::sample::select(LookupMode::ALL.to_vec()),
            Wants::any(),
        )
            .prop_map(|(keys, lookup, wants)| Step::Find { keys, lookup, wants }),
        1 => (0u64..20, 0u64..20, 0u64..300, 0u64..300).prop_map(|(from, more, slot, slots)| {
            Step::EraseIf { from, to: from + more, slots: slot..slot + slots }
        }),
        1 => Just(Step::Clear),
    ]
}

fn options() -> impl Strategy<Value = TableOptions> {
    let width = prop::sample::select(Width::ALL.to_vec());
    let candidates = prop::sample::select(vec![Candidates::One, Candidates::Two]);
    // The strategies that do not depend on time.
    let strategy = prop::sample::select(vec![
        GpuEvictStrategy::Lfu,
        GpuEvictStrategy::EpochLfu,
        GpuEvictStrategy::Customized,
    ]);
    let row_bytes = prop::sample::select(vec![0u64, 1, 4, 6, 8, 12, 13, 16, 36, 67, 160, 528]);
    // Few, so that buckets are often full: entries spill and are evicted.
    let slots = prop::sample::select(vec![32u64, 64, 256]);
    (
        width,
        candidates,
        strategy,
        (slots, row_bytes),
        any::<bool>(),
        0u64..3,
    )
        .prop_map(|(width, candidates, strategy, form, narrow, split)| {
            let (slots, row_bytes) = form;
            TableOptions::new(slots, row_bytes)
                .width(width)
                .candidates(candidates)
                .evict_strategy(strategy)
                .score_bytes(if narrow && strategy != GpuEvictStrategy::EpochLfu {
                    ScoreBytes::Four
                } else {
                    ScoreBytes::Eight
                })
                .device_row_bytes_max([u64::MAX, 0, slots / 3 * row_bytes][split as usize])
        })
}

/// The answers of a step. An array that was not asked for is `None`.
#[derive(Debug, PartialEq, Default)]
struct Said {
    rows: Option<Vec<u8>>,
    scores: Option<Vec<u64>>,
    slots: Option<Vec<u64>>,
    /// Whether each is not 0: the two tables are at different addresses.
    has_pointer: Option<Vec<bool>>,
    status: Option<Vec<Status>>,
    /// Evicted, missing or exported entries.
    rest: Entries,
    /// Entries that meet a condition, that were erased, and that are left.
    counts: [u64; 3],
}

impl Said {
    /// Calls `work` with arrays for the wanted answers, filled with a value that no answer has.
    fn collect(
        wants: Wants,
        keys: usize,
        row_bytes: u64,
        work: impl FnOnce(Answers<'_>) -> Entries,
    ) -> Said {
        let mut said = Said {
            rows: wants.array(0, 9, keys * row_bytes as usize),
            scores: wants.array(1, 9, keys),
            slots: wants.array(2, 9, keys),
            status: wants.array(4, Status::Absent, keys),
            ..Said::default()
        };
        let mut pointers = wants.array(3, 9, keys);
        said.rest = work(Answers {
            rows: said.rows.as_deref_mut(),
            scores: said.scores.as_deref_mut(),
            slots: said.slots.as_deref_mut(),
            pointers: pointers.as_deref_mut(),
            status: said.status.as_deref_mut(),
        });
        said.has_pointer = pointers.map(|all| all.iter().map(|pointer| *pointer != 0).collect());
        said
    }
}

fn run(table: &mut GpuTable, step: &Step, stamp: u64) -> Said {
    let row_bytes = table.options().row_bytes;
    let mut said = Said::default();
    match step {
        Step::Apply {
            operation,
            keys,
            scores,
            flags,
            epoch,
            with_rows,
            wants,
        } => {
            let operation = match *operation {
                Operation::AccumulateOrAssign(element)
                    if !row_bytes.is_multiple_of(element.bytes()) =>
                {
                    Operation::InsertOrAssign
                }
                operation => operation,
            };
            let rows = rows_of(keys, stamp, row_bytes);
            let batch = Batch {
                keys,
                rows: with_rows.then_some(&rows[..]),
                scores: scores.as_deref(),
                flags: Some(flags),
                epoch: *epoch,
            };
            said = Said::collect(*wants, keys.len(), row_bytes, |answers| {
                table.apply(operation, &batch, answers).unwrap()
            });
        }
        Step::Find {
            keys,
            lookup,
            wants,
        } => {
            // Only searches for slots use the named kernel. The pipeline supports one width.
            let lookup = if fits(*lookup, table.options().width) {
                *lookup
            } else {
                LookupMode::ByLoad
            };
            said = Said::collect(*wants, keys.len(), row_bytes, |answers| {
                table.lookup(lookup, keys, answers).unwrap();
                Entries::default()
            });
            // The same answers from the kernel that copies rows and from those that find slots.
            let full = [Wants(0b11111), Wants(0b11100)].map(|wants| {
                Said::collect(wants, keys.len(), row_bytes, |answers| {
                    table.lookup(lookup, keys, answers).unwrap();
                    Entries::default()
                })
            });
            assert_eq!(full[0].slots, full[1].slots, "{lookup:?}");
            assert_eq!(full[0].status, full[1].status, "{lookup:?}");
            let [full, _] = full;
            assert!(said.rows.is_none() || said.rows == full.rows, "{lookup:?}");
            assert!(
                said.slots.is_none() || said.slots == full.slots,
                "{lookup:?}"
            );
            let mut rows = vec![9; keys.len() * row_bytes as usize];
            said.rest = table.find_missed(keys, &mut rows).unwrap();
            assert!(full.rows == Some(rows), "{lookup:?}");
        }
        Step::EraseIf { from, to, slots } => {
            let condition = Condition {
                scores: *from..=*to,
                key_mask: 1,
                key_value: 1,
            };
            said.counts[0] = table.size_if(&condition).unwrap();
            let slots = slots.clone();
            table
                .export_batch_if(slots, &condition, &mut said.rest)
                .unwrap();
            said.counts[1] = table.erase_if(&condition).unwrap();
        }
        Step::Clear => table.clear().unwrap(),
    }
    said.counts[2] = table.size().unwrap();
    said
}

proptest! {
    #![proptest_config(proptest_config(48))]
    #[test]
    fn one_warp_does_exactly_what_the_cpu_does(
        options in options(),
        steps in prop::collection::vec(step(), 1..14),
    ) {
        let Some(mut kernels) = on_shim(Order::OneWarp, options) else { return Ok(()) };
        let mut cpu = GpuTable::on_cpu(options).unwrap();
        for (stamp, step) in steps.iter().enumerate() {
            let expected = run(&mut cpu, step, stamp as u64);
            let found = run(&mut kernels, step, stamp as u64);
            prop_assert_eq!(found, expected, "step {}: {:?}", stamp, step);
        }
        prop_assert_eq!(kernels.arrays().unwrap(), cpu.arrays().unwrap());
        prop_assert_eq!(contents(&mut kernels), contents(&mut cpu));
    }
}
