//! A correct table passes the checks, and a wrong one does not.

use super::super::form;
use super::super::lanes;
use super::super::stamped_row::bytes_of;
use super::*;

/// A change to the answers of a round.
type Change<'a> = &'a dyn Fn(&[Vec<Job>], &mut [Vec<Answer>]);

fn made(room: Room, number: u64) -> (World, GpuTable) {
    let mut table = GpuTable::on_cpu(form(room, number, 1 << 10)).unwrap();
    let mut world = World::new(&table, room, 4, 40, number);
    world.begin(&mut table).unwrap();
    (world, table)
}

#[test]
fn rounds_of_a_right_table_pass_with_and_without_room() {
    for number in 0..8 {
        let room = if number % 2 == 0 {
            Room::Enough
        } else {
            Room::Scarce
        };
        let (mut world, mut table) = made(room, number);
        let mut found = 0;
        for _ in 0..6 {
            let jobs = world.round();
            let said = lanes::run(&mut table, &jobs).unwrap();
            found += said
                .iter()
                .flatten()
                .flat_map(|a| &a.status)
                .filter(|s| **s == Status::Found)
                .count();
            world.check(&jobs, &said).unwrap();
            assert!(world.compare(&mut table).unwrap() > 32);
        }
        assert!(found > 100, "{found}");
    }
}

#[test]
fn a_wrong_answer_is_told() {
    let told = |change: Change<'_>| {
        let (mut world, mut table) = made(Room::Enough, 0);
        let mut faults = Vec::new();
        for _ in 0..6 {
            let jobs = world.round();
            let mut said = lanes::run(&mut table, &jobs).unwrap();
            change(&jobs, &mut said);
            if let Err(error) = world.check(&jobs, &said) {
                faults.push(format!("{error:#}"));
                break;
            }
        }
        faults.pop().unwrap_or_default()
    };
    assert_eq!(told(&|_, _| ()), "");
    let torn = told(&|jobs, said| {
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
    let lost = told(&|jobs, said| {
        for (job, answer) in jobs.iter().flatten().zip(said.iter_mut().flatten()) {
            if !matches!(
                job.work,
                Work::Insert | Work::Erase | Work::Add | Work::FindOrInsert
            ) {
                answer.status.fill(Status::Absent);
            }
        }
    });
    assert!(lost.contains("not found"), "{lost}");
}

#[test]
fn a_table_that_lost_or_changed_something_is_told() {
    let told = |change: &dyn Fn(&mut GpuTable, &World)| {
        let (mut world, mut table) = made(Room::Enough, 2);
        for _ in 0..4 {
            let jobs = world.round();
            let said = lanes::run(&mut table, &jobs).unwrap();
            world.check(&jobs, &said).unwrap();
        }
        change(&mut table, &world);
        world
            .compare(&mut table)
            .map_or_else(|error| error.to_string(), |_| String::new())
    };
    assert_eq!(told(&|_, _| ()), "");
    let lost = told(&|table, world| {
        let key = *world.model.keys().next().unwrap();
        table.erase(&[key]).unwrap();
    });
    assert!(lost.contains("is lost"), "{lost}");
    let old = told(&|table, world| {
        let key = *world.model.keys().next().unwrap();
        let row: Vec<u8> = bytes_of(row_of(key, 1 << 40)).collect();
        table.insert_or_assign(&[key], &row, None).unwrap();
    });
    assert!(old.contains("was its last"), "{old}");
    let unpinned = told(&|table, world| {
        let keys = world.pinned_keys();
        table.unlock(&keys).unwrap();
        table.erase(&keys).unwrap();
    });
    assert!(unpinned.contains("is gone"), "{unpinned}");
}
