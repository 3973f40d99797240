//! `forerun serve` runs the cache server as a process, with options, logs and signals.

mod args;

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, anyhow};
use forerun_cache::{Cache, Error as CacheError};
use forerun_server::{Error as ServerError, Protocol, Server, ServerHandle, ServerOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

pub use args::Args;
use args::LogFormat;

use crate::exit::{Outcome, UsageError};
use crate::output::Out;

/// Runs the command until a signal ends it.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    run_with(args, || Ok(()))
}

/// Runs the command, and `started` once the server accepts connections and has said so.
pub fn run_with(
    args: &Args,
    started: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let options = args.server()?;
    let levels = log(args);
    let options = options.on_verbosity(move |level| {
        // This fails only if the logger is gone.
        let _ = levels.reload(targets(level));
    });
    raise_descriptor_limit(args.descriptors());
    // Before the snapshot is loaded: no signal may end the process once the file is removed.
    let handle = ServerHandle::new();
    let signals = obey_signals(handle.clone()).context("cannot handle signals")?;
    let ended = serve(args, options, handle, started);
    signals.close();
    ended
}

/// Starts the server and waits for its end.
fn serve(
    args: &Args,
    options: ServerOptions,
    handle: ServerHandle,
    started: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let cache = Cache::new(args.cache()).map_err(|error| match error {
        CacheError::ItemLimitTooLarge { .. } | CacheError::MemoryLimitTooSmall { .. } => {
            anyhow!(UsageError(error.to_string()))
        }
        error => anyhow!(error).context("cannot create the cache"),
    })?;
    let server = match Server::start_with_handle(options, Arc::new(cache), handle) {
        Err(ServerError::Interrupted) => {
            tracing::info!("ended before the server had started");
            return Ok(Outcome::Done);
        }
        started => started.context("cannot start the server")?,
    };
    let announced = announce(args, &server, started);
    if announced.is_err() {
        // The snapshot is in the cache by now, and nowhere else.
        server.drain();
    }
    let ended = server.wait().context("the server failed");
    // Removed when this function returns.
    let _pid_file = announced?;
    ended?;
    Ok(Outcome::Done)
}

/// Tells everybody that the server has started.
fn announce<'a>(
    args: &'a Args,
    server: &Server,
    started: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Option<PidFile<'a>>> {
    let pid_file = args.pid_file.as_deref().map(PidFile::write).transpose()?;
    let mut out = Out::stdout();
    for (address, protocol) in server.addresses().iter().zip(server.protocols()) {
        match protocol {
            Protocol::Resp => out.line(format_args!("listening on {address} (RESP)"))?,
            _ => out.line(format_args!("listening on {address}"))?,
        }
    }
    if let Some(address) = server.metrics_address() {
        out.line(format_args!("metrics at http://{address}/metrics"))?;
    }
    out.finish()?;
    started()?;
    Ok(pid_file)
}

/// The file with the process ID, while the server runs.
pub(super) struct PidFile<'a>(&'a Path);

impl PidFile<'_> {
    pub(super) fn write(path: &Path) -> anyhow::Result<PidFile<'_>> {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(PidFile(path))
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the file");
        }
    }
}

/// What is logged at a level of `verbosity`, or with as many `-v`.
fn targets(verbosity: u32) -> Targets {
    let level = match verbosity {
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("forerun_server", level)
}

/// Sends the log to standard error. The handle changes what is logged.
fn log(args: &Args) -> reload::Handle<Targets, Registry> {
    let (targets, levels) = reload::Layer::new(targets(args.verbose.into()));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(targets);
    // An existing logger would stay, but this process has none.
    let _ = match args.log_format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    };
    levels
}

/// Asks the system for as many descriptors as the connections need. If the system allows fewer, the
/// existing limit stays and a warning is logged.
fn raise_descriptor_limit(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let max = limit.maximum.map_or(wanted, |max| max.min(wanted));
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(max),
            maximum: limit.maximum,
        },
    );
    if raised.is_err() || max < wanted {
        let has = getrlimit(Resource::Nofile).current;
        tracing::warn!(
            wanted,
            has = has.unwrap_or(u64::MAX),
            "the descriptor limit is too low for the maximum number of connections"
        );
    }
}

/// Handles signals on a separate thread. A second SIGTERM or SIGINT ends the process at once.
fn obey_signals(server: ServerHandle) -> std::io::Result<Handle> {
    let signalled_once = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_default(signal, signalled_once.clone())?;
        signal_hook::flag::register(signal, signalled_once.clone())?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2])?;
    let handle = signals.handle();
    let obey = move || {
        for signal in &mut signals {
            tracing::info!(signal, "received a signal");
            match signal {
                SIGUSR2 => server.snapshot(),
                SIGHUP => server.reload_files(),
                _ => server.drain(),
            }
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(obey)?;
    Ok(handle)
}
