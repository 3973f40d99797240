//! When an item expires.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forerun_core::sync::time;

/// Servers interpret larger numbers as Unix times.
const RELATIVE_MAX_S: u64 = 30 * 24 * 60 * 60;

/// When an item expires. Servers count in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expiry {
    /// Never, but it may be evicted.
    #[default]
    Never,
    /// After this time, rounded up to seconds. Zero expires at once. A time above 30 days is sent
    /// as a Unix time by this machine's clock.
    In(Duration),
    /// At this time, rounded up to seconds.
    At(SystemTime),
}

impl Expiry {
    /// The number that represents it in the protocol.
    pub(crate) fn seconds(self) -> i64 {
        let rounded_up = |time: Duration| {
            let started = u64::from(time.subsec_nanos() > 0);
            let seconds = time.as_secs().saturating_add(started);
            i64::try_from(seconds).unwrap_or(i64::MAX)
        };
        let unix = |at: SystemTime| match at.duration_since(UNIX_EPOCH) {
            // Servers would interpret a small number as a time from now.
            Ok(since) if since.as_secs() > RELATIVE_MAX_S => rounded_up(since),
            _ => -1,
        };
        match self {
            Expiry::Never => 0,
            Expiry::In(Duration::ZERO) => -1,
            Expiry::In(time) if rounded_up(time) <= RELATIVE_MAX_S.cast_signed() => {
                rounded_up(time)
            }
            Expiry::In(time) => time::system_now().checked_add(time).map_or(0, unix),
            Expiry::At(at) => unix(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_sent_as_servers_read_them() {
        let in_s = |seconds| Expiry::In(Duration::from_secs(seconds)).seconds();
        assert_eq!((Expiry::Never.seconds(), in_s(0), in_s(1)), (0, -1, 1));
        assert_eq!(Expiry::In(Duration::from_millis(1)).seconds(), 1);
        assert_eq!(in_s(RELATIVE_MAX_S), 2_592_000);
        let later = in_s(RELATIVE_MAX_S + 1) - 2_592_001;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        assert!((later - now.as_secs().cast_signed()).abs() < 60);
        assert_eq!(in_s(u64::MAX), 0);
        assert_eq!(Expiry::In(Duration::MAX).seconds(), 0);
        assert_eq!(
            Expiry::At(UNIX_EPOCH + Duration::from_secs(100)).seconds(),
            -1
        );
        let at = UNIX_EPOCH + Duration::from_millis(4_000_000_000_500);
        assert_eq!(Expiry::At(at).seconds(), 4_000_000_001);
    }
}
