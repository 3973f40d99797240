//! `forerun demo --quick`: everything runs, and the page needs no other file.

mod common;

use common::Place;

#[test]
fn the_demo_runs_and_writes_its_page() {
    let place = Place::new();
    let told = place.succeeds(&["demo", "--quick", "--dir", "cities.db"]);
    assert!(
        told.contains("GeoNames") && told.contains("CC BY 4.0"),
        "{told}"
    );
    assert!(
        told.contains("2,000 records") && told.contains("XX/Atlantis/0,0\n    not found"),
        "{told}"
    );
    let rows = told
        .lines()
        .filter(|line| line.trim_start().starts_with("1024 "))
        .count();
    assert_eq!(
        rows, 2,
        "a row of the longest batch for each of the two stores: {told}"
    );
    assert!(told.contains("Every answer was checked"), "{told}");
    let page = std::fs::read_to_string(place.path("forerun-demo.html")).expect("the page is there");
    forerun_measure::report::check_html(&page)
        .expect("the page is well formed and needs nothing else");
    assert!(page.contains("<svg") && page.contains("CC BY 4.0"));
    // A store with a given path is kept.
    assert_eq!(
        place
            .succeeds(&["scan", "cities.db", "--keys-only"])
            .lines()
            .count(),
        2000
    );
    assert!(
        place
            .fails(2, &["demo", "--quick", "--dir", "cities.db"])
            .contains("is not empty")
    );
}

#[test]
fn a_page_that_cannot_be_written_is_told_at_once() {
    let place = Place::new();
    let told = place.fails(3, &["demo", "--quick", "--report", "no/such/folder.html"]);
    assert!(
        told.contains("cannot write the page no/such/folder.html"),
        "{told}"
    );
}
