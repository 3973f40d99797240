//! `forerun dump` prints the contents of a store's files.

use std::path::PathBuf;

use anyhow::Context;
use forerun_db::{
    DescribeOptions, Description, ManifestDescription, Options, PageDescription, RowContent,
    RowDescription, RunDescription, RunSummary,
};
use serde_json::{Map, Value, json};

use crate::exit::Outcome;
use crate::output::{self, Out};

/// Show the contents of a store's files: its manifest and runs, one run, or one page
///
/// The pages of a run are numbered from 0: first the leaves in key order, then the levels above.
/// The last page is the root. The store must not be open.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun dump cities.db                        all runs, by level
  forerun dump cities.db --run 7                the metadata of run 7
  forerun dump cities.db --run 7 --page 0       its first leaf
  forerun dump cities.db --run 7 --page 0 --rows 5
  forerun dump cities.db --json")]
pub struct Args {
    /// The store's directory
    #[arg(value_name = "DB")]
    path: PathBuf,
    /// Show the run with this number
    #[arg(long, value_name = "N")]
    run: Option<u64>,
    /// Show the page with this number in the run
    #[arg(long, value_name = "M", requires = "run")]
    page: Option<u32>,
    /// Show at most this many rows of the page
    #[arg(long, value_name = "ROWS", requires = "page")]
    rows: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let what = DescribeOptions::default()
        .run(args.run)
        .page(args.page)
        .rows(args.rows.unwrap_or(usize::MAX));
    let describe = |options: &Options| forerun_db::describe(&args.path, options, what);
    let description = Options::default()
        .in_stored_order(describe)
        .context("cannot show the store")?;
    let mut out = Out::stdout();
    if args.json {
        out.line(format_args!("{}", json_of(&description)))?;
    } else {
        out.bytes(description.to_string().as_bytes())?;
    }
    out.finish()?;
    Ok(Outcome::Done)
}

fn json_of(description: &Description) -> Value {
    match description {
        Description::Manifest(manifest) => {
            json!({"manifest": manifest.as_ref().map(json_of_manifest)})
        }
        Description::Run(run) => json!({"run": json_of_run(run)}),
        Description::Page { run, number, page } => {
            json!({"run": run, "number": number, "page": json_of_page(page)})
        }
        // Another release's.
        other => json!({"text": other.to_string()}),
    }
}

fn json_of_manifest(manifest: &ManifestDescription) -> Value {
    let runs = |runs: &[RunSummary]| -> Vec<Value> { runs.iter().map(json_of_summary).collect() };
    let keyspaces = manifest.keyspaces.iter().map(|keyspace| {
        let levels = keyspace.levels.iter().map(|level| runs(level));
        json!({
            "id": keyspace.id,
            "name": keyspace.name,
            "comparator": keyspace.comparator,
            "levels": levels.collect::<Vec<_>>(),
            "range_deletions": runs(&keyspace.range_deletions),
        })
    });
    json!({
        "next_run": manifest.next_run,
        "first_segment": manifest.first_segment,
        "flushed_sequence": manifest.flushed_sequence,
        "keyspaces": keyspaces.collect::<Vec<_>>(),
    })
}

fn json_of_summary(summary: &RunSummary) -> Value {
    let mut object = match &summary.run {
        Ok(run) => json_of_run(run),
        Err(error) => json!({"error": error.to_string()}),
    };
    object["number"] = summary.number.into();
    object["file_bytes"] = summary.bytes.into();
    object
}

fn json_of_run(run: &RunDescription) -> Value {
    let mut object = json!({
        "number": run.number,
        "path": run.path.display().to_string(),
        "file_bytes": run.file_bytes,
        "checksum": format!("{:016x}", run.checksum),
        "keyspace": run.keyspace,
        "keyspace_name": run.keyspace_name,
        "comparator": run.comparator,
        "entries": run.entries,
        "deletions": run.deletions,
        "holds_range_deletions": run.holds_range_deletions,
        "raw_bytes": run.raw_bytes,
        "smallest_sequence": run.smallest_sequence,
        "largest_sequence": run.largest_sequence,
        "is_ingested": run.is_ingested,
        "created_unix": run.created_unix,
        "leaf_pages": run.leaf_pages,
        "internal_pages": run.internal_pages,
        "filter_bytes": run.filter_bytes,
        "index_bytes": run.index_bytes,
        "root": {
            "offset": run.root_offset,
            "stored_bytes": run.root_stored_bytes,
            "raw_bytes": run.root_raw_bytes,
        },
    });
    let keys = [
        ("smallest_key", &run.smallest_key),
        ("largest_key", &run.largest_key),
    ];
    for (name, key) in keys {
        let (name, key) = output::json_bytes(name, key);
        object[name] = key;
    }
    object
}

fn json_of_page(page: &PageDescription) -> Value {
    let rows = page.rows.iter().enumerate();
    let rows = rows.map(|(at, row)| json_of_row(row, at == 0 && !page.is_leaf));
    let (prefix_name, prefix) = output::json_bytes("prefix", &page.prefix);
    let mut object = json!({
        "kind": if page.is_leaf { "leaf" } else { "internal" },
        "bytes": page.bytes,
        "rows_total": page.rows_total,
        "groups": page.groups,
        "rows": rows.collect::<Vec<_>>(),
    });
    object[prefix_name] = prefix;
    object
}

/// The first row of an internal page has no key: it comes before all keys.
fn json_of_row(row: &RowDescription, is_before_all: bool) -> Value {
    let mut object = Map::new();
    if !is_before_all {
        object.extend([output::json_bytes("key", &row.key)]);
    }
    object.insert("sequence".into(), row.sequence.into());
    match &row.content {
        RowContent::Value(value) => object.extend([output::json_bytes("value", value)]),
        RowContent::Deletion => object.extend([("is_deletion".into(), true.into())]),
        RowContent::Page {
            number,
            offset,
            stored_bytes,
            raw_bytes,
        } => {
            let page = json!({
                "number": number,
                "offset": offset,
                "stored_bytes": stored_bytes,
                "raw_bytes": raw_bytes,
            });
            object.extend([("page".into(), page)]);
        }
        // Another release's.
        other => object.extend([("text".into(), format!("{other:?}").into())]),
    }
    object.into()
}
