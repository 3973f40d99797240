//! Tests that a correct table passes the checks and that a wrong one does not.

use super::super::form;
use super::super::lanes;
use super::super::stamped_row::bytes_of;
use super::*;

/// A change to the answers of a round.
type Change<'a> = &'a dyn Fn(&[Vec<Job>], &mut [Vec<Answer>]);

fn made(capacity: Capacity, number: u64) -> (ExpectedState, GpuTable) {
    let mut table = GpuTable::on_cpu(form(capacity, number, 1 << 10)).unwrap();
    let mut expected = ExpectedState::new(&table, capacity, 4, 40, number);
    expected.begin(&mut table).unwrap();
    (expected, table)
}

#[test]
fn a_correct_table_passes_with_and_without_evictions() {
    for number in 0..8 {
        let capacity = if number % 2 == 0 {
            Capacity::Enough
        } else {
            Capacity::Scarce
        };
        let (mut expected, mut table) = made(capacity, number);
        let mut found = 0;
        for _ in 0..6 {
            let jobs = expected.round();
            let said = lanes::run(&mut table, &jobs).unwrap();
            found += said
                .iter()
                .flatten()
                .flat_map(|a| &a.status)
                .filter(|s| **s == Status::Found)
                .count();
            expected.check(&jobs, &said).unwrap();
            assert!(expected.compare(&mut table).unwrap() > 32);
        }
        assert!(found > 100, "{found}");
    }
}

#[test]
fn a_wrong_answer_is_reported() {
    let reported = |change: Change<'_>| {
        let (mut expected, mut table) = made(Capacity::Enough, 0);
        let mut faults = Vec::new();
        for _ in 0..6 {
            let jobs = expected.round();
            let mut said = lanes::run(&mut table, &jobs).unwrap();
            change(&jobs, &mut said);
            if let Err(error) = expected.check(&jobs, &said) {
                faults.push(format!("{error:#}"));
                break;
            }
        }
        faults.pop().unwrap_or_default()
    };
    assert_eq!(reported(&|_, _| ()), "");
    let torn = reported(&|jobs, said| {
        for (job, answer) in jobs.iter().flatten().zip(said.iter_mut().flatten()) {
            if job.work == Work::Find {
                answer
                    .rows
                    .iter_mut()
                    .skip(20)
                    .step_by(48)
                    .for_each(|byte| *byte ^= 1);
            }
        }
    });
    assert!(torn.contains("torn"), "{torn}");
    let torn = reported(&|jobs, said| {
        for (job, answer) in jobs.iter().flatten().zip(said.iter_mut().flatten()) {
            if job.work == Work::FindPooled {
                answer.rows.iter_mut().for_each(|byte| *byte ^= 1);
            }
        }
    });
    assert!(torn.contains("the sum of its bag"), "{torn}");
    let miscounted = reported(&|jobs, said| {
        for (job, answer) in jobs.iter().flatten().zip(said.iter_mut().flatten()) {
            if job.work == Work::FindPooled {
                answer.counts.iter_mut().for_each(|count| *count -= 1);
            }
        }
    });
    assert!(
        miscounted.contains("may be absent") || miscounted.contains("not found"),
        "{miscounted}"
    );
    let lost = reported(&|jobs, said| {
        for (job, answer) in jobs.iter().flatten().zip(said.iter_mut().flatten()) {
            if matches!(job.work, Work::Find | Work::Contains(_)) {
                answer.status.fill(Status::Absent);
            }
        }
    });
    assert!(lost.contains("not found"), "{lost}");
}

#[test]
fn a_table_with_lost_or_changed_rows_is_reported() {
    let reported = |change: &dyn Fn(&mut GpuTable, &ExpectedState)| {
        let (mut expected, mut table) = made(Capacity::Enough, 2);
        for _ in 0..4 {
            let jobs = expected.round();
            let said = lanes::run(&mut table, &jobs).unwrap();
            expected.check(&jobs, &said).unwrap();
        }
        change(&mut table, &expected);
        expected
            .compare(&mut table)
            .map_or_else(|error| error.to_string(), |_| String::new())
    };
    assert_eq!(reported(&|_, _| ()), "");
    let lost = reported(&|table, expected| {
        let key = *expected.model.keys().next().unwrap();
        table.erase(&[key]).unwrap();
    });
    assert!(lost.contains("is lost"), "{lost}");
    let old = reported(&|table, expected| {
        let key = *expected.model.keys().next().unwrap();
        let row: Vec<u8> = bytes_of(row_of(key, 1 << 40)).collect();
        table.insert_or_assign(&[key], &row, None).unwrap();
    });
    assert!(old.contains("was its last"), "{old}");
    let unpinned = reported(&|table, expected| {
        let keys = expected.pinned_keys();
        table.unlock(&keys).unwrap();
        table.erase(&keys).unwrap();
    });
    assert!(unpinned.contains("is gone"), "{unpinned}");
}
