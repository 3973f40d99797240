//! Other tables on the same GPU: programs that take a setting on their command line, measure, and
//! print rows.
//!
//! ```text
//!   PROGRAM --device 0 --slots N --dim 8 --load 0.5,0.75,1 --hit-rate 0.6 --batch N --rounds N
//!   -> {"bench":"gpu-table","engine":"hierarchicalkv","op":"find_ptr", ...}      a line per result, as in `result_row.rs`
//! ```
//!
//! `suites/gpu-peers` has the sources and says how to build them, outside this tree.

use super::args::Args;
use super::result_row::GpuTableRow;
use super::setting::Setting;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// The results of all peers that can be measured.
#[derive(Debug, Default)]
pub(super) struct PeerResults {
    pub(super) rows: Vec<GpuTableRow>,
    /// One line for each peer that failed.
    pub(super) failures: Vec<String>,
}

/// Measures every peer in the published setting. A peer that fails costs only its own rows.
pub(super) fn studies(seed: &Setting, args: &Args) -> PeerResults {
    let mut results = PeerResults::default();
    for program in &args.peer {
        match study(program, seed, args) {
            Ok(rows) => results.rows.extend(rows),
            Err(error) => results.failures.push(format!("not measured: {error:#}")),
        }
    }
    results
}

/// A peer's results in the published setting.
fn study(program: &Path, seed: &Setting, args: &Args) -> Result<Vec<GpuTableRow>> {
    let named = || format!("the peer {}", program.display());
    let loads: Vec<String> = args.loads().iter().map(f64::to_string).collect();
    let output = Command::new(program)
        .args(["--device", &args.gpu.device.to_string()])
        .args(["--slots", &seed.slots.to_string()])
        .args(["--dim", &seed.dim.to_string()])
        .args(["--load", &loads.join(",")])
        .args(["--hit-rate", &seed.hit_rate.to_string()])
        .args(["--batch", &seed.batch.to_string()])
        .args(["--rounds", &args.rounds().to_string()])
        .output()
        .with_context(named)?;
    ensure!(
        output.status.success(),
        "{} failed, {}: {}",
        named(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<GpuTableRow> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| parse(line).with_context(named))
        .collect::<Result<_>>()?;
    ensure!(!rows.is_empty(), "{} printed no row", named());
    Ok(rows)
}

fn parse(line: &str) -> Result<GpuTableRow> {
    let mut row: GpuTableRow =
        serde_json::from_str(line).with_context(|| format!("a line {line:?}"))?;
    ensure!(
        !row.engine.is_empty() && !row.op.is_empty() && row.batch > 0,
        "a line without engine, op and batch: {line}"
    );
    ensure!(
        row.keys_per_second > 0.0 && row.keys_per_second_wall > 0.0,
        "a line without its rates: {line}"
    );
    const BINARY: f64 = (1u64 << 30) as f64;
    row.bench = "gpu-table".into();
    row.study = "seed".into();
    row.us = row.batch as f64 / row.keys_per_second * 1e6;
    row.us_wall = row.batch as f64 / row.keys_per_second_wall * 1e6;
    row.bkv_per_second = row.keys_per_second / BINARY;
    row.bkv_per_second_wall = row.keys_per_second_wall / BINARY;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_rows_are_parsed_and_rows_without_a_rate_refused() {
        let line = r#"{"engine":"hierarchicalkv","op":"find_ptr","batch":1048576,"load":0.5,
            "keys_per_second":2e9,"keys_per_second_wall":1e9,"rounds":11}"#;
        let row = parse(line).unwrap();
        assert_eq!((row.study.as_str(), row.op.as_str()), ("seed", "find_ptr"));
        assert!((row.us - 524.288).abs() < 1e-9 && (row.us_wall - 1048.576).abs() < 1e-9);
        assert!(parse(r#"{"engine":"x","op":"find","batch":1}"#).is_err());
        assert!(parse("hello").unwrap_err().to_string().contains("hello"));
    }

    /// Writes a script that can be executed. Another process does so: if it were open in this one,
    /// a process that another thread starts would have it open for a moment, too, and to execute it
    /// would fail with ETXTBSY.
    #[cfg(unix)]
    fn write(path: &Path, text: &str) {
        let script = "printf '%s\\n' '#!/bin/sh' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut command = Command::new("/bin/sh");
        let status = command.args(["-c", script]).arg(path).arg(text).status();
        assert!(status.unwrap().success());
    }

    #[cfg(unix)]
    #[test]
    fn a_peer_gets_the_setting_and_its_error_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("peer");
        let mut args = Args::default();
        args.output.quick = true;
        let seed = Setting::seed(&args, false);
        let row = concat!(
            r#"echo "{\"engine\":\"peer\",\"op\":\"find\",\"batch\":${12},\"slots\":$4,"#,
            r#"\"keys_per_second\":5,\"keys_per_second_wall\":4}""#,
        );
        write(&program, row);
        let rows = study(&program, &seed, &args).unwrap();
        assert_eq!((rows.len(), rows[0].batch, rows[0].slots), (1, 256, 4096));
        write(&program, "echo 'no room' >&2; exit 3");
        let said = format!("{:#}", study(&program, &seed, &args).unwrap_err());
        assert!(said.contains("no room") && said.contains("peer"), "{said}");
        let none = study(&folder.path().join("none"), &seed, &args).unwrap_err();
        assert!(format!("{none:#}").contains("none"));

        // Both fail, and the peer between them is measured all the same.
        let works = folder.path().join("works");
        let row = "echo '{\"engine\":\"works\",\"op\":\"find\",\"batch\":1,\
                   \"keys_per_second\":5,\"keys_per_second_wall\":4}'";
        write(&works, row);
        args.peer = vec![program, works, folder.path().join("none")];
        let results = studies(&seed, &args);
        assert_eq!(results.rows.len(), 1);
        assert_eq!(results.rows[0].engine, "works");
        let [first, second] = &results.failures[..] else {
            panic!("{:?}", results.failures);
        };
        assert!(first.starts_with("not measured: the peer ") && first.contains("no room"));
        assert!(second.contains("none"), "{second}");
    }
}
