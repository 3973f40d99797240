//! The script that takes plots out of a page writes files for every viewer, also for those that
//! know no CSS variables.

use forerun_measure::report::{Chart, Report, Section, Shape};
use std::fs;
use std::path::Path;
use std::process::Command;

const SERIES: [&str; 6] = ["single", "interleaved", "auto", "get", "plain", "other"];

/// The files that `docs/plots.sh` makes of a page with a plot of each kind.
fn plots() -> Vec<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standalone-plots");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut report = Report::new("A page", "Two plots.");
    report.sections.push(Section::Heading("Plots".into()));
    for shape in [Shape::Lines, Shape::Bars] {
        let mut chart = Chart::new(format!("{shape:?}"), shape);
        chart.x = vec!["1".into(), "8".into()];
        for name in SERIES {
            chart.push(name, [Some((1.0, 0.5, 2.0)), Some((3.0, 2.5, 4.0))]);
        }
        chart.reference = Some((2.0, "a reference".into()));
        report.sections.push(Section::Chart(chart));
    }
    let page = folder.join("page.html");
    fs::write(&page, report.to_html()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plots.sh");
    let mut command = Command::new("sh");
    let status = command.arg(script).arg(&page).arg(&folder).status();
    assert!(status.unwrap().success());
    let files = ["01-plots-lines.svg", "02-plots-bars.svg"];
    files
        .map(|name| fs::read_to_string(folder.join(name)).unwrap())
        .into()
}

#[test]
fn a_plot_outside_its_page_has_its_colours_as_attributes() {
    let of_readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/demo.svg");
    let of_readme = fs::read_to_string(of_readme).unwrap();
    for svg in plots().into_iter().chain([of_readme]) {
        let (head, rest) = svg.split_once("<style>").unwrap();
        let (style, body) = rest.split_once("</style>").unwrap();
        assert!(head.contains("fill=\"#1d2328\""), "{head}");
        // Where variables do not work, no rule replaces an attribute.
        let style = style.trim();
        assert!(
            style.starts_with("@supports (color: var(--ink)) {"),
            "{style}"
        );
        assert_eq!(
            style.matches('{').count(),
            style.matches('}').count(),
            "{style}"
        );
        assert!(!body.contains("var("), "{body}");
        for class in body.split("class=\"").skip(1) {
            let (name, attributes) = class.split_once('"').unwrap();
            let attributes = attributes.split_once('>').unwrap().0;
            let colours = [
                "fill=\"#",
                "fill=\"currentColor",
                "stroke=\"#",
                "stroke=\"currentColor",
            ];
            let has = |colours: &[&str]| colours.iter().any(|part| attributes.contains(part));
            match name {
                // Their children have colours; text has that of the root.
                "point" | "head" => {}
                "s0" | "s1" | "s2" | "s3" | "s4" | "s5" | "s6" | "s7" => {
                    assert!(has(&[" color=\"#"]), "{name}: {attributes}");
                }
                _ => assert!(has(&colours), "{name}: {attributes}"),
            }
        }
    }
}
