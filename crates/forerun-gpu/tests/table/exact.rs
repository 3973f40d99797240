//! One tile of the writing kernel does exactly what the CPU does: the same slots, victims, scores
//! and answers.

use crate::{Order, contents, on_shim, rows_of};
use forerun_gpu::table::{
    Answers, Batch, Candidates, Condition, Element, Entries, GpuTable, Lookup, Operation, Policy,
    ScoreBytes, Status, TableOptions, Width,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Apply {
        operation: Operation,
        keys: Vec<u64>,
        scores: Option<Vec<u64>>,
        flags: Vec<u8>,
        epoch: u64,
    },
    Find {
        keys: Vec<u64>,
        lookup: Lookup,
    },
    EraseIf {
        from: u64,
        to: u64,
    },
    Clear,
}

/// Keys from a few ranges at both ends of u64, including those that the peer reserves.
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
        2 => Just(Operation::AccumulateOrAssign(Element::I32)),
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

fn step() -> impl Strategy<Value = Step> {
    let apply = (
        operation(),
        prop::collection::vec((key(), 0u64..50, any::<bool>()), 1..60),
        any::<bool>(),
        0u64..3,
    )
        .prop_map(|(operation, keys, scored, epoch)| {
            let scored = scored || operation == Operation::Restore;
            Step::Apply {
                operation,
                scores: scored.then(|| keys.iter().map(|k| k.1).collect()),
                flags: keys.iter().map(|k| k.2.into()).collect(),
                keys: keys.iter().map(|k| k.0).collect(),
                epoch,
            }
        });
    prop_oneof![
        12 => apply,
        3 => (prop::collection::vec(key(), 0..40), prop::sample::select(Lookup::ALL.to_vec()))
            .prop_map(|(keys, lookup)| Step::Find { keys, lookup }),
        1 => (0u64..20, 0u64..20).prop_map(|(from, more)| Step::EraseIf { from, to: from + more }),
        1 => Just(Step::Clear),
    ]
}

fn options() -> impl Strategy<Value = TableOptions> {
    let width = prop::sample::select(Width::ALL.to_vec());
    let candidates = prop::sample::select(vec![Candidates::One, Candidates::Two]);
    // The policies that do not depend on time.
    let policy = prop::sample::select(vec![Policy::Lfu, Policy::EpochLfu, Policy::Custom]);
    let row_bytes = prop::sample::select(vec![0u64, 4, 8, 12, 16, 36, 160]);
    (width, candidates, policy, row_bytes, any::<bool>(), 0u64..3).prop_map(
        |(width, candidates, policy, row_bytes, narrow, split)| {
            TableOptions::new(256, row_bytes)
                .width(width)
                .candidates(candidates)
                .policy(policy)
                .score_bytes(match narrow && policy != Policy::EpochLfu {
                    true => ScoreBytes::Four,
                    false => ScoreBytes::Eight,
                })
                .device_row_bytes_max([u64::MAX, 0, 70 * row_bytes][split as usize])
        },
    )
}

/// The answers of a step.
#[derive(Debug, PartialEq, Default)]
struct Said {
    rows: Vec<u8>,
    scores: Vec<u64>,
    slots: Vec<u64>,
    status: Vec<Status>,
    rest: Entries,
    count: u64,
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
        } => {
            let rows = rows_of(keys, stamp, row_bytes);
            let batch = Batch {
                keys,
                rows: Some(&rows),
                scores: scores.as_deref(),
                flags: Some(flags),
                epoch: *epoch,
            };
            said.rows = vec![9; rows.len()];
            said.scores = vec![9; keys.len()];
            said.slots = vec![9; keys.len()];
            said.status = vec![Status::Absent; keys.len()];
            let answers = Answers {
                rows: Some(&mut said.rows),
                scores: Some(&mut said.scores),
                slots: Some(&mut said.slots),
                pointers: None,
                status: Some(&mut said.status),
            };
            said.rest = table.apply(*operation, &batch, answers).unwrap();
        }
        Step::Find { keys, lookup } => {
            said.rows = vec![9; keys.len() * row_bytes as usize];
            said.scores = vec![9; keys.len()];
            said.slots = vec![9; keys.len()];
            said.status = vec![Status::Absent; keys.len()];
            let answers = Answers {
                rows: Some(&mut said.rows),
                scores: Some(&mut said.scores),
                slots: Some(&mut said.slots),
                pointers: None,
                status: Some(&mut said.status),
            };
            table.lookup(Lookup::ByLoad, keys, answers).unwrap();
            // Only searches for slots use the named kernel. The pipeline supports one width.
            let lookup = match lookup {
                Lookup::Pipeline if table.options().width != Width::W128 => Lookup::ByLoad,
                named => *named,
            };
            let (mut slots, mut status) = (vec![9; keys.len()], vec![Status::Refused; keys.len()]);
            let answers = Answers {
                slots: Some(&mut slots),
                status: Some(&mut status),
                ..Answers::default()
            };
            table.lookup(lookup, keys, answers).unwrap();
            assert_eq!((&slots, &status), (&said.slots, &said.status), "{lookup:?}");
        }
        Step::EraseIf { from, to } => {
            let condition = Condition {
                scores: *from..=*to,
                key_mask: 1,
                key_value: 1,
            };
            said.count = table.size_if(&condition).unwrap();
            assert!(table.erase_if(&condition).unwrap() <= said.count);
        }
        Step::Clear => table.clear().unwrap(),
    }
    said.count += table.size().unwrap();
    said
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn one_tile_does_exactly_what_the_cpu_does(
        options in options(),
        steps in prop::collection::vec(step(), 1..14),
    ) {
        let Some(mut kernels) = on_shim(Order::OneTile, options) else { return Ok(()) };
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
