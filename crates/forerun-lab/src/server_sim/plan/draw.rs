//! Draws a plan from a seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::variations::TLS_CAPACITY_MIN;
use super::{
    ClientPlan, DiskPlan, End, Event, Expiry, IncarnationPlan, Key, Listeners, Op, Plan, Rate,
    ReportStyle, name,
};

/// The size that makes an answer of one key as long as the output that a server holds back.
const FULL_BYTES: usize = 64 << 10;

/// The shortest value.
const VALUE_BYTES_MIN: usize = 40;

/// The kind of most clients of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    Mixed,
    LargeAnswers,
    ManyClients,
    Flood,
    LowMemory,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let kinds = [
            (Workload::Mixed, 6),
            (Workload::LargeAnswers, 2),
            (Workload::ManyClients, 1),
            (Workload::Flood, 1),
            (Workload::LowMemory, 2),
        ];
        let kind = kinds
            .choose_weighted(rng, |(_, weight)| *weight)
            .map_or(Workload::Mixed, |(kind, _)| *kind);
        let (memory_mib, max_item_bytes) = match kind {
            Workload::LargeAnswers => (64, 1 << 20),
            Workload::LowMemory => (16, 256 << 10),
            Workload::Flood => (64, 16 << 10),
            Workload::Mixed | Workload::ManyClients => (64, 128 << 10),
        };
        let count = match kind {
            Workload::ManyClients => rng.random_range(66..140),
            Workload::LargeAnswers | Workload::Flood => rng.random_range(1..5),
            Workload::Mixed | Workload::LowMemory => rng.random_range(1..10),
        };
        let tls = rng.random_bool(0.5);
        let snapshot = rng.random_bool(0.6);
        let restart_after_s = (snapshot && rng.random_bool(0.5)).then(|| rng.random_range(0..20));
        let mut clients: Vec<ClientPlan> = (0..count)
            .map(|id| ClientPlan::draw(rng, id, kind, max_item_bytes, tls))
            .collect();
        if restart_after_s.is_some() {
            let before = clients.clone();
            for id in count..count + rng.random_range(1..4) {
                let mut client = ClientPlan::draw(rng, id, Workload::Mixed, max_item_bytes, tls);
                client.incarnation = 1;
                let reads = ClientPlan::reads_of(&before);
                client.ops.splice(0..0, reads);
                client.send = Rate::GREEDY;
                client.read = Rate::GREEDY;
                clients.push(client);
            }
        }
        let span = Duration::from_millis(rng.random_range(100..8000));
        let mut events: Vec<(Duration, Event)> = (0..rng.random_range(0..6))
            .map(|_| {
                let at = span.mul_f64(rng.random::<f64>());
                (at, Event::draw(rng, snapshot))
            })
            .collect();
        if rng.random_bool(0.3) {
            events.push((span.mul_f64(rng.random::<f64>()), Event::Drain));
        }
        events.sort_by_key(|(at, _)| *at);
        let mut incarnations = vec![IncarnationPlan::default()];
        if let Some(rest_s) = restart_after_s {
            incarnations[0].rest_s = rest_s;
            incarnations.push(IncarnationPlan::default());
        }
        let mut plan = Plan {
            seed,
            threads: rng.random_range(1..4),
            memory_mib,
            max_item_bytes,
            connection_limit: if rng.random_bool(0.2) {
                rng.random_range(1..10)
            } else {
                1024
            },
            idle_timeout_s: if rng.random_bool(0.25) {
                rng.random_range(1..6)
            } else {
                0
            },
            drain_timeout_s: rng.random_range(1..8),
            listeners: if tls {
                Listeners::Tls
            } else {
                Listeners::Plain
            },
            snapshot,
            interrupts: *[0, 0, 10, 300].choose(rng).unwrap_or(&0),
            start_disk: if rng.random_bool(0.4) {
                DiskPlan {
                    delay_ms: rng.random_range(0..4000),
                    ..DiskPlan::default()
                }
            } else {
                DiskPlan::default()
            },
            incarnations,
            clients,
            events,
        };
        plan.vary(seed);
        plan
    }
}

impl Event {
    fn draw(rng: &mut SmallRng, snapshot: bool) -> Event {
        match rng.random_range(0..8) {
            0..=2 if snapshot => Event::Snapshot,
            3 => Event::Disk(DiskPlan {
                delay_ms: *[0, 1, 50, 700].choose(rng).unwrap_or(&0),
                space_bytes: rng.random_bool(0.3).then(|| rng.random_range(0..2_000_000)),
                sync_fails: rng.random_bool(0.1),
                rename_fails: rng.random_bool(0.1),
            }),
            4 => Event::WallClock(rng.random_range(-5000..5000)),
            5 => Event::RefuseAccepts(rng.random_range(1..6)),
            _ => Event::Pause(Duration::from_millis(rng.random_range(0..15_000))),
        }
    }
}

impl Rate {
    pub(super) const GREEDY: Rate = Rate {
        bytes_max: 1 << 20,
        pause_max: Duration::ZERO,
    };

    fn draw(rng: &mut SmallRng, kind: Workload) -> Rate {
        let ms = Duration::from_millis;
        let rate = |bytes_max, pause_max| Rate {
            bytes_max,
            pause_max,
        };
        match (kind, rng.random_range(0..10)) {
            (Workload::Flood | Workload::LargeAnswers, 0..5) | (_, 0..3) => Rate::GREEDY,
            (Workload::Flood | Workload::LargeAnswers, _) => rate(
                rng.random_range(4 << 10..256 << 10),
                ms(rng.random_range(0..40)),
            ),
            (_, 3..6) => rate(
                rng.random_range(1 << 10..64 << 10),
                ms(rng.random_range(0..20)),
            ),
            (_, 6) => rate(64 << 10, ms(3000)),
            (_, 7 | 8) => rate(rng.random_range(20..600), ms(rng.random_range(0..60))),
            _ => rate(rng.random_range(1..5), ms(rng.random_range(0..200))),
        }
    }

    /// The largest value that it can send or read in reasonable time.
    fn value_max(self) -> usize {
        match self.bytes_max {
            0..10 => 60,
            10..1000 => 4000,
            1000..4096 => 100_000,
            _ => usize::MAX,
        }
    }
}

impl ClientPlan {
    pub(super) fn draw(
        rng: &mut SmallRng,
        id: usize,
        kind: Workload,
        max_item: usize,
        tls: bool,
    ) -> ClientPlan {
        let send = Rate::draw(rng, kind);
        let read = Rate::draw(rng, kind);
        let value_max = (max_item - 400)
            .min(send.value_max())
            .min(read.value_max())
            .min(if kind == Workload::ManyClients {
                2000
            } else {
                usize::MAX
            });
        let is_slow = send.bytes_max.min(read.bytes_max) < 1000;
        let op_count = match kind {
            Workload::ManyClients => rng.random_range(0..6),
            Workload::Flood => rng.random_range(50..400),
            _ if is_slow => rng.random_range(1..12),
            _ => rng.random_range(1..60),
        };
        let capacity = |rng: &mut SmallRng| match (kind, rng.random_range(0..4)) {
            (Workload::Flood, _) => 4 << 20,
            (_, 0) => rng.random_range(1..2000),
            (_, 1) => rng.random_range(2000..100_000),
            _ => rng.random_range(60_000..1 << 20),
        };
        let mut capacities = (capacity(rng), capacity(rng));
        if tls {
            let min = TLS_CAPACITY_MIN;
            capacities = (capacities.0.max(min), capacities.1.max(min));
        }
        let mut keys = Vec::new();
        let keys_max = rng.random_range(1..12);
        let ops = (0..op_count)
            .map(|_| Op::draw(rng, id, kind, &mut keys, keys_max, value_max, is_slow))
            .collect();
        let ends = [
            End::Quit,
            End::HalfClose,
            End::Reset,
            End::Truncate,
            End::Stay,
        ];
        ClientPlan {
            id,
            incarnation: 0,
            tls,
            resp: false,
            start: match kind {
                Workload::ManyClients => Duration::from_micros(rng.random_range(0..300)),
                _ => Duration::from_millis(rng.random_range(0..500)),
            },
            capacities,
            style: if rng.random_bool(0.6) {
                ReportStyle::Strict
            } else {
                ReportStyle::Epoll
            },
            send,
            read,
            window: match rng.random_range(0..4) {
                0 => 1,
                1 => rng.random_range(2..10),
                _ => 1000,
            },
            ops,
            end: *ends.choose(rng).unwrap_or(&End::Quit),
            tls12: false,
        }
    }

    /// Requests that read everything that these clients have set.
    pub(super) fn reads_of(clients: &[ClientPlan]) -> Vec<Op> {
        let mut keys: Vec<Key> = clients
            .iter()
            .flat_map(|client| client.ops.iter().map(move |op| (client.id, op)))
            .filter_map(|(id, op)| match op {
                Op::Set {
                    key: Key::Own(key), ..
                } => Some(Key::Of(id, *key)),
                _ => None,
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys.chunks(7)
            .map(|keys| Op::Get {
                keys: keys.to_vec(),
                touch: None,
            })
            .collect()
    }
}

impl Op {
    fn draw(
        rng: &mut SmallRng,
        id: usize,
        kind: Workload,
        keys: &mut Vec<Key>,
        keys_max: u16,
        value_max: usize,
        is_slow: bool,
    ) -> Op {
        let key = |rng: &mut SmallRng| match rng.random_range(0..8) {
            0 => Key::Shared(rng.random_range(0..4)),
            _ => Key::Own(rng.random_range(0..keys_max)),
        };
        let choice = rng.random_range(0..100);
        match (kind, choice) {
            _ if keys.is_empty() || choice < 35 => {
                let key = key(rng);
                keys.push(key);
                let exact = rng.random_bool(0.12);
                let len = match rng.random_range(0..6) {
                    _ if exact && value_max > FULL_BYTES => exact_len(id, key),
                    0 => rng.random_range(0..100),
                    1 | 2 => rng.random_range(0..4000),
                    3 => rng.random_range(0..40_000),
                    4 if kind == Workload::LargeAnswers => value_max,
                    _ => rng.random_range(0..=value_max),
                };
                Op::Set {
                    key,
                    len: match kind {
                        Workload::Flood => len.max(8000).min(value_max),
                        // It is long enough to contain its key.
                        _ => len.min(value_max).max(VALUE_BYTES_MIN),
                    },
                    expiry: Expiry::draw(rng),
                }
            }
            (_, 35..75) => {
                let max_count = match kind {
                    Workload::LargeAnswers => 20,
                    _ if is_slow => 2,
                    Workload::Flood => 60,
                    _ => 30,
                };
                let count = rng.random_range(1..=max_count);
                let asked = (0..count).filter_map(|_| keys.choose(rng).copied());
                Op::Get {
                    keys: asked.collect(),
                    touch: None,
                }
            }
            (_, 75..80) => Op::Get {
                keys: vec![key(rng), key(rng)],
                touch: Some(Expiry::draw(rng)),
            },
            (_, 80..86) => Op::Ttl { key: key(rng) },
            (_, 86..90) => Op::Touch {
                key: key(rng),
                expiry: Expiry::draw(rng),
            },
            (_, 90..94) => Op::Delete { key: key(rng) },
            (_, 94) => Op::Flush,
            (Workload::LowMemory, 95..98) => Op::MemoryLimit {
                mib: rng.random_range(8..17),
            },
            _ => Op::Noop,
        }
    }
}

impl Expiry {
    fn draw(rng: &mut SmallRng) -> Expiry {
        match rng.random_range(0..10) {
            0..5 => Expiry::Never,
            5..8 => Expiry::In(rng.random_range(1..12)),
            _ => Expiry::AtFromNow(rng.random_range(-3..20)),
        }
    }
}

/// The length of a value whose answer, without `END`, exactly fills an output.
fn exact_len(id: usize, key: Key) -> usize {
    let rest = format!("VALUE {} 0 65500\r\n\r\n", name(id, key)).len();
    FULL_BYTES - rest
}
