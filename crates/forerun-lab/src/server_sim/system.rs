//! The system of a simulated server: clocks that the simulation sets, a disk in memory that can be
//! slow or fail, and threads that run one at a time, from one disk call to the next.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forerun_cache::Cache;
use forerun_server::simulation::{System, Wake};
use forerun_server::{Error, Listen};
use rand::rngs::SmallRng;

use super::disk::{Disk, DiskPlan, StoredFile};
use super::net::{Net, SimListener, SimPoll, SimSocket};

#[derive(Debug)]
struct SystemState {
    start: Instant,
    now: Duration,
    /// The wall clock when `now` was 0, plus all changes since then.
    unix_s: i64,
    /// The same for the cache that is served.
    cache_start: Duration,
    disk_plan: DiskPlan,
    disk: Disk,
    /// How many more calls of the disk succeed before the process crashes.
    calls_left: Option<u64>,
    tasks: Vec<Task>,
}

/// The system under a simulated server.
#[derive(Clone, Debug)]
pub struct SimSystem {
    pub net: Net,
    state: Arc<Mutex<SystemState>>,
}

/// A thread of the server other than the acceptor and the workers.
#[derive(Debug)]
struct Task {
    name: String,
    resume: Option<Sender<()>>,
    events: Receiver<TaskEvent>,
    thread: Option<JoinHandle<()>>,
    ready_at: Duration,
}

#[derive(Debug)]
enum TaskEvent {
    /// The thread is in a disk call that takes this long.
    PollWait(Duration),
    Ended,
}

/// How a thread of the server waits until the simulation lets it continue.
struct TaskChannel {
    resumed: Receiver<()>,
    events: Sender<TaskEvent>,
}

thread_local! {
    static TASK_CHANNEL: RefCell<Option<TaskChannel>> = const { RefCell::new(None) };
}

impl SimSystem {
    pub fn new(net: Net, unix_s: u64) -> SimSystem {
        SimSystem {
            net,
            state: Arc::new(Mutex::new(SystemState {
                start: Instant::now(),
                now: Duration::ZERO,
                unix_s: unix_s as i64,
                cache_start: Duration::ZERO,
                disk_plan: DiskPlan::default(),
                disk: Disk::default(),
                calls_left: None,
                tasks: Vec::new(),
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, SystemState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The simulated time.
    pub fn time(&self) -> Duration {
        self.state().now
    }

    pub fn advance(&self, by: Duration) {
        self.state().now += by;
    }

    /// Moves the wall clock. No other clock changes.
    pub fn jump_wall_clock(&self, by_s: i64) {
        self.state().unix_s += by_s;
    }

    /// Records that a cache was made just now.
    pub fn begin_cache(&self) {
        let mut state = self.state();
        state.cache_start = state.now;
    }

    /// The second to which a cache's clock would be set now.
    pub fn cache_second(&self) -> u32 {
        (self.cache_ms() / 1000) as u32
    }

    /// The millisecond to which a cache's clock would be set now.
    fn cache_ms(&self) -> u64 {
        let state = self.state();
        (state.now - state.cache_start).as_millis() as u64 + 1000
    }

    /// Changes the disk's state from now on; returns the previous one.
    pub fn set_disk(&self, plan: DiskPlan) -> DiskPlan {
        std::mem::replace(&mut self.state().disk_plan, plan)
    }

    /// Whether a disk call may fail now.
    pub fn disk_may_fail(&self) -> bool {
        self.state().disk_plan.may_fail()
    }

    /// The number of the file at `path`; it changes when the file is written again.
    pub fn file_number(&self, path: &Path) -> Option<u64> {
        self.state().disk.file(path).map(|file| file.number)
    }

    /// Whether the file at `path` survives a loss of power as it is.
    pub fn survives_power_loss(&self, path: &Path) -> bool {
        self.state().disk.survives_power_loss(path)
    }

    /// Makes the process die after this many more calls of the disk. All later ones fail.
    pub fn die_after(&self, calls: u64) {
        self.state().calls_left = Some(calls);
    }

    /// Cancels the planned crash of the process.
    pub fn live_on(&self) {
        self.state().calls_left = None;
    }

    /// Whether the process has crashed at a call of the disk.
    pub fn is_crashed(&self) -> bool {
        self.state().calls_left == Some(0)
    }

    /// Kills the process. The next process uses the same disk.
    pub fn end_process(&self) {
        // The threads' next calls of the disk fail, and so they end.
        let tasks = {
            let mut state = self.state();
            state.calls_left = Some(0);
            std::mem::take(&mut state.tasks)
        };
        drop(tasks);
        self.state().calls_left = None;
    }

    /// Loses power, after the process has ended.
    pub fn lose_power(&self, rng: &mut SmallRng) {
        self.state().disk.lose_power(rng);
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
            let number = state.tasks.iter().position(|task| task.ready_at <= now)?;
            (state.tasks.remove(number), now)
        };
        let resumed = task.resume.as_ref().map(|resume| resume.send(()));
        match (resumed, task.events.recv()) {
            (Some(Ok(())), Ok(TaskEvent::PollWait(delay))) => {
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
        let delay = Duration::from_millis(self.state().disk_plan.delay_ms);
        let waited = TASK_CHANNEL.with_borrow(|channel| match channel {
            Some(channel) => {
                let sent = channel.events.send(TaskEvent::PollWait(delay)).is_ok();
                Some(sent && channel.resumed.recv().is_ok())
            }
            None => None,
        });
        match waited {
            Some(true) => {}
            Some(false) => return Err(io::Error::other("the simulation is over")),
            // The simulation's own thread: nothing else runs at this time.
            None => self.advance(delay),
        }
        match &mut self.state().calls_left {
            Some(0) => Err(io::Error::other("the process has crashed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A file of the disk in memory.
#[derive(Debug)]
pub struct SimFile {
    sim: SimSystem,
    stored: StoredFile,
    /// How many bytes were read.
    offset: usize,
}

impl Read for SimFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.sim.call()?;
        let content = self.stored.content();
        let rest = &content.bytes[self.offset..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.offset += count;
        Ok(count)
    }
}

impl Write for SimFile {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.sim.call()?;
        let mut count = from.len();
        if let Some(space) = &mut self.sim.state().disk_plan.space_bytes {
            count = count.min(*space as usize);
            *space -= count as u64;
        }
        if count == 0 && !from.is_empty() {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut content = self.stored.content();
        content.bytes.extend_from_slice(&from[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl System for SimSystem {
    type Socket = SimSocket;
    type Listener = SimListener;
    type Poll = SimPoll;
    type File = SimFile;

    fn bind(&self, listen: &Listen, _: u32) -> Result<SimListener, Error> {
        Ok(self.net.listener(listen))
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

    fn unix_us(&self) -> u64 {
        let state = self.state();
        1_000_000 * state.unix_s as u64 + state.now.as_micros() as u64
    }

    fn tick(&self, cache: &Cache) {
        cache.advance_ms(self.cache_ms());
    }

    fn create(&self, path: &Path) -> io::Result<SimFile> {
        self.call()?;
        let mut state = self.state();
        if state.disk.file(path).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let stored = state.disk.create(path);
        Ok(SimFile {
            sim: self.clone(),
            stored,
            offset: 0,
        })
    }

    fn open(&self, path: &Path) -> io::Result<SimFile> {
        self.call()?;
        let stored = self.state().disk.file(path).cloned();
        Ok(SimFile {
            sim: self.clone(),
            stored: stored.ok_or(ErrorKind::NotFound)?,
            offset: 0,
        })
    }

    fn sync(&self, file: &SimFile) -> io::Result<()> {
        self.call()?;
        if self.state().disk_plan.sync_fails {
            return Err(io::Error::other("the disk does not sync"));
        }
        file.stored.sync();
        Ok(())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.call()?;
        self.state().disk.sync_directory();
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        let mut state = self.state();
        if state.disk_plan.rename_fails {
            return Err(ErrorKind::PermissionDenied.into());
        }
        state.disk.file(from).ok_or(ErrorKind::NotFound)?;
        state.disk.rename(from, to);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        let mut state = self.state();
        state.disk.file(path).ok_or(ErrorKind::NotFound)?;
        state.disk.remove(path);
        Ok(())
    }

    fn is_directory(&self, _: &Path) -> bool {
        false
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let (resume, resumed) = channel();
        let (sender, events) = channel();
        let run = move || {
            if resumed.recv().is_err() {
                return;
            }
            let end = sender.clone();
            TASK_CHANNEL.set(Some(TaskChannel {
                resumed,
                events: sender,
            }));
            work();
            // The simulation may be over already.
            let _ = end.send(TaskEvent::Ended);
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(run)?;
        let mut state = self.state();
        let ready_at = state.now;
        state.tasks.push(Task {
            name: name.to_owned(),
            resume: Some(resume),
            events,
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
