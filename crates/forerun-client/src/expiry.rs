//! When an item expires.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forerun_core::sync::time;

/// Servers interpret larger numbers as Unix times.
const RELATIVE_MAX_S: i64 = 30 * 24 * 60 * 60;
/// The largest number that servers read: they use 32 bits and a sign. As a Unix time it is in
/// January 2038.
const NUMBER_MAX: i64 = i32::MAX as i64;
/// The numbers with which an item never expires and with which it has expired.
const NEVER: i64 = 0;
const PAST: i64 = -1;

/// When an item expires. Servers count in seconds, and their times end on 19 January 2038.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expiration {
    /// Never, but it may be evicted.
    #[default]
    Never,
    /// After this time, rounded up to seconds. Zero expires at once. A time above 30 days is sent
    /// as a Unix time by this machine's clock, or as [`Expiration::Never`] if servers cannot represent
    /// it.
    In(Duration),
    /// At this time, rounded up to seconds. A time that servers cannot represent is sent as the
    /// time from now, or as [`Expiration::Never`] if that is more than 30 days.
    At(SystemTime),
}

impl Expiration {
    /// The number that represents it in the protocol.
    pub(crate) fn seconds(self) -> i64 {
        self.seconds_at(time::system_now)
    }

    fn seconds_at(self, now: impl FnOnce() -> SystemTime) -> i64 {
        match self {
            Expiration::Never => NEVER,
            Expiration::In(Duration::ZERO) => PAST,
            Expiration::In(time) => match rounded_up(time) {
                relative @ ..=RELATIVE_MAX_S => relative,
                _ => match now().checked_add(time).map(unix) {
                    Some(unix @ ..=NUMBER_MAX) => unix,
                    _ => NEVER,
                },
            },
            Expiration::At(at) => match unix(at) {
                // Servers would interpret a small number as a time from now.
                ..=RELATIVE_MAX_S => PAST,
                unix @ ..=NUMBER_MAX => unix,
                _ => match at.duration_since(now()).map(rounded_up) {
                    Err(_) | Ok(0) => PAST,
                    Ok(relative @ ..=RELATIVE_MAX_S) => relative,
                    Ok(_) => NEVER,
                },
            },
        }
    }
}

fn rounded_up(time: Duration) -> i64 {
    let started = u64::from(time.subsec_nanos() > 0);
    let seconds = time.as_secs().saturating_add(started);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// Seconds since 1970; 0 before.
fn unix(at: SystemTime) -> i64 {
    at.duration_since(UNIX_EPOCH).map_or(0, rounded_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_S: u64 = 365 * 24 * 60 * 60;

    fn unix_s(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn times_are_sent_as_servers_read_them() {
        let now = unix_s(1_800_000_000);
        let in_s = |seconds| Expiration::In(Duration::from_secs(seconds)).seconds_at(|| now);
        assert_eq!(
            (Expiration::Never.seconds_at(|| now), in_s(0), in_s(1)),
            (0, -1, 1)
        );
        assert_eq!(
            Expiration::In(Duration::from_millis(1)).seconds_at(|| now),
            1
        );
        assert_eq!(in_s(2_592_000), 2_592_000);
        assert_eq!(in_s(2_592_001), 1_802_592_001);
        let at = |at: SystemTime| Expiration::At(at).seconds_at(|| now);
        assert_eq!(at(unix_s(100)), -1);
        assert_eq!(at(UNIX_EPOCH - Duration::from_secs(1)), -1);
        let half = Duration::from_millis(500);
        assert_eq!(at(unix_s(1_900_000_000) + half), 1_900_000_001);
        assert_eq!(at(unix_s(1_700_000_000)), 1_700_000_000);
    }

    #[test]
    fn a_time_that_servers_cannot_represent_does_not_end_early() {
        let max = NUMBER_MAX as u64;
        let now = unix_s(1_800_000_000);
        let in_s = |seconds| Expiration::In(Duration::from_secs(seconds)).seconds_at(|| now);
        assert_eq!(in_s(max - 1_800_000_000), NUMBER_MAX);
        for seconds in [max - 1_799_999_999, 12 * YEAR_S, 100 * YEAR_S, u64::MAX] {
            assert_eq!(in_s(seconds), 0, "{seconds} s");
        }
        assert_eq!(Expiration::In(Duration::MAX).seconds_at(|| now), 0);
        let at = |at: SystemTime, now: SystemTime| Expiration::At(at).seconds_at(|| now);
        assert_eq!(at(unix_s(max), now), NUMBER_MAX);
        assert_eq!(at(unix_s(max + 1), now), 0);
        assert_eq!(at(unix_s(10 * max), now), 0);
        // After 2038.
        let now = unix_s(max + YEAR_S);
        assert_eq!(
            Expiration::In(Duration::from_secs(60)).seconds_at(|| now),
            60
        );
        assert_eq!(
            Expiration::In(Duration::from_secs(YEAR_S)).seconds_at(|| now),
            0
        );
        let (day, half) = (Duration::from_secs(86_400), Duration::from_millis(500));
        assert_eq!(at(now + day - half, now), 86_400);
        assert_eq!(at(now + 31 * day, now), 0);
        assert_eq!(at(now, now), -1);
        assert_eq!(at(now - day, now), -1);
    }
}
