//! PyTorch for comparison: `pytorch.py`, if python3 and torch with CUDA are installed.

use super::args::Args;
use super::gather_study::IndexOrder;
use super::result_row::GatherRow;
use super::setting::Setting;
use anyhow::{Context, Result, bail, ensure};
use forerun_gpu::gather::Direction;
use forerun_measure::harness::{Outcome, Sample};
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

const SCRIPT: &str = include_str!("pytorch.py");

/// The rows, or the reason why there are none.
pub(super) enum Pytorch {
    Measured(Vec<GatherRow>),
    Absent(String),
}

/// Runs the script in the setting, with unique indices.
pub(super) fn study(setting: &Setting, args: &Args) -> Result<Pytorch> {
    let numbers = [
        setting.requests,
        setting.rows_per_request,
        setting.slots,
        setting.row_bytes,
        args.rounds(),
    ];
    let child = Command::new("python3")
        .arg("-")
        .args(numbers.map(|n| n.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Ok(Pytorch::Absent(format!("python3 does not run: {error}"))),
    };
    if let Some(mut input) = child.stdin.take() {
        // If python3 ends before it has read everything, its own output says why.
        let _ = input.write_all(SCRIPT.as_bytes());
    }
    let output = child.wait_with_output().context("running python3")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(reason) = absent(&text) {
        return Ok(Pytorch::Absent(reason));
    }
    ensure!(
        output.status.success(),
        "PyTorch's copy failed: {} {}",
        text.trim(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let rows = text.lines().map(|line| row(setting, line, args.rounds()));
    Ok(Pytorch::Measured(rows.collect::<Result<_>>()?))
}

/// The script's reason for measuring nothing.
fn absent(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text.lines().next()?).ok()?;
    Some(value.get("absent")?.as_str()?.to_owned())
}

fn row(setting: &Setting, line: &str, rounds: usize) -> Result<GatherRow> {
    let value: Value = serde_json::from_str(line).with_context(|| format!("a line {line:?}"))?;
    let number = |name: &str| value[name].as_f64().filter(|n| *n > 0.0);
    let word = |name: &str| value[name].as_str().map(str::to_owned);
    let (Some(method), Some(direction)) = (word("method"), word("direction")) else {
        bail!("cannot parse a line of PyTorch's copy: {line}");
    };
    let setting = Setting {
        direction: match direction.as_str() {
            "scatter" => Direction::Scatter,
            _ => Direction::Gather,
        },
        order: IndexOrder::Unique,
        offset: 0,
        cap: None,
        ..setting.clone()
    };
    let mut samples = Vec::new();
    for name in ["seconds_min", "seconds", "seconds_max"] {
        let seconds = number(name).with_context(|| format!("no {name} in {line}"))?;
        samples.push(Sample::new(
            setting.bytes(),
            Duration::from_secs_f64(seconds),
        ));
    }
    let outcome = Outcome {
        group: 0,
        name: method.clone(),
        samples,
    };
    let mut row = GatherRow::of(&setting, "pytorch", &method).with_outcome(&outcome);
    row.rounds = rounds as u64;
    row.device = word("device");
    row.bytes_checked = row.bytes;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_output_is_parsed() {
        let reason = absent("{\"absent\": \"python3 has no torch\"}\n");
        assert_eq!(reason.as_deref(), Some("python3 has no torch"));
        let setting = Setting::seed(&Args::default());
        let line = "{\"method\": \"pytorch: x\", \"direction\": \"scatter\", \
                    \"device\": \"a device\", \"bytes\": 1, \
                    \"seconds\": 0.01, \"seconds_min\": 0.005, \"seconds_max\": 0.02}";
        let row = row(&setting, line, 20).unwrap();
        assert_eq!((row.direction.as_str(), row.rounds), ("scatter", 20));
        assert!((row.ms - 10.0).abs() < 1e-6 && row.gib_per_second_max > row.gib_per_second);
        assert!(super::row(&setting, "{}", 20).is_err());
    }
}
