//! The tests of the warm-up find the defects that they are there to find.

#![cfg(feature = "planted")]

mod testing;

#[path = "testing/warm_up_model.rs"]
mod warm_up_model;

#[path = "testing/warm_up_race.rs"]
mod warm_up_race;

use forerun_server::planted_warm_up::{Defect, plant};

/// One test, because a defect is planted in the whole process.
#[test]
fn the_warm_up_model_and_the_race_find_their_defects() {
    assert_eq!(warm_up_model::search(300), None);
    for defect in [Defect::FillUnchecked, Defect::TouchUnmarked] {
        plant(Some(defect));
        let (case, wrong) = warm_up_model::search(300).expect("a wrong answer");
        println!("{defect:?}, case {case}: {wrong}");
    }
    plant(Some(Defect::FillUnlocked));
    assert_eq!(warm_up_model::search(300), None, "it needs two threads");
    let found = warm_up_race::resurrected(20_000);
    println!("{found} of 20000 keys came back");
    assert!(found > 0);
    plant(None);
}
