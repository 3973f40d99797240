//! `forerun memcached`, and the program under the name `memcached`: the server with memcached's own
//! command line.
//!
//! ```text
//!   argv, /etc/memcached.conf ── options (as getopt_long) ── translate ──> options of `forerun serve`
//!                                        -u: this program runs itself again as that user
//!                                        -d: this program runs itself again in a new session
//! ```
//!
//! Processes are started and not forked, so this needs no unsafe code.

mod options;
mod translate;

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use clap::Parser;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit, setsid};

use super::serve::{self, PidFile};
use crate::exit::{self, Outcome, UsageError};
use options::Given;
use translate::{Translated, translate};

/// Set in the environment of the process that stays in the background.
const IN_BACKGROUND: &str = "FORERUN_MEMCACHED_DAEMON";

/// The licence, for `-i`.
const LICENSE: &str = "forerun: Apache License 2.0, https://www.apache.org/licenses/LICENSE-2.0\n";

/// Serve a cache with memcached's own command line
///
/// Accepts the options of memcached 1.6 with their meaning and starts the server of `forerun
/// serve`: scripts and units that start memcached need no change. The program does the same if it
/// is started under the name memcached, for example through a symbolic link.
///
/// Options about memcached's internals (slabs, LRUs, the hash table, -k, -L, -C, -R and others)
/// and UDP are ignored with a warning that names them. SASL's own users, external storage and the
/// proxy do not exist; these options are errors.
///
/// Defaults are memcached's: all interfaces, 4 threads.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forerun memcached -m 1024 -p 11211 -l 127.0.0.1 -c 4096
  forerun memcached --config /etc/memcached.conf       the options of Debian's configuration file
  ln -s /usr/bin/forerun /usr/local/bin/memcached      memcached -d -u nobody -m 64")]
pub struct Args {
    /// Read options from a file like Debian's /etc/memcached.conf first
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Enable `debugtime`, as in memcached's debug builds, for test suites
    #[arg(long, hide = true)]
    debug_commands: bool,
    /// Options of memcached, as in `memcached -h`
    #[arg(
        value_name = "OPTIONS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
}

/// The options of `forerun serve` by themselves.
#[derive(Debug, Parser)]
#[command(name = "memcached")]
struct Serve {
    #[command(flatten)]
    args: serve::Args,
}

/// Runs `forerun memcached`.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut words = Vec::new();
    if let Some(path) = &args.config {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        words = options::words_of_file(&text);
    }
    words.extend(args.options.iter().cloned());
    let debug_commands = args.debug_commands.then_some("--debug-commands");
    run_words(words, debug_commands)
}

/// Runs the program under the name `memcached`. `words` are its arguments.
pub fn run_as_memcached(
    words: impl Iterator<Item = std::ffi::OsString>,
) -> anyhow::Result<Outcome> {
    let words = words
        .map(|word| {
            word.into_string()
                .map_err(|word| UsageError(format!("{} is not UTF-8", word.display())))
        })
        .collect::<Result<Vec<_>, _>>()?;
    run_words(words, None)
}

/// Runs the server with memcached's options, and with one of `forerun serve`, if it is given.
fn run_words(words: Vec<String>, extra: Option<&str>) -> anyhow::Result<Outcome> {
    let given = options::parse(words)?;
    if let Some(text) = informs(&given) {
        return match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(Outcome::Done),
        };
    }
    let translated = translate(&given, every_interface())?;
    // Read the options before the process changes, so that a mistake in them is seen.
    let words = translated.serve.iter().map(String::as_str).chain(extra);
    let mut serve = Serve::try_parse_from(std::iter::once("memcached").chain(words))
        .map_err(|error| UsageError(first_line(&error.to_string())))?;
    let in_background = env::var_os(IN_BACKGROUND).is_some();
    if let Some(name) = &translated.user
        && geteuid().is_root()
    {
        // Returns if that is root.
        become_user(name)?;
    }
    if !in_background {
        warn_of(&translated);
    }
    if translated.daemon && !in_background {
        return start_in_background();
    }
    if translated.core_dumps {
        allow_core_dumps();
    }
    let pid_path = serve.args.pid_file.take();
    // Removed when this function returns.
    let mut pid_file = None;
    if in_background {
        setsid().context("cannot begin a new session")?;
    }
    serve::run_with(&serve.args, || {
        if let Some(path) = &pid_path {
            // Memcached runs without the file, too.
            match PidFile::write(path) {
                Ok(written) => pid_file = Some(written),
                Err(error) => tracing::error!("{error:#}"),
            }
        }
        if in_background {
            leave_terminal(serve.args.verbose > 0)
        } else {
            Ok(())
        }
    })
}

/// The text of `-h`, `-V` or `-i`, if one of them is given.
fn informs(given: &[Given]) -> Option<String> {
    let version = concat!("memcached 1.6.18-forerun-", env!("CARGO_PKG_VERSION"), "\n");
    given.iter().find_map(|one| match one.letter {
        'h' => Some(format!("{version}{HELP}")),
        'V' => Some(version.to_owned()),
        'i' => Some(format!("{version}{LICENSE}")),
        _ => None,
    })
}

/// The options that have a meaning here, in the form of memcached's own help, which scripts search.
const HELP: &str = "\
-p, --port=<num>          TCP port to listen on (default: 11211, -1: any, 0: none)
-U, --udp-port=<num>      ignored: there is no UDP
-s, --unix-socket=<file>  UNIX socket to listen on (disables network support)
-a, --unix-mask=<mask>    access mask for UNIX socket, in octal (default: 700)
-A, --enable-shutdown     enable ascii \"shutdown\" command
-l, --listen=<addr>       interface to listen on (default: all); notls:<ip>:<port> without TLS
-d, --daemon              run as a daemon
-r, --enable-coredumps    maximize core file limit
-u, --user=<user>         assume identity of <username> (only when run as root)
-m, --memory-limit=<num>  memory of the whole cache in megabytes (default: 64)
-M, --disable-evictions   return error on memory exhausted instead of evicting
-c, --conn-limit=<num>    max simultaneous connections (default: 1024)
-v, --verbose             log connections that fail; -vv: log everything
-h, --help                print this help and exit
-i, --license             print the license and exit
-V, --version             print version and exit
-P, --pidfile=<file>      save PID in <file>
-D <char>                 delimiter between key prefixes and IDs; turns stats detail on
-t, --threads=<num>       number of threads to use (default: 4)
-b, --listen-backlog=<num> set the backlog queue limit (default: 1024)
-B, --protocol=<name>     auto (default) or ascii; binary is like auto
-I, --max-item-size=<num> adjusts max item size (default: 1m, min: 1k, max: 1024m)
-F, --disable-flush-all   disable flush_all command
-X, --disable-dumping     disable stats cachedump and lru_crawler metadump
-Y, --auth-file=<file>    users and passwords, one user:pass a line, also for SASL PLAIN
-e, --memory-file=<file>  keep the cache in this file while the server is down
-Z, --enable-ssl          enable TLS/SSL
-o, --extended            comma separated list of extended options
   - no_lru_crawler:      disable LRU crawler background thread
   - read_buf_mem_limit:  limit in megabytes for connection read/response buffers
   - idle_timeout:        timeout for idle connections (default: 0, no timeout)
   - ssl_chain_cert:      certificate chain file in PEM format
   - ssl_key:             private key, if not part of the ssl_chain_cert
   - ssl_verify_mode:     0 (none), 1 (request), 2 or 3 (require)
   - ssl_ca_cert:         PEM format file of acceptable client CA's
   - ssl_min_version:     2 (tlsv1.2) or 3 (tlsv1.3)
Ignored: -U -k -f -n -L -R -C -N, and -o options about slabs, LRUs, the hash table and logs.
Not supported: -S, -o ext_*, -o proxy_*.
";

/// The address that stands for all interfaces: that of IPv6 if its sockets also accept IPv4.
fn every_interface() -> &'static str {
    let accepts_both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .and_then(|listener| listener.local_addr())
        .is_ok_and(|address| TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).is_ok());
    if accepts_both { "[::]" } else { "0.0.0.0" }
}

/// The message of an error of clap, without its usage.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

fn warn_of(translated: &Translated) {
    if !translated.ignored.is_empty() {
        let ignored = translated.ignored.join(", ");
        exit::warn(format_args!("ignored, without a meaning here: {ignored}"));
    }
}

/// Continues as this user: replaces the process by the same program, with the same arguments. If
/// the user is root, returns.
fn become_user(name: &str) -> anyhow::Result<()> {
    let users = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let (uid, gid) =
        ids_of(&users, name).ok_or_else(|| UsageError(format!("-u: there is no user {name}")))?;
    if uid == 0 {
        return Ok(());
    }
    // Supplementary groups are dropped with the user.
    let error = itself()?.uid(uid).gid(gid).exec();
    Err(anyhow!(error).context(format!("cannot become the user {name}")))
}

/// The numbers of a user and its group in the text of `/etc/passwd`.
fn ids_of(users: &str, name: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let (_, uid, gid) = (fields.next(), fields.next()?, fields.next()?);
        Some((uid.parse().ok()?, gid.parse().ok()?))
    })
}

/// This program with the arguments that it was started with.
fn itself() -> anyhow::Result<Command> {
    let program = env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    let mut args = env::args_os();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    command.args(args);
    Ok(command)
}

/// Starts the process that stays in the background, and waits until it listens or has failed.
fn start_in_background() -> anyhow::Result<Outcome> {
    let mut daemon = itself()?
        .env(IN_BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the daemon")?;
    let mut said = Vec::new();
    if let Some(mut stdout) = daemon.stdout.take() {
        // Its end is the moment at which the daemon closes its standard output.
        stdout
            .read_to_end(&mut said)
            .context("cannot read from the daemon")?;
    }
    if said.starts_with(b"listening on ") {
        return Ok(Outcome::Done);
    }
    let ended = daemon.wait().context("cannot wait for the daemon")?;
    // It has reported its error.
    std::process::exit(ended.code().unwrap_or(3))
}

/// Gives up the standard streams of the process that started the daemon.
fn leave_terminal(logs: bool) -> anyhow::Result<()> {
    let null = File::options()
        .write(true)
        .open("/dev/null")
        .context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).context("cannot close standard output")?;
    if !logs {
        rustix::stdio::dup2_stderr(&null).context("cannot close standard error")?;
    }
    Ok(())
}

fn allow_core_dumps() {
    let maximum = getrlimit(Resource::Core).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Core, limit) {
        exit::warn(format_args!(
            "-r: cannot raise the limit on core dumps: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nmemcache:x:114:119:,,,:/nonexistent:/bin/false\n";
        assert_eq!(ids_of(users, "memcache"), Some((114, 119)));
        assert_eq!(ids_of(users, "mem"), None);
        assert_eq!(ids_of("broken\nbroken:x:1\n", "broken"), None);
    }

    #[test]
    fn every_option_of_the_help_is_accepted() {
        let letters = HELP
            .lines()
            .filter(|line| line.starts_with('-') && line.contains(", --"));
        for line in letters {
            let long = line
                .split(' ')
                .nth(1)
                .and_then(|long| long.strip_prefix("--"));
            let name = long
                .expect("a long name")
                .split('=')
                .next()
                .expect("a name");
            let mut words = vec![format!("--{name}")];
            if line
                .split(' ')
                .nth(1)
                .is_some_and(|long| long.contains('='))
                || name == "extended"
            {
                words.push("1".to_owned());
            }
            let given = options::parse(words).expect(line);
            assert_eq!(
                given[0].letter,
                line.chars().nth(1).expect("a letter"),
                "{line}"
            );
        }
    }
}
