//! Variations of a drawn plan. Each has random numbers of its own, so that a seed without it keeps
//! its plan.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::draw::Workload;
use super::{
    ClientPlan, Crash, CrashCause, CrashMoment, DiskPlan, End, Event, Expiry, IncarnationPlan, Key,
    Listeners, Op, Plan, Rate, ReportStyle,
};

// Each derives the numbers of one variation from the seed.
const SNAPSHOT_SALT: u64 = u64::MAX;
const TLS_SALT: u64 = 0x544c_5331;
const LISTENERS_SALT: u64 = 0x424f_5448;
const INCARNATIONS_SALT: u64 = 0x4c49_5645;
const CLOCK_SALT: u64 = 0x434c_4f43;
const MEMORY_SALT: u64 = 0x4d45_4d4f;
const FRAMES_SALT: u64 = 0x4652_414d;
const SILENCE_SALT: u64 = 0x5349_4c45;
const RESP_SALT: u64 = 0x5245_5350;

/// The smallest capacity of a connection with TLS: a kernel's buffers hold at least one record.
pub(super) const TLS_CAPACITY_MIN: usize = 300;

/// A year, for jumps of the wall clock.
const YEAR_S: i64 = 365 * 24 * 3600;

impl Plan {
    pub(super) fn vary(&mut self, seed: u64) {
        let rng = |salt| SmallRng::seed_from_u64(seed ^ salt);
        self.vary_snapshots(&mut rng(SNAPSHOT_SALT));
        if self.listeners.have_tls() {
            self.vary_tls(&mut rng(TLS_SALT));
        }
        self.vary_listeners(&mut rng(LISTENERS_SALT));
        self.vary_clock(&mut rng(CLOCK_SALT));
        self.vary_memory_limit(&mut rng(MEMORY_SALT));
        if self.snapshot {
            self.vary_incarnations(&mut rng(INCARNATIONS_SALT));
        }
        self.vary_frames(&mut rng(FRAMES_SALT));
        self.vary_silence(&mut rng(SILENCE_SALT));
        self.vary_resp(&mut rng(RESP_SALT));
    }

    /// Makes some clients speak RESP. Their values never expire: times to live in milliseconds
    /// follow the system's clock, which is not simulated.
    fn vary_resp(&mut self, rng: &mut SmallRng) {
        if !rng.random_bool(0.3) {
            return;
        }
        for client in &mut self.clients {
            if client.end.needs_tls() || !rng.random_bool(0.5) {
                continue;
            }
            (client.resp, client.tls, client.tls12) = (true, false, false);
            if matches!(client.end, End::Quit | End::BadFrame) {
                client.end = End::HalfClose;
            }
            client
                .ops
                .retain(|op| !matches!(op, Op::Get { keys, .. } if keys.is_empty()));
            for op in &mut client.ops {
                op.becomes_resp();
            }
        }
    }

    /// Makes clients fall silent in the middle of their requests, and the server drain meanwhile.
    /// The idle timeout ends before their silence and before the drain timeout.
    fn vary_silence(&mut self, rng: &mut SmallRng) {
        if !rng.random_bool(0.1) {
            return;
        }
        self.idle_timeout_s = rng.random_range(1..3);
        self.drain_timeout_s = self.idle_timeout_s + rng.random_range(6..12);
        for client in &mut self.clients {
            client.send = Rate {
                bytes_max: rng.random_range(20..600),
                pause_max: Duration::from_secs(60),
            };
        }
        let at = Duration::from_millis(rng.random_range(100..1500));
        self.events.push((at, Event::Drain));
        self.events.sort_by_key(|(at, _)| *at);
    }

    /// Makes some clients look up keys in multi-get frames, and some send one that is refused.
    fn vary_frames(&mut self, rng: &mut SmallRng) {
        if !rng.random_bool(0.4) {
            return;
        }
        for client in &mut self.clients {
            if client.end == End::NoTls || !rng.random_bool(0.6) {
                continue;
            }
            let sizes = client.ops.iter().filter_map(|op| match op {
                Op::Set { len, .. } => Some(*len),
                _ => None,
            });
            let len_max = sizes.max().unwrap_or_default();
            let is_slow = client.send.bytes_max.min(client.read.bytes_max) < 1000;
            for op in &mut client.ops {
                let Op::Get { keys, touch: None } = op else {
                    continue;
                };
                if keys.is_empty() || !rng.random_bool(0.7) {
                    continue;
                }
                // An answer has several parts if its values are large or its keys many.
                let count = match rng.random_range(0..4) {
                    0 if !is_slow && len_max < 2000 => rng.random_range(1..800),
                    _ => keys.len(),
                };
                let keys = keys.iter().copied().cycle().take(count).collect();
                let options = rng.random_range(0..4);
                *op = Op::Frame { keys, options };
            }
            if rng.random_bool(0.15) && !client.end.needs_tls() {
                client.end = End::BadFrame;
            }
        }
    }

    /// Writes more during a snapshot than the cache holds, or fills the disk.
    fn vary_snapshots(&mut self, rng: &mut SmallRng) {
        let is_middling = (64 << 10..=256 << 10).contains(&self.max_item_bytes);
        if self.snapshot && is_middling && rng.random_bool(0.15) {
            self.write_much_during_a_snapshot(rng);
        }
        if self.snapshot && rng.random_bool(0.1) {
            let at = Duration::from_millis(rng.random_range(20..2000));
            let disk = Event::Disk(DiskPlan {
                space_bytes: Some(rng.random_range(0..200_000)),
                ..DiskPlan::default()
            });
            self.events.extend([(at, disk), (at, Event::Snapshot)]);
            self.events.sort_by_key(|(at, _)| *at);
        }
    }

    /// Gives the server a plain listener and one with TLS.
    fn vary_listeners(&mut self, rng: &mut SmallRng) {
        if !rng.random_bool(0.25) {
            return;
        }
        self.listeners = Listeners::Both;
        for client in &mut self.clients {
            client.tls = rng.random_bool(0.5);
            if client.tls {
                let (to_server, to_client) = client.capacities;
                client.capacities = (
                    to_server.max(TLS_CAPACITY_MIN),
                    to_client.max(TLS_CAPACITY_MIN),
                );
            } else {
                client.tls12 = false;
                if client.end.needs_tls() {
                    client.end = End::Quit;
                }
            }
        }
    }

    /// Sets the wall clock forward or back by up to three years.
    fn vary_clock(&mut self, rng: &mut SmallRng) {
        if rng.random_bool(0.1) {
            let at = Duration::from_millis(rng.random_range(0..4000));
            let by_s = rng.random_range(-3 * YEAR_S..3 * YEAR_S);
            self.events.push((at, Event::WallClock(by_s)));
            self.events.sort_by_key(|(at, _)| *at);
        }
    }

    /// Makes clients change the memory limit, up and down.
    fn vary_memory_limit(&mut self, rng: &mut SmallRng) {
        if !rng.random_bool(0.15) {
            return;
        }
        let limits_mib = self.memory_mib / 2..self.memory_mib * 2;
        for client in &mut self.clients {
            if client.ops.is_empty() || !rng.random_bool(0.5) {
                continue;
            }
            let at = rng.random_range(0..=client.ops.len());
            let mib = rng.random_range(limits_mib.clone());
            client.ops.insert(at, Op::MemoryLimit { mib });
        }
    }

    /// Adds more servers on the same disk, some of which die.
    fn vary_incarnations(&mut self, rng: &mut SmallRng) {
        if !rng.random_bool(0.15) {
            return;
        }
        let tls = self.listeners == Listeners::Tls;
        for _ in 0..rng.random_range(1..4) {
            let incarnation = self.incarnations.len();
            self.incarnations.push(IncarnationPlan::default());
            let reads = ClientPlan::reads_of(&self.clients);
            for _ in 0..rng.random_range(1..3) {
                let id = self.clients.iter().map(|client| client.id + 1).max();
                let id = id.unwrap_or_default();
                let mut client =
                    ClientPlan::draw(rng, id, Workload::Mixed, self.max_item_bytes, tls);
                client.incarnation = incarnation;
                client.ops.splice(0..0, reads.iter().cloned());
                client.send = Rate::GREEDY;
                client.read = Rate::GREEDY;
                self.clients.push(client);
            }
        }
        let last = self.incarnations.len() - 1;
        for incarnation in &mut self.incarnations[..last] {
            incarnation.rest_s = rng.random_range(0..20);
            if rng.random_bool(0.3) {
                incarnation.clock_jump_s = rng.random_range(-5000..5000);
            }
            if rng.random_bool(0.6) {
                incarnation.crash = Some(Crash::draw(rng));
            }
        }
        if rng.random_bool(0.5) {
            let at = Duration::from_millis(rng.random_range(0..2000));
            self.events.push((at, Event::Drain));
            self.events.sort_by_key(|(at, _)| *at);
        }
    }

    /// Makes some clients use TLS 1.2, and some send bytes that are not TLS.
    fn vary_tls(&mut self, rng: &mut SmallRng) {
        if rng.random_bool(0.3) {
            let is_alone = self.clients.len() == 1;
            for client in &mut self.clients {
                client.tls12 = is_alone || rng.random_bool(0.5);
            }
        }
        if rng.random_bool(0.3) {
            for client in &mut self.clients {
                let ends = [End::NoTls, End::BadRecord, End::NoRecord];
                if rng.random_bool(0.4)
                    && let Some(&end) = ends.choose(rng)
                {
                    client.end = end;
                }
                if client.end == End::NoTls {
                    client.ops.clear();
                }
            }
        }
    }

    /// Writes more than the cache holds while a snapshot goes to a slow disk.
    fn write_much_during_a_snapshot(&mut self, rng: &mut SmallRng) {
        self.memory_mib = 16;
        let next = self.clients.len();
        for id in next..next + rng.random_range(1..4) {
            let len_max = rng.random_range(20_000..self.max_item_bytes) - 400;
            let ops = (0..rng.random_range(100..400)).map(|_| Op::Set {
                key: Key::Own(rng.random_range(0..60)),
                len: rng.random_range(len_max / 2..=len_max),
                expiry: Expiry::Never,
            });
            self.clients.push(ClientPlan {
                id,
                incarnation: 0,
                start: Duration::ZERO,
                capacities: (4 << 20, 4 << 20),
                style: ReportStyle::Epoll,
                send: Rate {
                    bytes_max: 256 << 10,
                    pause_max: Duration::from_millis(10),
                },
                read: Rate::GREEDY,
                window: 1000,
                ops: ops.collect(),
                end: End::HalfClose,
                tls: self.listeners == Listeners::Tls,
                resp: false,
                tls12: false,
            });
        }
        let at = Duration::from_millis(rng.random_range(20..400));
        let disk = Event::Disk(DiskPlan {
            delay_ms: rng.random_range(20..400),
            ..DiskPlan::default()
        });
        self.events.extend([(at, disk), (at, Event::Snapshot)]);
        self.events.sort_by_key(|(at, _)| *at);
    }
}

impl Op {
    /// Turns it into one of those that clients of RESP send.
    fn becomes_resp(&mut self) {
        match self {
            Op::Set { expiry, .. } => *expiry = Expiry::Never,
            Op::Get { touch, .. } => *touch = None,
            Op::Frame { keys, .. } => {
                *self = Op::Get {
                    keys: std::mem::take(keys),
                    touch: None,
                }
            }
            Op::Ttl { key } | Op::Touch { key, .. } => {
                *self = Op::Get {
                    keys: vec![*key],
                    touch: None,
                }
            }
            Op::BadFrame { .. } | Op::MemoryLimit { .. } => *self = Op::Noop,
            Op::Delete { .. } | Op::Flush | Op::Noop => {}
        }
    }
}

impl Crash {
    fn draw(rng: &mut SmallRng) -> Crash {
        Crash {
            cause: if rng.random_bool(0.5) {
                CrashCause::Kill
            } else {
                CrashCause::PowerLoss
            },
            moment: match rng.random_range(0..4) {
                0 => CrashMoment::Start {
                    calls: rng.random_range(0..12),
                },
                1 => CrashMoment::LastSnapshot {
                    calls: rng.random_range(0..12),
                },
                _ => CrashMoment::Serving,
            },
        }
    }
}
