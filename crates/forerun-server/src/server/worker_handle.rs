//! The acceptor's side of a worker: messages, and a handle that sends them.

use std::sync::Arc;
use std::time::Instant;

use forerun_core::sync::mpsc::Sender;

use crate::address::Protocol;
use crate::system::Wake;

use super::connections::Ticket;

/// A message from the acceptor to a worker.
pub(crate) enum Message<K> {
    /// The worker takes over a connection.
    Adopt {
        /// Its socket.
        socket: K,
        /// Its slot.
        ticket: Ticket,
        /// Whether it uses TLS.
        tls: bool,
        /// What its client speaks.
        protocol: Protocol,
    },
    /// Close connections that hold memory and make no progress, until there is room for others.
    CloseStalled,
    /// Answer the requests that have arrived, close all connections by this time, then end.
    Drain(Instant),
}

/// The acceptor's handle to a worker.
pub(crate) struct WorkerHandle<K> {
    inbox: Sender<Message<K>>,
    waker: Arc<dyn Wake>,
}

impl<K> Clone for WorkerHandle<K> {
    fn clone(&self) -> WorkerHandle<K> {
        WorkerHandle {
            inbox: self.inbox.clone(),
            waker: self.waker.clone(),
        }
    }
}

impl<K> WorkerHandle<K> {
    pub(crate) fn new(inbox: Sender<Message<K>>, waker: Arc<dyn Wake>) -> WorkerHandle<K> {
        WorkerHandle { inbox, waker }
    }

    /// Sends a message. A worker that has ended ignores it; if the message holds a connection, that
    /// connection is dropped, which closes it.
    pub(crate) fn send(&self, message: Message<K>) {
        if self.inbox.send(message).is_ok() {
            // This fails only if the poll is gone, and then the worker is gone too.
            let _ = self.waker.wake();
        }
    }
}
