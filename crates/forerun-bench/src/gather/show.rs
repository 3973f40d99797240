//! The results in the format of the published record, as tables, and as a page.

use super::gather_study::Study;
use super::result_row::GatherRow;
use super::setting::Setting;
use crate::panels::{distinct, push_series};
use forerun_measure::report::{Chart, Report, Section, Shape};
use forerun_measure::size::digits;
use forerun_measure::text_table::TextTable;
use std::io::{self, Write};

/// One method in the published setting, in the format of the published record, with the decimal
/// rate added.
pub(super) fn seed(out: &mut dyn Write, setting: &Setting, row: &GatherRow) -> io::Result<()> {
    let who = match (&row.device, row.engine.as_str()) {
        (Some(device), _) => device.as_str(),
        _ => "the CPU, no GPU",
    };
    writeln!(out, "Benchmarking {} on {who} with:", row.method)?;
    writeln!(out, "  BS: {}", setting.requests)?;
    writeln!(out, "  TopK: {}", setting.rows_per_request)?;
    writeln!(out, "  Total Copies: {}", setting.pairs())?;
    let mib = setting.bytes() as f64 / (1u64 << 20) as f64;
    writeln!(out, "  Data Size: {mib:.2} MB")?;
    writeln!(out, "----------------------------------------")?;
    writeln!(out, "Results (median of {}):", row.rounds)?;
    writeln!(out, "  Latency: {:.4} ms", row.ms)?;
    writeln!(
        out,
        "  Throughput: {:.2} GiB/s ({:.2} GB/s)",
        row.gib_per_second, row.gb_per_second
    )?;
    writeln!(out, "----------------------------------------")?;
    match row.bytes_checked {
        0 => writeln!(out, "Not checked: it copies other bytes\n"),
        n => writeln!(out, "Check Passed: {n} bytes compared\n"),
    }
}

/// A row's value of the parameter that its study changes.
fn place(study: Study, row: &GatherRow) -> String {
    match study {
        Study::Seed | Study::Indices => row.indices.clone(),
        Study::RowBytes => row.row_bytes.to_string(),
        Study::Direction => row.direction.clone(),
        Study::Offset => row.offset_bytes.to_string(),
        Study::Multiprocessors | Study::MatrixProduct => {
            let cap = row.multiprocessors.clone();
            cap.unwrap_or_else(|| "-".into())
        }
    }
}

/// The name of that parameter.
fn axis(study: Study) -> &'static str {
    match study {
        Study::Seed | Study::Indices => "indices",
        Study::RowBytes => "bytes per row",
        Study::Direction => "direction",
        Study::Offset => "offset",
        Study::Multiprocessors | Study::MatrixProduct => "multiprocessors",
    }
}

/// The rows of a study.
pub(super) fn table(study: Study, rows: &[GatherRow]) -> TextTable {
    let dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let mut table = TextTable::new([
        axis(study),
        "method",
        "unit",
        "blocks",
        "ms",
        "GiB/s",
        "GB/s",
        "slowest-fastest",
        "of contiguous",
        "of limit",
        "vs v3",
        "product",
    ]);
    for row in rows {
        table.push([
            place(study, row),
            row.method.clone(),
            dash(row.unit_bytes.map(|n| n.to_string())),
            dash(row.blocks.map(|n| n.to_string())),
            format!("{:.4}", row.ms),
            format!("{:.2}", row.gib_per_second),
            format!("{:.2}", row.gb_per_second),
            format!(
                "{:.2} - {:.2}",
                row.gib_per_second_min, row.gib_per_second_max
            ),
            dash(row.share_of_contiguous.map(|x| format!("{x:.3}"))),
            dash(row.share_of_limit.map(|x| format!("{x:.3}"))),
            dash(row.ratio_to_v3.map(|x| format!("{}x", digits(x)))),
            dash(row.product_slowdown.map(|x| format!("{x:.3}x"))),
        ]);
    }
    let keep = [axis(study), "method", "ms", "GiB/s", "GB/s"];
    for (head, cell) in table.take_constant(&keep) {
        if cell != "-" {
            // Keep this column although every row has the same value, because the value is
            // informative.
            table.headings.push(head);
            table.rows.iter_mut().for_each(|row| row.push(cell.clone()));
        }
    }
    table
}

/// A study's chart: the rate of each method over the parameter.
fn chart(study: Study, rows: &[GatherRow]) -> Chart {
    let mut chart = Chart::new(format!("GiB/s by {}", axis(study)), Shape::Bars);
    chart.x_label = axis(study).into();
    chart.y_label = "GiB/s".into();
    chart.format = |value| format!("{value:.2}");
    let rows: Vec<&GatherRow> = rows.iter().collect();
    chart.x = distinct(rows.iter().map(|row| place(study, row)));
    push_series(
        &mut chart,
        &rows,
        |row| row.method.clone(),
        |row| place(study, row),
        |row| {
            Some((
                row.gib_per_second,
                row.gib_per_second_min,
                row.gib_per_second_max,
            ))
        },
    );
    chart
}

/// Adds a study to the page.
pub(super) fn section(report: &mut Report, study: Study, rows: &[GatherRow]) {
    report
        .sections
        .push(Section::Heading(format!("Study: {}", study.name())));
    report.sections.push(Section::Chart(chart(study, rows)));
    report.sections.push(Section::Table {
        caption: format!("Medians of {} rounds", rows.first().map_or(0, |r| r.rounds)),
        table: table(study, rows),
    });
}
