//! `forerun warm` fills a new server of a ring with its share of the old servers' values.
//!
//! ```text
//!   --begin      the new server keeps track of the keys that clients change      no client uses it yet
//!                then all clients change to the new ring
//!   (copy)       old servers ── list, read ──► this command ── fill ──► new server
//!
//!   connection   lines and values                source      an old server
//!   moved_keys   the two rings                    target      the new server
//!   copy         one old server's part
//! ```
//!
//! docs/operate/warm-up.md explains why no deleted value returns.

mod connection;
mod copy;
mod moved_keys;
mod source;
mod target;

use anyhow::bail;
use forerun_client::{Placement, ServerAddress};
use forerun_core::size::parse_size;
use forerun_measure::progress::Progress;

use crate::exit::{Outcome, UsageError};
use crate::login::{Login, LoginArgs};
use crate::output::{self, Out};
use copy::{Copied, Pace, Run};
use moved_keys::MovedKeys;
use source::Statistics;
use target::Target;

/// How long a warm-up lasts at most by default, in seconds: a day.
const DAY_S: u32 = 24 * 60 * 60;

/// Fill a new cache server with its share of the old servers' values
///
/// A server that joins a ring is empty. This command copies the items of the keys that move to it,
/// with their flags, times to live and versions. No copy brings back a value that a client has
/// deleted or replaced: the new server, which must be `forerun serve`, keeps track of the keys that
/// clients change. The old servers may be memcached (1.6.9 or later) or `forerun serve`.
///
/// First, start the new server, empty, and run `forerun warm --begin --to NEW`.
///
/// Second, change all clients to the new ring, and wait until none uses the old one.
///
/// Third, run `forerun warm --from OLD,OLD --to NEW`, with the ring that the clients use.
///
/// If the copy fails, run it again. If the new server is restarted after the first step, or its
/// warm-up is over for another reason, do not copy anything: clients will fill it. If the servers
/// have users, all must have the one of --user. With --tls, all must use TLS.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun warm --begin --to 10.0.0.3:11211
  forerun warm --from 10.0.0.1:11211,10.0.0.2:11211 --to 10.0.0.3:11211 --dry-run
  forerun warm --from 10.0.0.1:11211,10.0.0.2:11211 --to 10.0.0.3:11211 --ring ketama --rate 20Mi
  forerun warm --from one=10.0.0.1,two=10.0.0.2 --leaving 10.0.0.1 --to one=10.0.0.3")]
pub struct Args {
    /// The servers of the old ring, all of them: HOST[:PORT[:WEIGHT]] or a socket's path, with
    /// NAME= in front if the ring has another name for a server
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', value_parser = parse_server)]
    from: Vec<ServerAddress>,
    /// The new server, in the same form
    #[arg(long, value_name = "SERVER", value_parser = parse_server)]
    to: ServerAddress,
    /// Servers of --from that are not in the new ring
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', value_parser = parse_server)]
    leaving: Vec<ServerAddress>,
    /// How the clients place keys
    #[arg(long, value_enum, default_value_t = RingArg::Ketama)]
    ring: RingArg,
    /// Begin the warm-up: from now on, the new server keeps track of the keys that clients change
    #[arg(long, conflicts_with_all = ["from", "leaving", "rate", "dry_run", "delete_moved", "end"])]
    begin: bool,
    /// The time limit of the warm-up, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "begin",
        default_value_t = DAY_S,
        value_parser = clap::value_parser!(u32).range(60..=30 * 24 * 60 * 60)
    )]
    within: u32,
    /// End the warm-up without copying anything
    #[arg(long, conflicts_with_all = ["from", "leaving", "rate", "dry_run", "delete_moved"])]
    end: bool,
    /// Copy at most this many bytes per second
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Count the keys that move; change nothing
    #[arg(long, conflicts_with = "delete_moved")]
    dry_run: bool,
    /// After the copy, delete the keys on the old servers that belong to other servers by now, so
    /// that a return to the old ring finds no old values
    #[arg(long)]
    delete_moved: bool,
    #[command(flatten)]
    login: LoginArgs,
}

/// How keys are placed, under the names that Python's `forerun.Client` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum RingArg {
    /// As libmemcached's weighted ketama, and twemproxy's with md5
    Ketama,
    /// As libmemcached's ketama without weights
    KetamaUnweighted,
    /// As twemproxy's ketama with fnv1a_64
    #[value(name = "ketama_fnv1a_64")]
    KetamaFnv1a64,
    /// As pymemcache's `HashClient`
    Rendezvous,
}

impl RingArg {
    fn placement(self) -> Placement {
        match self {
            RingArg::Ketama => Placement::Ketama,
            RingArg::KetamaUnweighted => Placement::KetamaUnweighted,
            RingArg::KetamaFnv1a64 => Placement::KetamaFnv1a64,
            RingArg::Rendezvous => Placement::Rendezvous,
        }
    }
}

/// Parses `[NAME=]ADDRESS`.
fn parse_server(text: &str) -> Result<ServerAddress, String> {
    let (name, address) = match text.split_once('=') {
        Some(("", _)) => return Err("the name is empty".to_owned()),
        Some((name, address)) => (Some(name.to_owned()), address),
        None => (None, text),
    };
    let address: ServerAddress = address
        .parse()
        .map_err(|error: forerun_client::Error| error.to_string())?;
    Ok(address.ring_name(name))
}

fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err("the rate must be above 0".to_owned()),
        Ok(rate) => Ok(rate as u64),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let login = args.login.read()?;
    if args.begin {
        return begin(args, &login);
    }
    if args.end {
        Target::open(&args.to, &login)?.end()?;
        return Ok(Outcome::Done);
    }
    if args.from.is_empty() {
        bail!(UsageError(
            "the old servers are missing: --from SERVERS, or --begin before the clients change \
             to the new ring"
                .to_owned()
        ));
    }
    let placement = args.ring.placement();
    let moved = MovedKeys::new(placement, &args.from, &args.leaving, &args.to)?;
    // Fail before anything is read if the new server accepts no copies.
    let mut target = if args.dry_run {
        None
    } else {
        Some(Target::open(&args.to, &login)?)
    };
    if let Some(target) = &target {
        for server in &args.from {
            if target.is_at(server, &login)? {
                bail!(UsageError(format!(
                    "{server} is in --from, but leads to the new server, {}",
                    args.to
                )));
            }
        }
    }
    let mut total = 0_u64;
    for server in &args.from {
        total = total.saturating_add(Statistics::of(server, &login)?.items);
    }
    let what = if args.dry_run { "counting" } else { "copying" };
    let bar = Progress::on_terminal().rate(what, Some(total), "keys");
    let mut run = Run {
        moved: &moved,
        login: &login,
        pace: Pace::new(args.rate),
        bar: &bar,
        listed_before: 0,
    };
    let mut all = Vec::new();
    for (at, server) in args.from.iter().enumerate() {
        let copied = match &mut target {
            Some(target) => run.copy(at, server, target)?,
            None => run.count(at, server)?,
        };
        run.listed_before += copied.listed;
        all.push(copied);
    }
    if args.delete_moved {
        for ((at, server), copied) in args.from.iter().enumerate().zip(&mut all) {
            copied.deleted = run.delete_moved(at, server)?;
        }
    }
    // Until here, a run that fails can be repeated.
    if let Some(target) = target {
        target.end()?;
    }
    bar.clear();
    let mut out = Out::stdout();
    for (server, copied) in args.from.iter().zip(&all) {
        out.line(format_args!("{server}: {}", summary(copied, args)))?;
    }
    out.finish()?;
    let is_partial = |copied: &Copied| copied.filled.refused > 0 || copied.unreadable > 0;
    Ok(Outcome::partial_if(all.iter().any(is_partial)))
}

fn begin(args: &Args, login: &Login) -> anyhow::Result<Outcome> {
    let left_s = Target::begin(&args.to, login, args.within)?;
    let mut out = Out::stdout();
    out.line(format_args!(
        "{}: keeps track of the keys that clients change, for {left_s} s at most; now change all \
         clients to the new ring, then copy",
        args.to
    ))?;
    out.finish()?;
    Ok(Outcome::Done)
}

/// What was done with the keys of an old server, in one line.
fn summary(copied: &Copied, args: &Args) -> String {
    let filled = &copied.filled;
    let mut text = format!(
        "{}, {} move to {}",
        output::counted(copied.listed, "key"),
        output::count(copied.moved),
        args.to
    );
    if args.dry_run {
        text += &format!(" ({})", output::bytes(copied.moved_bytes));
        return text;
    }
    let stored = output::count(filled.stored);
    text += &format!(": {stored} copied ({})", output::bytes(filled.stored_bytes));
    for (count, what) in [
        (filled.existing, "copied before"),
        (filled.changed, "changed by clients"),
        (copied.gone, "gone"),
        (copied.changed, "changed since they were listed"),
        (copied.stale, "marked as stale"),
        (filled.refused, "refused for lack of room"),
        (copied.unreadable, "that no command can carry"),
    ] {
        if count > 0 {
            text += &format!(", {} {what}", output::count(count));
        }
    }
    if args.delete_moved {
        text += &format!("; {} deleted here", output::count(copied.deleted));
    }
    text
}
