//! The operating system: mio's sockets and poll, and the standard library's clocks, files and
//! threads.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use forerun_cache::Cache;
use forerun_core::sync::{thread, time};
use forerun_core::{above_standard_streams, open_above_standard_streams};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::address::Listen;
use crate::error::Error;
use crate::net::{Listener, Socket, SocketPoll, UcxPoll};
use crate::system::{Readiness, Ready, System, WAKE, Wake};

/// Permission bits of a snapshot. It holds what clients stored, so only its owner may read it.
const MODE: u32 = 0o600;

/// The operating system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OsSystem;

/// Mio's poll and its event buffer.
#[derive(Debug)]
pub(crate) struct OsPoll {
    poll: Poll,
    events: Events,
    /// Connections over UCX. In a cell, because a worker registers sockets through a shared
    /// reference.
    ucx: RefCell<UcxPoll>,
}

impl System for OsSystem {
    type Socket = Socket;
    type Listener = Listener;
    type Poll = OsPoll;
    type File = File;

    fn bind(&self, listen: &Listen, backlog: u32) -> Result<Listener, Error> {
        Listener::bind(listen, backlog)
    }

    fn poll(&self, events: usize) -> io::Result<(OsPoll, Arc<dyn Wake>)> {
        let (poll, waker) = open_above_standard_streams(|| {
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), Token(WAKE))?;
            Ok((poll, waker))
        })?;
        let events = Events::with_capacity(events);
        let ucx = RefCell::default();
        Ok((OsPoll { poll, events, ucx }, Arc::new(waker)))
    }

    fn now(&self) -> Instant {
        time::now()
    }

    fn unix_s(&self) -> u64 {
        // If the system's clock is before 1970, the time is 0.
        let since = time::system_now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    }

    fn unix_us(&self) -> u64 {
        let since = time::system_now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_micros() as u64)
    }

    fn tick(&self, cache: &Cache) {
        cache.tick();
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        above_standard_streams(options.open(path)?)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        above_standard_streams(File::open(path)?)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    #[cfg(target_os = "linux")]
    fn uncache(&self, file: &File) {
        use rustix::fs::{Advice, fadvise};
        // If the system refuses the hint, the pages stay in memory.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory).and_then(|directory| directory.sync_all())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn is_directory(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|there| there.is_dir())
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(work).map(drop)
    }
}

impl Readiness for OsPoll {
    type Socket = Socket;
    type Listener = Listener;

    fn poll(&mut self, timeout: Option<Duration>, mut tell: impl FnMut(Ready)) -> io::Result<()> {
        let ucx = self.ucx.get_mut();
        match ucx.poll(timeout) {
            SocketPoll::Skip => self.events.clear(),
            SocketPoll::Wait(timeout) => self.poll.poll(&mut self.events, timeout)?,
        }
        for event in &self.events {
            if let Some(ready) = ucx.event(event.token().0) {
                ready.into_iter().for_each(&mut tell);
                continue;
            }
            let read_closed = event.is_read_closed() || event.is_error();
            tell(Ready {
                token: event.token().0,
                readable: event.is_readable() || read_closed,
                read_closed,
                writable: event.is_writable() || event.is_write_closed() || event.is_error(),
            });
        }
        ucx.report(tell);
        Ok(())
    }

    fn register(&self, socket: &mut Socket, token: usize) -> io::Result<()> {
        let registry = self.poll.registry();
        let interest = Interest::READABLE | Interest::WRITABLE;
        match socket.source() {
            Ok(source) => registry.register(source, Token(token), interest),
            Err(socket) => self.ucx.borrow_mut().register(registry, socket, token),
        }
    }

    fn register_listener(&self, listener: &mut Listener, token: usize) -> io::Result<()> {
        listener.register(self.poll.registry(), Token(token))
    }

    fn deregister(&self, socket: &mut Socket) -> io::Result<()> {
        let registry = self.poll.registry();
        match socket.source() {
            Ok(source) => registry.deregister(source),
            Err(socket) => UcxPoll::deregister(registry, socket),
        }
    }
}

impl Wake for Waker {
    fn wake(&self) -> io::Result<()> {
        Waker::wake(self)
    }
}
