//! The results as tables, and as a page.

use super::result_row::GpuTableRow;
use super::table_study::Study;
use crate::panels::{distinct, push_series};
use forerun_measure::report::{Chart, Report, Section, Shape};
use forerun_measure::size::{count, digits, spread};
use forerun_measure::text_table::TextTable;

/// A row's value of the parameter that its study changes.
fn place(study: Study, row: &GpuTableRow) -> String {
    match study {
        Study::Seed | Study::Operations => format!("{:.2}", row.load),
        Study::Buckets => format!("{}, {:.2}", row.buckets, row.load),
        Study::Dim => row.dim.to_string(),
        Study::HitRate => format!("{:.2}", row.hit_rate),
        Study::Batch => count(row.batch),
        Study::Skew => row.skew.clone(),
        Study::Bags => count(row.bag_keys),
    }
}

/// The name of that parameter.
fn axis(study: Study) -> &'static str {
    match study {
        Study::Seed | Study::Operations => "load",
        Study::Buckets => "buckets, load",
        Study::Dim => "dim",
        Study::HitRate => "hit rate",
        Study::Batch => "keys per call",
        Study::Skew => "skew",
        Study::Bags => "keys per bag",
    }
}

/// The name of a series: the variant, with the owner's name for a peer.
fn series(row: &GpuTableRow) -> String {
    match row.engine.as_str() {
        "gpu" | "cpu" => row.variant(),
        peer => format!("{peer} {}", row.variant()),
    }
}

/// The rows of a study.
pub(super) fn table(study: Study, rows: &[GpuTableRow]) -> TextTable {
    let dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let mut table = TextTable::new([
        axis(study),
        "engine",
        "operation",
        "us",
        "us wall",
        "G keys/s",
        "B-KV/s",
        "B-KV/s wall",
        "slowest-fastest",
        "vs thread",
        "vs seed",
        "requests",
        "bytes",
        "of ceiling",
        "found",
    ]);
    for row in rows {
        table.push([
            place(study, row),
            row.engine.clone(),
            row.variant(),
            format!("{:.1}", row.us),
            format!("{:.1}", row.us_wall),
            format!("{:.4}", row.keys_per_second / 1e9),
            format!("{:.4}", row.bkv_per_second),
            format!("{:.4}", row.bkv_per_second_wall),
            spread(row.keys_per_second_min, row.keys_per_second_max),
            dash(row.ratio_to_thread.map(|x| format!("{}x", digits(x)))),
            dash(row.ratio_to_seed_rule.map(|x| format!("{}x", digits(x)))),
            dash(row.requests_per_lookup.map(|x| format!("{x:.2}"))),
            dash(row.bytes_per_lookup.map(|x| format!("{x:.1}"))),
            dash(row.share_of_ceiling.map(|x| format!("{x:.2}"))),
            format!("{:.2}", row.found),
        ]);
    }
    table.take_constant(&[axis(study), "operation", "us", "G keys/s", "B-KV/s"]);
    table
}

/// A study's chart: the rate of each variant over the parameter.
fn chart(study: Study, rows: &[GpuTableRow]) -> Chart {
    let shape = if matches!(study, Study::Batch | Study::Bags) {
        Shape::Lines
    } else {
        Shape::Bars
    };
    let mut chart = Chart::new(format!("Keys per second by {}", axis(study)), shape);
    chart.x_label = axis(study).into();
    chart.y_label = "keys/s".into();
    let rows: Vec<&GpuTableRow> = rows.iter().collect();
    chart.x = distinct(rows.iter().map(|row| place(study, row)));
    push_series(
        &mut chart,
        &rows,
        series,
        |row| place(study, row),
        |row| {
            Some((
                row.keys_per_second,
                row.keys_per_second_min,
                row.keys_per_second_max,
            ))
        },
    );
    chart
}

/// Adds a study to the page.
pub(super) fn section(report: &mut Report, study: Study, rows: &[GpuTableRow]) {
    let name = format!("Study: {}", study.name());
    report.sections.push(Section::Heading(name));
    report.sections.push(Section::Chart(chart(study, rows)));
    report.sections.push(Section::Table {
        caption: format!(
            "Medians of {} rounds",
            rows.first().map_or(0, |row| row.rounds)
        ),
        table: table(study, rows),
    });
}
