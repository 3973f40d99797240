//! A plan: the server's options, its clients, and what else happens during the run. It is data, so
//! that a failing one can be made smaller. `draw` makes it from a seed, and `variations` changes it
//! with random numbers of its own, so that old seeds keep most of their plans.

mod draw;
mod variations;

use std::time::Duration;

use forerun_server::Protocol;

use super::disk::DiskPlan;
use super::net::ReportStyle;

/// A whole simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub threads: usize,
    pub memory_mib: usize,
    pub max_item_bytes: usize,
    pub connection_limit: usize,
    pub idle_timeout_s: u64,
    pub drain_timeout_s: u64,
    pub listeners: Listeners,
    pub snapshot: bool,
    /// One call of a socket in this many is interrupted; 0: none.
    pub interrupts: u32,
    /// The state of the disk when the server starts, or starts the second time if it does.
    pub start_disk: DiskPlan,
    /// The servers that run in turn on the same disk. There is at least one.
    pub incarnations: Vec<IncarnationPlan>,
    pub clients: Vec<ClientPlan>,
    pub events: Vec<(Duration, Event)>,
}

impl Plan {
    /// Whether a client needs a listener for RESP.
    pub fn has_resp(&self) -> bool {
        self.clients.iter().any(|client| client.resp)
    }

    /// The highest memory limit that a client sets, or the first one.
    pub fn memory_max_mib(&self) -> usize {
        let ops = self.clients.iter().flat_map(|client| &client.ops);
        let limits = ops.filter_map(|op| match op {
            Op::MemoryLimit { mib } => Some(*mib),
            _ => None,
        });
        limits.fold(self.memory_mib, usize::max)
    }
}

/// The listeners of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listeners {
    Plain,
    Tls,
    /// One of each.
    Both,
}

impl Listeners {
    /// Whether each of them uses TLS.
    pub fn tls(self) -> &'static [bool] {
        match self {
            Listeners::Plain => &[false],
            Listeners::Tls => &[true],
            Listeners::Both => &[false, true],
        }
    }

    pub fn have_tls(self) -> bool {
        self != Listeners::Plain
    }
}

/// One server.
#[derive(Clone, Copy, Debug, Default)]
pub struct IncarnationPlan {
    /// `None`: it drains.
    pub crash: Option<Crash>,
    /// Seconds until the next server starts.
    pub rest_s: u64,
    /// How far the wall clock is set in these seconds.
    pub clock_jump_s: i64,
}

/// How a server crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    pub cause: CrashCause,
    pub moment: CrashMoment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashCause {
    /// The process is killed. Data that it has written stays.
    Kill,
    /// Power is lost. Data that was not synced may be gone.
    PowerLoss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMoment {
    /// While it starts, after this many calls of the disk.
    Start { calls: u64 },
    /// When it would drain.
    Serving,
    /// While it writes its last snapshot, after this many calls of the disk.
    LastSnapshot { calls: u64 },
}

/// One connection.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Its number, which is part of its keys: it stays the same when other clients are left out.
    pub id: usize,
    /// Which of the servers it uses.
    pub incarnation: usize,
    /// Whether it connects to the listener with TLS.
    pub tls: bool,
    /// Whether it connects to the listener for RESP, which has no TLS.
    pub resp: bool,
    pub start: Duration,
    /// Capacities of the pipes to the server and back.
    pub capacities: (usize, usize),
    pub style: ReportStyle,
    pub send: Rate,
    pub read: Rate,
    /// The maximum number of unanswered requests.
    pub window: usize,
    pub ops: Vec<Op>,
    pub end: End,
    /// With TLS: it supports only TLS 1.2.
    pub tls12: bool,
}

impl ClientPlan {
    /// What the client speaks.
    pub fn protocol(&self) -> Protocol {
        if self.resp {
            Protocol::Resp
        } else {
            Protocol::Memcached
        }
    }
}

/// How fast a client is: at most this many bytes at a time, and pauses of at most this length.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub bytes_max: usize,
    pub pause_max: Duration,
}

/// How a connection ends after its requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It sends `quit` and waits for the end.
    Quit,
    /// It closes its sending half, reads its answers and waits for the end.
    HalfClose,
    /// It resets the connection at once, even if bytes are in transit.
    Reset,
    /// It stops in the middle of a request and closes its sending half.
    Truncate,
    /// It sends a multi-get frame that the server refuses, and waits for the error and the end.
    BadFrame,
    /// It stays connected.
    Stay,
    /// It sends plain text to a server that uses TLS.
    NoTls,
    /// After its requests, it sends a record that cannot be decrypted.
    BadRecord,
    /// After its requests, it sends bytes that are not a record.
    NoRecord,
}

impl End {
    /// Whether it belongs to a client that uses TLS.
    pub fn needs_tls(self) -> bool {
        matches!(self, End::NoTls | End::BadRecord | End::NoRecord)
    }
}

/// The owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A key that only this client sets.
    Own(u16),
    /// A key of a client of the first server, which has ended.
    Of(usize, u16),
    /// A key that any client sets.
    Shared(u16),
}

/// When a value expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Never,
    In(u32),
    /// This many seconds from now, as a time of day.
    AtFromNow(i32),
}

/// A request.
#[derive(Clone, Debug)]
pub enum Op {
    Set {
        key: Key,
        len: usize,
        expiry: Expiry,
    },
    Get {
        keys: Vec<Key>,
        touch: Option<Expiry>,
    },
    /// A multi-get frame with these options. The first one of a client switches frames on.
    Frame {
        keys: Vec<Key>,
        options: u8,
    },
    /// A frame with this form, which does not exist. The server refuses it and closes the
    /// connection.
    BadFrame {
        form: u8,
    },
    Ttl {
        key: Key,
    },
    Touch {
        key: Key,
        expiry: Expiry,
    },
    Delete {
        key: Key,
    },
    Flush,
    MemoryLimit {
        mib: usize,
    },
    Noop,
}

impl Op {
    /// Whether it is a multi-get frame.
    pub fn is_frame(&self) -> bool {
        matches!(self, Op::Frame { .. } | Op::BadFrame { .. })
    }
}

/// What happens to the server from outside.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Snapshot,
    Disk(DiskPlan),
    WallClock(i64),
    /// No thread ran for this long.
    Pause(Duration),
    RefuseAccepts(u32),
    Drain,
}

/// The key's name.
pub fn name(id: usize, key: Key) -> String {
    match key {
        Key::Own(key) => format!("c{id}k{key}"),
        Key::Of(id, key) => format!("c{id}k{key}"),
        Key::Shared(key) => format!("s{key}"),
    }
}
