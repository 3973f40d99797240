//! The system of a simulated server: clocks that the simulation sets, a disk in memory that can be
//! slow or fail, and threads that run one at a time, from one disk call to the next.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forerun_cache::Cache;
use forerun_server::simulation::{System, Wake};
use forerun_server::{Error, Listen};

use super::net::{Net, SimListener, SimPoll, SimSocket};

/// The state of the disk from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskPlan {
    /// How long each call takes.
    pub delay_ms: u64,
    /// How many bytes can be written before there is no space; `None`: no limit.
    pub space_bytes: Option<u64>,
    /// Syncs fail.
    pub sync_fails: bool,
    /// Files cannot be renamed.
    pub rename_fails: bool,
}

#[derive(Debug)]
struct State {
    start: Instant,
    now: Duration,
    /// The wall clock when `now` was 0, and how far it was changed since.
    unix_s: i64,
    /// The same for the cache that is served.
    cache_start: Duration,
    disk: DiskPlan,
    files: BTreeMap<PathBuf, Stored>,
    /// How many files were created.
    created: u64,
    tasks: Vec<Task>,
}

/// A file: its content, and a number that no other file has had.
#[derive(Clone, Debug)]
struct Stored {
    number: u64,
    bytes: Arc<Mutex<Vec<u8>>>,
}

/// The system under a simulated server.
#[derive(Clone, Debug)]
pub struct Sim {
    pub net: Net,
    state: Arc<Mutex<State>>,
}

/// A thread of the server that works besides the main ones.
#[derive(Debug)]
struct Task {
    name: String,
    resume: Option<Sender<()>>,
    said: Receiver<Said>,
    thread: Option<JoinHandle<()>>,
    ready_at: Duration,
}

#[derive(Debug)]
enum Said {
    /// It is in a disk call that takes this long.
    Waits(Duration),
    Ended,
}

/// How a thread of the server waits until the simulation lets it continue.
struct Turnstile {
    resumed: Receiver<()>,
    say: Sender<Said>,
}

thread_local! {
    static TURNSTILE: RefCell<Option<Turnstile>> = const { RefCell::new(None) };
}

impl DiskPlan {
    fn may_fail(&self) -> bool {
        self.space_bytes.is_some() || self.sync_fails || self.rename_fails
    }
}

impl Sim {
    pub fn new(net: Net, unix_s: u64) -> Sim {
        Sim {
            net,
            state: Arc::new(Mutex::new(State {
                start: Instant::now(),
                now: Duration::ZERO,
                unix_s: unix_s as i64,
                cache_start: Duration::ZERO,
                disk: DiskPlan::default(),
                files: BTreeMap::new(),
                created: 0,
                tasks: Vec::new(),
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The simulated time.
    pub fn time(&self) -> Duration {
        self.state().now
    }

    pub fn advance(&self, by: Duration) {
        self.state().now += by;
    }

    /// Sets the wall clock; no other clock follows it.
    pub fn jump_wall_clock(&self, by_s: i64) {
        self.state().unix_s += by_s;
    }

    /// A cache was made just now.
    pub fn begin_cache(&self) {
        let mut state = self.state();
        state.cache_start = state.now;
    }

    /// The second to which a cache's clock would be set now.
    pub fn cache_second(&self) -> u32 {
        let state = self.state();
        (state.now - state.cache_start).as_secs() as u32 + 1
    }

    /// Changes the disk's state from now on; returns the previous one.
    pub fn set_disk(&self, plan: DiskPlan) -> DiskPlan {
        std::mem::replace(&mut self.state().disk, plan)
    }

    /// Whether a disk call may fail now.
    pub fn disk_may_fail(&self) -> bool {
        self.state().disk.may_fail()
    }

    /// The number of the file at `path`; it changes when the file is written again.
    pub fn file_number(&self, path: &Path) -> Option<u64> {
        self.state().files.get(path).map(|file| file.number)
    }

    pub fn task_count(&self) -> usize {
        self.state().tasks.len()
    }

    /// When the next thread can continue.
    pub fn task_due(&self) -> Option<Duration> {
        self.state().tasks.iter().map(|task| task.ready_at).min()
    }

    /// Lets a thread whose disk call is over run to its next one. Returns its name if it ended.
    pub fn step_task(&self) -> Option<String> {
        let (mut task, now) = {
            let mut state = self.state();
            let now = state.now;
            let place = state.tasks.iter().position(|task| task.ready_at <= now)?;
            (state.tasks.remove(place), now)
        };
        let resumed = task.resume.as_ref().map(|resume| resume.send(()));
        match (resumed, task.said.recv()) {
            (Some(Ok(())), Ok(Said::Waits(delay))) => {
                task.ready_at = now + delay;
                self.state().tasks.push(task);
                None
            }
            // It ended, or it panicked, which joining reports.
            _ => {
                let thread = task.thread.take();
                let ended = thread.map(JoinHandle::join);
                match ended {
                    Some(Err(_)) => Some(format!("{} panicked", task.name)),
                    _ => Some(task.name.clone()),
                }
            }
        }
    }

    /// A disk call: takes its time, and fails if planned.
    fn call(&self) -> io::Result<()> {
        let delay = Duration::from_millis(self.state().disk.delay_ms);
        let waited = TURNSTILE.with_borrow(|turnstile| match turnstile {
            Some(turnstile) => {
                let said = turnstile.say.send(Said::Waits(delay)).is_ok();
                Some(said && turnstile.resumed.recv().is_ok())
            }
            None => None,
        });
        match waited {
            Some(true) => Ok(()),
            Some(false) => Err(io::Error::other("the simulation is over")),
            // The simulation's own thread: nothing else runs meanwhile.
            None => {
                self.advance(delay);
                Ok(())
            }
        }
    }
}

/// A file of the disk in memory.
#[derive(Debug)]
pub struct SimFile {
    sim: Sim,
    bytes: Arc<Mutex<Vec<u8>>>,
    read: usize,
}

impl Read for SimFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.sim.call()?;
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = &bytes[self.read..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }
}

impl Write for SimFile {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.sim.call()?;
        let mut count = from.len();
        if let Some(space) = &mut self.sim.state().disk.space_bytes {
            count = count.min(*space as usize);
            *space -= count as u64;
        }
        if count == 0 && !from.is_empty() {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.extend_from_slice(&from[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl System for Sim {
    type Socket = SimSocket;
    type Listener = SimListener;
    type Poll = SimPoll;
    type File = SimFile;

    fn bind(&self, place: &Listen, _: u32) -> Result<SimListener, Error> {
        Ok(self.net.listener(place.address.clone(), place.tls))
    }

    fn poll(&self, _: usize) -> io::Result<(SimPoll, Arc<dyn Wake>)> {
        Ok(self.net.poll())
    }

    fn now(&self) -> Instant {
        let state = self.state();
        state.start + state.now
    }

    fn unix_s(&self) -> u64 {
        let state = self.state();
        state.unix_s as u64 + state.now.as_secs()
    }

    fn tick(&self, cache: &Cache) {
        cache.advance(self.cache_second());
    }

    fn create(&self, path: &Path) -> io::Result<SimFile> {
        self.call()?;
        let mut state = self.state();
        if state.files.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        state.created += 1;
        let number = state.created;
        let stored = Stored {
            number,
            bytes: bytes.clone(),
        };
        state.files.insert(path.to_owned(), stored);
        Ok(SimFile {
            sim: self.clone(),
            bytes,
            read: 0,
        })
    }

    fn open(&self, path: &Path) -> io::Result<SimFile> {
        self.call()?;
        let file = self.state().files.get(path).cloned();
        Ok(SimFile {
            sim: self.clone(),
            bytes: file.ok_or(ErrorKind::NotFound)?.bytes,
            read: 0,
        })
    }

    fn sync(&self, _: &SimFile) -> io::Result<()> {
        self.call()?;
        match self.state().disk.sync_fails {
            true => Err(io::Error::other("the disk does not sync")),
            false => Ok(()),
        }
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.call()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        let mut state = self.state();
        if state.disk.rename_fails {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let file = state.files.remove(from).ok_or(ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        match self.state().files.remove(path) {
            Some(_) => Ok(()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn is_directory(&self, _: &Path) -> bool {
        false
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let (resume, resumed) = channel();
        let (say, said) = channel();
        let run = move || {
            if resumed.recv().is_err() {
                return;
            }
            let end = say.clone();
            TURNSTILE.set(Some(Turnstile { resumed, say }));
            work();
            // The simulation may be over already.
            let _ = end.send(Said::Ended);
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(run)?;
        let mut state = self.state();
        let ready_at = state.now;
        state.tasks.push(Task {
            name: name.to_owned(),
            resume: Some(resume),
            said,
            thread: Some(thread),
            ready_at,
        });
        Ok(())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Its next call of the disk fails, and so it ends.
        self.resume = None;
        if let Some(thread) = self.thread.take() {
            // A panic at the simulation's end was already reported, or no longer matters.
            let _ = thread.join();
        }
    }
}
