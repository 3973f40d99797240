//! Channels with many senders and one receiver: a queue behind a lock.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::lock::{Condvar, Mutex, MutexGuard};
use super::time;

#[derive(Debug)]
struct Shared<T> {
    queue: Mutex<Queue<T>>,
    /// Signals a new message, or that no sender is left.
    filled: Condvar,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates an unbounded channel.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue {
            waiting: VecDeque::new(),
            senders: 1,
            has_receiver: true,
        }),
        filled: Condvar::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

/// Sends without waiting.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.lock().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.senders -= 1;
        if queue.senders == 0 {
            self.0.filled.notify_all();
        }
    }
}

impl<T> Sender<T> {
    /// Sends `value`, or returns it if the receiver is gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut queue = self.0.lock();
        if !queue.has_receiver {
            return Err(SendError(value));
        }
        queue.waiting.push_back(value);
        self.0.filled.notify_one();
        Ok(())
    }
}

/// Receives messages in the order in which they were sent.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.has_receiver = false;
        let unread = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(unread);
    }
}

impl<T> Receiver<T> {
    fn take(queue: &mut Queue<T>) -> Result<T, TryRecvError> {
        queue.waiting.pop_front().ok_or(match queue.senders {
            0 => TryRecvError::Disconnected,
            _ => TryRecvError::Empty,
        })
    }

    /// Returns the next message if one is available.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        Self::take(&mut self.0.lock())
    }

    /// Waits for the next message.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut queue = self.0.lock();
        loop {
            match Self::take(&mut queue) {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => {
                    let waited = self.0.filled.wait(queue);
                    queue = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Waits for the next message until the deadline.
    fn recv_until(&self, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        let Some(deadline) = deadline else {
            return self.recv().map_err(RecvTimeoutError::from);
        };
        let mut queue = self.0.lock();
        loop {
            match Self::take(&mut queue) {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let left = deadline.saturating_duration_since(time::now());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            let waited = self.0.filled.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the next message for at most this long.
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_until(time::now().checked_add(time))
    }

    /// Iterates over messages until no sender is left.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Iterates over the available messages.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}

/// Iterates over all messages of a channel.
#[derive(Debug)]
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}
