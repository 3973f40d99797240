//! The difference of two samples as text.

use std::fmt::Write;
use std::time::Duration;

use super::sample::Sample;
use crate::output::{bytes, count, counted, per_second, time};

/// How many addresses of clients are shown.
const CLIENTS_MAX: usize = 5;

/// What a server did between two samples, and what it holds now. Without a sample before, there are
/// no rates.
pub(super) fn text(name: &str, before: Option<&Sample>, now: &Sample) -> String {
    let mut view = View(String::new());
    let version = now.text("version").unwrap_or("of unknown version");
    let uptime = Duration::from_secs(now.number("uptime"));
    view.line(format_args!(
        "{name}  {version}, up {}, {}",
        long(uptime),
        counted(now.number("threads"), "thread")
    ));
    let limit = now.number("limit_maxbytes");
    // The whole memory of the cache where the server reports it, otherwise that of its items.
    let held = match now.text("memory_bytes") {
        Some(_) => now.number("memory_bytes"),
        None => now.number("bytes"),
    };
    view.line(format_args!(
        "  memory       {} of {} ({}), {}",
        bytes(held),
        bytes(limit),
        percent(held, limit),
        counted(now.number("curr_items"), "item")
    ));
    view.line(format_args!(
        "  connections  {} of {}{}",
        count(now.number("curr_connections")),
        count(now.number("max_connections")),
        clients(now)
    ));
    let at = |part: usize| {
        now.answers
            .get((now.answers.len() * part / 100).saturating_sub(1))
    };
    if let (Some(median), Some(max)) = (at(50), now.answers.last()) {
        view.line(format_args!(
            "  answers in   {} (median of {}), {} at most",
            time(*median),
            now.answers.len(),
            time(*max)
        ));
    }
    if let Some(before) = before {
        rates(&mut view, before, now);
    }
    view.0
}

/// The rates between two samples. A counter that was reset counts from zero.
fn rates(view: &mut View, before: &Sample, now: &Sample) {
    let elapsed = now.at.saturating_duration_since(before.at);
    let of = |name: &str| match (before.number(name), now.number(name)) {
        (before, now) if now >= before => now - before,
        (_, now) => now,
    };
    let rate = |number: u64| format!("{}/s", per_second(number, elapsed));
    let (hits, misses) = (of("get_hits"), of("get_misses"));
    view.line(format_args!(
        "  gets         {}, {} found",
        rate(of("cmd_get")),
        percent(hits, hits + misses)
    ));
    let deletes = of("delete_hits") + of("delete_misses");
    let counters = ["incr_hits", "incr_misses", "decr_hits", "decr_misses"];
    view.line(format_args!(
        "  others       set {}, touch {}, delete {}, incr and decr {}",
        rate(of("cmd_set")),
        rate(of("cmd_touch")),
        rate(deletes),
        rate(counters.into_iter().map(of).sum())
    ));
    if now.number("cmd_resp") > 0 {
        let (commands, errors) = (rate(of("cmd_resp")), rate(of("resp_errors")));
        view.line(format_args!("  RESP         {commands}, errors {errors}"));
    }
    view.line(format_args!(
        "  evicted      {}, expired {}",
        rate(of("evictions")),
        rate(of("reclaimed"))
    ));
    let network = |name| bytes((of(name) as f64 / elapsed.as_secs_f64().max(1e-9)) as u64);
    view.line(format_args!(
        "  network      {}/s in, {}/s out",
        network("bytes_read"),
        network("bytes_written")
    ));
}

struct View(String);

impl View {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{text}");
    }
}

/// The addresses with the most connections.
fn clients(now: &Sample) -> String {
    let mut clients: Vec<(&String, u64)> = now.clients.iter().map(|(at, n)| (at, *n)).collect();
    clients.sort_by_key(|(_, connections)| std::cmp::Reverse(*connections));
    let shown: Vec<String> = clients
        .iter()
        .take(CLIENTS_MAX)
        .map(|(client, connections)| format!("{client} {}", count(*connections)))
        .collect();
    if shown.is_empty() {
        String::new()
    } else {
        format!("; most from {}", shown.join(", "))
    }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1}%", 100.0 * part as f64 / whole as f64),
    }
}

/// A time of seconds up to days: `3 d 4 h`, `12 min`, `7 s`.
fn long(time: Duration) -> String {
    let s = time.as_secs();
    match (s / 86_400, s / 3600 % 24, s / 60 % 60) {
        (0, 0, 0) => format!("{s} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;
    use std::time::Instant;

    #[test]
    fn rates_are_differences_per_second() {
        let start = Instant::now();
        let before = sample(
            start,
            &[("cmd_get", 1000), ("get_hits", 500), ("evictions", 9)],
        );
        let now = sample(
            start + Duration::from_secs(2),
            &[
                ("cmd_get", 3000),
                ("get_hits", 2000),
                ("get_misses", 500),
                // It was reset.
                ("evictions", 4),
                ("uptime", 90_061),
                ("bytes", 32 << 20),
                ("limit_maxbytes", 64 << 20),
                ("bytes_read", 4 << 20),
                ("cmd_resp", 600),
                ("resp_errors", 4),
            ],
        );
        let shown = text("here:1", Some(&before), &now);
        for part in [
            "here:1  of unknown version, up 1 d 1 h, 0 threads\n",
            "  memory       32.0 MiB of 64.0 MiB (50.0%), 0 items\n",
            "  answers in   50",
            "/s, 75.0% found\n",
            "  network      2.0 MiB/s in, 0 B/s out\n",
        ] {
            assert!(shown.contains(part), "{part:?} in {shown}");
        }
        let of = |number| per_second(number, Duration::from_secs(2));
        assert!(
            shown.contains(&format!("  gets         {}/s,", of(2000))),
            "{shown}"
        );
        assert!(
            shown.contains(&format!("  evicted      {}/s,", of(4))),
            "{shown}"
        );
        let resp = format!("  RESP         {}/s, errors {}/s\n", of(600), of(4));
        assert!(shown.contains(&resp), "{shown}");
        let silent = text("here:1", Some(&before), &before);
        assert!(!silent.contains("RESP"), "{silent}");
        let first = text("here:1", None, &now);
        assert!(
            !first.contains("gets") && first.contains("memory"),
            "{first}"
        );
    }

    #[test]
    fn the_largest_groups_of_clients_come_first() {
        let mut now = sample(Instant::now(), &[]);
        for (client, connections) in [("a", 1), ("b", 7), ("c", 3), ("d", 2), ("e", 4), ("f", 5)] {
            now.clients.insert(client.to_owned(), connections);
        }
        assert_eq!(clients(&now), "; most from b 7, f 5, e 4, c 3, d 2");
    }
}
