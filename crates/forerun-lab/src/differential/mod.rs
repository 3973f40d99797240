//! The differential test of the server: another server and this workspace's must give the same
//! answers to random commands.
//!
//! ```text
//!   memcached/         that protocol, compared with memcached
//!   resp/              RESP, compared with Redis or Valkey
//!   protocol.rs        what a protocol defines: histories, servers, equal answers
//!   command.rs, packet.rs   commands of words, requests of memcached's binary protocol
//!   step.rs            steps of either
//!   program.rs         programs to compare with
//!   connection.rs      a running server and connections to it
//!   history.rs         plays a history to both servers
//!   shrink.rs          shortens a failing history
//!   history_file.rs    histories as text, to be played again
//! ```

mod command;
mod connection;
mod draw;
mod history;
mod history_file;
mod memcached;
mod packet;
mod program;
mod protocol;
mod resp;
mod shrink;
mod step;
#[cfg(test)]
mod testing;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use command::shorten;
use history::{Failure, PlayCounts, play};
use memcached::Memcached;
use protocol::{Protocol, Treatment};
use resp::Resp;
use step::Step;

/// Compare this server with another one: send random commands to both and compare the answers byte
/// by byte.
///
/// A failing seed prints a line that repeats it and a shortened history.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun-lab differential --seconds 60                            memcached, new seeds for a minute
  forerun-lab differential --protocol resp --peer valkey           Valkey
  forerun-lab differential --seed 4711                             one seed
  forerun-lab differential --seconds 60 --peer /usr/bin/memcached  another memcached
  forerun-lab differential --replay FILE                           a history that was kept
  forerun-lab differential --protocol resp --list                  the accepted differences
  forerun-lab differential --protocol resp --server redis --peer valkey   two others

Exit codes: 0 all answers agree, or the other server is not installed; 1 an answer differs; \
2 usage error.")]
pub struct Args {
    /// What is spoken.
    #[arg(long, value_enum, default_value_t = Spoken::Memcached)]
    protocol: Spoken,
    /// The server to compare with: a program, or redis or valkey for redis-server or
    /// valkey-server [default: memcached or redis on the PATH; without it, nothing is compared]
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// Compare the peer with this program, and not with this workspace's server; RESP only.
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// Play only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Play seeds for this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first seed of a run of `--seconds` [default: taken from the clock]
    #[arg(long)]
    from: Option<u64>,
    /// Play the history in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "from"])]
    replay: Option<PathBuf>,
    /// Write the shortened history of a failing seed to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// List the differences that are accepted, and exit.
    #[arg(long)]
    list: bool,
}

/// The protocol of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Spoken {
    /// memcached's text protocol
    Memcached,
    /// The protocol of Redis and Valkey
    Resp,
}

/// Runs the test. It fails if an answer differs.
pub fn command(args: &Args) -> Result<ExitCode> {
    Ok(if run(args)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Plays seeds; returns false if an answer differs.
fn run(args: &Args) -> Result<bool> {
    if args.list {
        list(args.protocol);
        return Ok(true);
    }
    let peer = |default: &str| args.peer.clone().unwrap_or_else(|| default.into());
    match args.protocol {
        Spoken::Memcached => {
            ensure!(args.server.is_none(), "--server needs --protocol resp");
            let path = peer("memcached");
            let Some(memcached) = Memcached::find(&path)? else {
                return absent(args, &path);
            };
            if let Some(warning) = memcached.unlisted() {
                eprintln!("{warning}");
            }
            compare(&memcached, args)
        }
        Spoken::Resp => {
            let path = peer("redis");
            match Resp::find(args.server.as_deref(), &path)? {
                Some(resp) => compare(&resp, args),
                None => absent(args, &path),
            }
        }
    }
}

/// The result without the server to compare with. Only one that was asked for must be there.
fn absent(args: &Args, path: &Path) -> Result<bool> {
    if args.peer.is_some() {
        bail!("there is no {}", path.display());
    }
    println!("skipped: there is no {}", path.display());
    Ok(true)
}

/// Plays seeds, or a history; returns false if an answer differs.
fn compare(protocol: &impl Protocol, args: &Args) -> Result<bool> {
    if let Some(file) = &args.replay {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {file:?}"))?;
        let steps = history_file::from_text(&text).with_context(|| format!("read {file:?}"))?;
        let (played, failure) = play(protocol, &steps)?;
        return match failure {
            Some(failure) => {
                let repeat = format!("--replay {}", file.display());
                report(protocol, &repeat, &steps, failure, args)?;
                Ok(false)
            }
            None => {
                println!("{} answers agree", played.answers);
                Ok(true)
            }
        };
    }
    let first = match (args.seed, args.from) {
        (Some(seed), _) | (None, Some(seed)) => seed,
        (None, None) => u64::from(std::process::id()) << 32 | u64::from(now_low_bits()),
    };
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let mut total = PlayCounts::default();
    let mut seeds = 0;
    for seed in first.. {
        let steps = protocol.history(seed);
        let (played, failure) = play(protocol, &steps)?;
        total.commands += played.commands;
        total.answers += played.answers;
        total.ended += played.ended;
        seeds += 1;
        if let Some(failure) = failure {
            report(protocol, &format!("--seed {seed}"), &steps, failure, args)?;
            return Ok(false);
        }
        if args.seed.is_some() || Instant::now() >= until {
            break;
        }
    }
    let [ours, theirs] = protocol.names();
    println!(
        "differential: {seeds} seeds, {} commands, {} answers of {ours} compared with {theirs}, \
         {} histories ended by a listed difference: only listed differences",
        total.commands, total.answers, total.ended
    );
    Ok(true)
}

fn list(protocol: Spoken) {
    let differences = match protocol {
        Spoken::Memcached => memcached::DIFFERENCES,
        Spoken::Resp => resp::DIFFERENCES,
    };
    for difference in differences {
        let treatment = match difference.treatment {
            Treatment::Masked => "masked",
            Treatment::NotGenerated => "not generated",
            Treatment::Ends => "ends a history",
        };
        println!("{}, {treatment}: {}", difference.versions, difference.text);
    }
}

fn now_low_bits() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u32)
}

/// Prints how to repeat a failure, and the shortest history found that fails.
fn report(
    protocol: &impl Protocol,
    repeat: &str,
    steps: &[Step],
    failure: Failure,
    args: &Args,
) -> Result<()> {
    let names = protocol.names();
    println!(
        "{} differs from {}; repeat with: forerun-lab differential{} {repeat}",
        names[0],
        names[1],
        protocol.options()
    );
    println!("{}", failure.reason);
    println!("the shortest history found:");
    let (steps, failure) = shrink::shrink(protocol, steps, failure)?;
    if let Some(file) = &args.save {
        let text = format!("# {}\n{}", failure.reason, history_file::to_text(&steps));
        std::fs::write(file, text).with_context(|| format!("write {file:?}"))?;
    }
    println!("{}", failure.reason);
    for step in &steps {
        let cuts = match step.cuts.len() {
            0 => String::new(),
            count => format!(" in {} packets", count + 1),
        };
        let wait = match step.wait_ms {
            0 => String::new(),
            wait_ms => format!(" after {wait_ms} ms"),
        };
        println!("  connection {}{cuts}{wait}:", step.connection);
        for command in &step.commands {
            println!("    {}", command.describe());
        }
        for packet in &step.packets {
            println!("    {}", packet.describe());
        }
    }
    for (name, reply) in names.iter().zip([&failure.ours, &failure.theirs]) {
        println!(
            "  {name:16} {} ({})",
            shorten(&reply.bytes),
            reply.end.describe()
        );
    }
    Ok(())
}
