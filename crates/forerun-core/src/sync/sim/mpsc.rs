//! Wrappers around the standard library's channels. The inner channel holds the queue, and a thread
//! that must wait does so in the scheduler.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::time::Duration;

use super::outcome::{Operation, WaitsFor};
use super::scheduler::Here;
use super::state::{At, Wake};

/// The scheduler's identifier of a channel: its address.
#[derive(Debug, Clone)]
struct Key(Arc<u8>);

impl Key {
    fn new() -> Key {
        Key(Arc::new(0))
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn wake(&self, kind: WaitsFor) {
        if let Some(here) = Here::get() {
            here.with(|state| state.wake_all(&[kind], self.address()));
        }
    }
}

/// [`std::sync::mpsc::Sender`], or its model in a simulation.
pub struct Sender<T> {
    /// Taken out when the sender is dropped.
    inner: Option<std::sync::mpsc::Sender<T>>,
    key: Key,
}

/// [`std::sync::mpsc::SyncSender`], or its model in a simulation.
pub struct SyncSender<T> {
    /// Taken out when the sender is dropped.
    inner: Option<std::sync::mpsc::SyncSender<T>>,
    key: Key,
}

/// [`std::sync::mpsc::Receiver`], or its model in a simulation.
pub struct Receiver<T> {
    /// Taken out when the receiver is dropped.
    inner: Option<std::sync::mpsc::Receiver<T>>,
    key: Key,
}

// As in the standard library, `T` need not implement `Debug`.
impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

const OPEN: &str = "an end of a channel exists until it is dropped";

/// Creates an unbounded channel.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let key = Key::new();
    let sender = Sender {
        inner: Some(sender),
        key: key.clone(),
    };
    (sender, receiver_of(receiver, key))
}

/// Creates a channel that holds at most `bound` messages.
///
/// # Panics
///
/// Panics in a simulation if `bound` is 0: the inner channel would never accept a message from a
/// thread that does not wait.
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    assert!(
        bound > 0 || Here::get().is_none(),
        "a simulated channel needs space for at least one message"
    );
    let (sender, receiver) = std::sync::mpsc::sync_channel(bound);
    let key = Key::new();
    let sender = SyncSender {
        inner: Some(sender),
        key: key.clone(),
    };
    (sender, receiver_of(receiver, key))
}

fn receiver_of<T>(inner: std::sync::mpsc::Receiver<T>, key: Key) -> Receiver<T> {
    Receiver {
        inner: Some(inner),
        key,
    }
}

impl<T> Sender<T> {
    /// Sends a message, unless the receiver is gone.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if let Some(here) = Here::get() {
            here.point(Operation::Send, Location::caller());
        }
        let sent = self.inner.as_ref().expect(OPEN).send(value);
        self.key.wake(WaitsFor::Message);
        sent
    }
}

impl<T> SyncSender<T> {
    /// Waits for space and sends a message, unless the receiver is gone.
    #[track_caller]
    pub fn send(&self, mut value: T) -> Result<(), SendError<T>> {
        let Some(here) = Here::get() else {
            return self.inner.as_ref().expect(OPEN).send(value);
        };
        let at = Location::caller();
        here.point(Operation::Send, at);
        loop {
            match self.inner.as_ref().expect(OPEN).try_send(value) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(value)) => return Err(SendError(value)),
                Err(TrySendError::Full(again)) => {
                    value = again;
                    here.block(WaitsFor::Capacity, self.key.address(), None, at);
                }
            }
        }
        self.key.wake(WaitsFor::Message);
        Ok(())
    }

    /// Sends a message if there is space.
    #[track_caller]
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let here = Here::get();
        let at = Location::caller();
        if let Some(here) = here {
            here.point(Operation::Send, at);
        }
        let sent = self.inner.as_ref().expect(OPEN).try_send(value);
        match (&sent, here) {
            (Err(TrySendError::Full(_)), Some(here)) => here.point(Operation::Yield, at),
            _ => self.key.wake(WaitsFor::Message),
        }
        sent
    }
}

impl<T> Receiver<T> {
    /// Waits for a message, or until all senders are gone.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        match Here::get() {
            None => self.inner().recv(),
            Some(here) => self
                .recv_in(here, None, Location::caller())
                .map_err(|_| RecvError),
        }
    }

    /// Like [`Receiver::recv`], but for at most `timeout`.
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        match Here::get() {
            None => self.inner().recv_timeout(timeout),
            Some(here) => self.recv_in(here, Some(timeout), Location::caller()),
        }
    }

    /// Returns a message if one is available.
    #[track_caller]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let here = Here::get();
        let at = Location::caller();
        if let Some(here) = here {
            here.point(Operation::Receive, at);
        }
        let received = self.inner().try_recv();
        match (&received, here) {
            (Ok(_), _) => self.key.wake(WaitsFor::Capacity),
            (Err(TryRecvError::Empty), Some(here)) => here.point(Operation::Yield, at),
            (Err(_), _) => {}
        }
        received
    }

    /// Iterates over messages until all senders are gone.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Iterates over the available messages.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    fn inner(&self) -> &std::sync::mpsc::Receiver<T> {
        self.inner.as_ref().expect(OPEN)
    }

    fn recv_in(
        &self,
        here: Here,
        timeout: Option<Duration>,
        at: At,
    ) -> Result<T, RecvTimeoutError> {
        here.point(Operation::Receive, at);
        let deadline_ns = timeout.map(|timeout| here.with(|state| state.deadline_after(timeout)));
        let mut wake = Wake::Notified;
        loop {
            match self.inner().try_recv() {
                Ok(value) => {
                    self.key.wake(WaitsFor::Capacity);
                    return Ok(value);
                }
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if wake == Wake::TimedOut => {
                    return Err(RecvTimeoutError::Timeout);
                }
                Err(TryRecvError::Empty) => {
                    let key = self.key.address();
                    wake = here.block(WaitsFor::Message, key, deadline_ns, at);
                }
            }
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender {
            inner: self.inner.clone(),
            key: self.key.clone(),
        }
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> SyncSender<T> {
        SyncSender {
            inner: self.inner.clone(),
            key: self.key.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.inner = None;
        self.key.wake(WaitsFor::Message);
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.inner = None;
        self.key.wake(WaitsFor::Message);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.inner = None;
        self.key.wake(WaitsFor::Capacity);
    }
}

/// Iterates over a receiver's messages until all senders are gone.
#[derive(Debug)]
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}
