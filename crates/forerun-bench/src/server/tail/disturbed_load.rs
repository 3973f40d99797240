//! A turn of the study: fills a server, sends sets at a fixed rate, and disturbs it.

use super::super::args::Disturbance;
use super::super::blocking_connection::{BlockingConnection, TIMEOUT};
use super::super::data::Items;
use super::super::server_process::Process;
use crate::skew::Skew;
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Sets that are sent together while a server is filled.
const FILL_BATCH: u64 = 500;
/// Keys per `gat`.
const GAT_KEYS: usize = 30;
/// How often a server is asked to flush, or to write a snapshot if it is not writing one.
const PERIOD: Duration = Duration::from_millis(100);
/// Keys that are drawn for a turn and used repeatedly.
const DRAWN: usize = 100_000;

/// Appends a set of item `number`.
pub(super) fn push_set(items: Items, number: u64, expires: u64, end: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"set ");
    items.push_key(number, out);
    // Writing to a Vec cannot fail.
    let _ = write!(out, " 0 {expires} {}{end}\r\n", items.value_bytes);
    items.push_value(number, out);
    out.extend_from_slice(b"\r\n");
}

/// Stores items `from..items.count` with this expiry time (0: never).
fn store(connection: &mut BlockingConnection, items: Items, from: u64, expires: u64) -> Result<()> {
    let mut batch = Vec::new();
    for first in (from..items.count).step_by(FILL_BATCH as usize) {
        batch.clear();
        for number in first..items.count.min(first + FILL_BATCH) {
            push_set(items, number, expires, " noreply", &mut batch);
        }
        batch.extend_from_slice(b"mn\r\n");
        connection.send(&batch)?;
        connection.await_line(b"MN")?;
    }
    Ok(())
}

fn unix_time() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Fills a server with all items, more than fit. Before a storm of expiries, the newer half of the
/// remaining items is stored again, so that all of it expires in the same second, in the middle of
/// a turn of `timed`. Returns when that turn should begin.
pub(super) fn fill(
    connection: &mut BlockingConnection,
    items: Items,
    disturbance: Disturbance,
    timed: Duration,
) -> Result<()> {
    let start = Instant::now();
    store(connection, items, 0, 0)?;
    if disturbance != Disturbance::Expiry {
        return Ok(());
    }
    // Half as many sets, with time to spare.
    let expires = unix_time() + start.elapsed() + timed / 2 + Duration::from_secs(1);
    let expires_s = expires.as_secs();
    store(connection, items, items.count / 2, expires_s)?;
    let begin = Duration::from_secs(expires_s).saturating_sub(timed / 2);
    std::thread::sleep(begin.saturating_sub(unix_time()));
    Ok(())
}

/// The results of a turn's sets.
pub(super) struct Set {
    pub(super) sets: u64,
    /// Sets that were not stored.
    pub(super) refused: u64,
    /// Nanoseconds from the time when a set was due until its answer arrived.
    pub(super) latencies: Histogram<u64>,
}

/// Sets one item every `interval` for `timed`. A set that is due while the previous one is still
/// unanswered waits, and its waiting counts: a server that stops for a second is charged for every
/// set of that second.
pub(super) fn set(
    connection: &mut BlockingConnection,
    items: Items,
    seed: u64,
    interval: Duration,
    timed: Duration,
) -> Result<Set> {
    let numbers = items.draw(Skew::Uniform, DRAWN, seed);
    let mut totals = Set {
        sets: 0,
        refused: 0,
        latencies: Histogram::new_with_bounds(1, 2 * TIMEOUT.as_nanos() as u64, 3)?,
    };
    let mut request = Vec::new();
    let start = Instant::now();
    for number in numbers.iter().cycle() {
        request.clear();
        push_set(items, *number, 0, "", &mut request);
        let due = interval * u32::try_from(totals.sets).context("too many sets in a turn")?;
        if due >= timed {
            break;
        }
        let early = due.saturating_sub(start.elapsed());
        if !early.is_zero() {
            std::thread::sleep(early);
        }
        connection.send(&request)?;
        let answer = connection.line()?;
        match answer {
            b"STORED" => {}
            _ if answer.starts_with(b"SERVER_ERROR") => totals.refused += 1,
            _ => bail!(
                "the server answered {:?}",
                answer.escape_ascii().to_string()
            ),
        }
        totals.sets += 1;
        let latency = start.elapsed().saturating_sub(due);
        totals
            .latencies
            .saturating_record(latency.as_nanos() as u64);
    }
    Ok(totals)
}

/// Disturbs a server until `over`. Returns how often.
pub(super) fn disturb(
    disturbance: Disturbance,
    process: &Process,
    items: Items,
    can_snapshot: bool,
    over: &AtomicBool,
) -> Result<u64> {
    // Relaxed, here and in the loops: the flag publishes nothing else.
    let goes_on = || !over.load(Ordering::Relaxed);
    let mut count = 0;
    match disturbance {
        Disturbance::Gat => {
            let mut connection = BlockingConnection::connect(process.address())?;
            let numbers = items.draw(Skew::Uniform, DRAWN, 1);
            let mut request = Vec::new();
            for keys in numbers.chunks_exact(GAT_KEYS).cycle() {
                if !goes_on() {
                    break;
                }
                request.clear();
                request.extend_from_slice(b"gat 3600");
                for number in keys {
                    request.push(b' ');
                    items.push_key(*number, &mut request);
                }
                request.extend_from_slice(b"\r\n");
                connection.send(&request)?;
                connection.await_line(b"END")?;
                count += 1;
            }
        }
        Disturbance::FlushAll => {
            let mut connection = BlockingConnection::connect(process.address())?;
            while goes_on() {
                connection.send(b"flush_all\r\n")?;
                connection.await_line(b"OK")?;
                count += 1;
                std::thread::sleep(PERIOD);
            }
        }
        Disturbance::Snapshot | Disturbance::SlowSnapshot if can_snapshot => {
            while goes_on() {
                process.ask_for_snapshot()?;
                count += 1;
                std::thread::sleep(PERIOD);
            }
        }
        // The items expire by themselves, and a server without live snapshots is not disturbed.
        Disturbance::None
        | Disturbance::Expiry
        | Disturbance::Snapshot
        | Disturbance::SlowSnapshot => {}
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::{SocketAddr, TcpListener};

    const ITEMS: Items = Items {
        count: 10,
        value_bytes: 8,
    };

    /// A server that answers every set, the third one only after a pause.
    fn answers_late(pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut answers = stream.try_clone().unwrap();
            // Two lines per set.
            for (at, line) in BufReader::new(stream).lines().enumerate() {
                if line.is_err() {
                    break;
                }
                if at == 5 {
                    std::thread::sleep(pause);
                }
                if at % 2 == 1 && answers.write_all(b"STORED\r\n").is_err() {
                    break;
                }
            }
        });
        address
    }

    #[test]
    fn sets_that_had_to_wait_for_a_stalled_one_are_charged_for_it() {
        let pause = Duration::from_millis(200);
        let mut connection = BlockingConnection::connect(answers_late(pause)).unwrap();
        let interval = Duration::from_millis(2);
        let totals = set(
            &mut connection,
            ITEMS,
            7,
            interval,
            Duration::from_millis(400),
        )
        .unwrap();
        assert_eq!((totals.sets, totals.refused), (200, 0));
        assert!(totals.latencies.max() >= pause.as_nanos() as u64);
        // A hundred sets were due in the pause, and half of them waited for at least half of it.
        let waited = totals.latencies.count_between(100_000_000, u64::MAX);
        assert!(waited >= 40, "{waited} sets waited");
    }

    #[test]
    fn a_set_follows_the_protocol() {
        let mut out = Vec::new();
        push_set(ITEMS, 3, 60, " noreply", &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("set key:000000000003 0 60 8 noreply\r\n"));
        assert_eq!(
            text.len(),
            "set key:000000000003 0 60 8 noreply\r\n".len() + 10
        );
    }
}
