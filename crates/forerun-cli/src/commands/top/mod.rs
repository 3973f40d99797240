//! `forerun top` watches cache servers: rates, hits, memory, connections, answer times.
//!
//! ```text
//!   sample  one server's statistics at one time, over a connection that stays open
//!   view    the difference of two samples as text
//! ```
//!
//! It asks for nothing but `stats`, `stats conns` and `version`, which memcached answers too.

mod sample;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use forerun_client::ServerAddress;

use crate::exit::{Outcome, UsageError};
use crate::login::{Login, LoginArgs};
use crate::output::Out;
use sample::{Connection, Sample};

/// Clears the terminal and moves the cursor to its first line.
const CLEAR: &[u8] = b"\x1b[2J\x1b[H";

/// Watch cache servers: rates, hits, memory, connections, answer times
///
/// Shows for each server the commands per second, the hit rate, evictions, memory, the network, the
/// addresses with the most connections, and how long the server takes to answer `version`. Works
/// with memcached's servers, too. On a terminal, the view is refreshed until Ctrl-C; in a pipe,
/// each view follows the one before. If a server does not answer, the view says so, and the next
/// view tries again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun top 127.0.0.1:11211
  forerun top cache1:11211 cache2:11211 --interval 5
  forerun top 127.0.0.1:11211 --count 1                one view, for scripts
  forerun top cache1:11211 --user alice --password-file password
  forerun top cache1:11211 --tls --ssl-ca-cert ca.pem")]
pub struct Args {
    /// The servers, as HOST:PORT, with the ports of memcached's protocol
    #[arg(required = true, value_name = "HOST:PORT")]
    servers: Vec<String>,
    /// Seconds between two views
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=3600)
    )]
    interval: u32,
    /// End after this number of views
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    login: LoginArgs,
}

/// A server, its connection while it has one, and its last sample.
struct Watched<'a> {
    name: &'a str,
    address: ServerAddress,
    login: &'a Login,
    connection: Option<Connection>,
    last: Option<Sample>,
}

impl Watched<'_> {
    /// Takes a sample and shows what has changed since the one before.
    fn view(&mut self) -> String {
        let sampled = match self.connection.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(&self.address, self.login),
        }
        .and_then(|mut connection| {
            let sample = connection.sample()?;
            self.connection = Some(connection);
            Ok(sample)
        });
        match sampled {
            Ok(sample) => {
                let text = view::text(self.name, self.last.as_ref(), &sample);
                self.last = Some(sample);
                text
            }
            Err(error) => {
                // A server that was restarted counts from zero.
                self.last = None;
                format!("{}  {error}\n", self.name)
            }
        }
    }
}

/// The address `HOST:PORT`.
fn address(text: &str) -> Result<ServerAddress, UsageError> {
    let split = text.rsplit_once(':');
    let parsed = split.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parsed.ok_or_else(|| UsageError(format!("{text:?} is not HOST:PORT")))?;
    // An IPv6 address is in brackets.
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    Ok(ServerAddress::tcp(inner.unwrap_or(host), port))
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let login = args.login.read()?;
    let mut servers = Vec::with_capacity(args.servers.len());
    for name in &args.servers {
        servers.push(Watched {
            name,
            address: address(name)?,
            login: &login,
            connection: None,
            last: None,
        });
    }
    let interval = Duration::from_secs(args.interval.into());
    let is_terminal = std::io::stdout().is_terminal();
    let mut out = Out::stdout();
    // The first sample is the base of the rates.
    for server in &mut servers {
        server.view();
    }
    let mut views = 0;
    loop {
        std::thread::sleep(interval);
        let texts: Vec<String> = servers.iter_mut().map(Watched::view).collect();
        if is_terminal {
            out.bytes(CLEAR)?;
        } else if views > 0 {
            out.line(format_args!(""))?;
        }
        out.bytes(texts.join("\n").as_bytes())?;
        out.flush()?;
        views += 1;
        if args.count == Some(views) {
            break;
        }
    }
    out.finish()?;
    let is_missing = servers.iter().any(|server| server.last.is_none());
    Ok(Outcome::partial_if(is_missing))
}
