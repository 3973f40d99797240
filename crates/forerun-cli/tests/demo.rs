//! `forerun demo --quick`: everything runs, and the page needs no other file.

mod testing;

use testing::Workspace;

#[test]
fn the_demo_runs_and_writes_its_page() {
    let workspace = Workspace::new();
    let reported = workspace.succeeds(&["demo", "--quick", "--dir", "cities.db"]);
    assert!(
        reported.contains("GeoNames") && reported.contains("CC BY 4.0"),
        "{reported}"
    );
    assert!(
        reported.contains("2,000 records") && reported.contains("XX/Atlantis/0,0\n    not found"),
        "{reported}"
    );
    let rows = reported
        .lines()
        .filter(|line| line.trim_start().starts_with("1024 "))
        .count();
    assert_eq!(
        rows, 2,
        "a row of the longest batch for each of the two stores: {reported}"
    );
    // So few entries fit in a cache.
    assert!(
        reported.contains("5,000 entries (keys of 16 bytes, values of 100):"),
        "{reported}"
    );
    assert!(reported.contains("Every answer was checked"), "{reported}");
    let page =
        std::fs::read_to_string(workspace.path("forerun-demo.html")).expect("the page is there");
    forerun_measure::report::check_html(&page)
        .expect("the page is well formed and needs nothing else");
    assert!(page.contains("<svg") && page.contains("CC BY 4.0"));
    // A store with a given path is kept.
    assert_eq!(
        workspace
            .succeeds(&["scan", "cities.db", "--keys-only"])
            .lines()
            .count(),
        2000
    );
    assert!(
        workspace
            .fails(2, &["demo", "--quick", "--dir", "cities.db"])
            .contains("is not empty")
    );
}

#[test]
fn an_unwritable_page_is_reported_at_the_start() {
    let workspace = Workspace::new();
    let reported = workspace.fails(3, &["demo", "--quick", "--report", "no/such/folder.html"]);
    assert!(
        reported.contains("cannot write the page no/such/folder.html"),
        "{reported}"
    );
}
