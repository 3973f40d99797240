//! The instruction set in use, detected once at run time.
//!
//! A default build runs on any machine of its target. The first call detects what the CPU supports.
//! `FORERUN_ISA` (`scalar`, `neon`, `sse4.2`, `avx2` or `avx512`) may force a lower set, which lets
//! the tests reach every path on one machine. An unknown name, or a set that this machine cannot
//! run, has no effect; [`isa_choice`] reports it.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::sync::OnceLock;

/// An instruction set that some part of Forerun has code for.
///
/// ```
/// use forerun_core::arch::Isa;
///
/// assert_eq!("avx2".parse(), Ok(Isa::Avx2));
/// assert_eq!(Isa::Avx512.to_string(), "avx512");
/// assert!(Isa::Scalar.is_available());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Isa {
    /// Portable Rust, on any target.
    Scalar = 1,
    /// 128-bit vectors of aarch64.
    Neon = 2,
    /// 128-bit vectors of x86_64, with POPCNT, which every CPU with SSE4.2 has.
    Sse42 = 3,
    /// 256-bit vectors of x86_64, with BMI1, BMI2 and POPCNT, which every CPU with AVX2 has.
    Avx2 = 4,
    /// 512-bit vectors of x86_64 (F, BW, DQ and VL), and everything in [`Isa::Avx2`].
    Avx512 = 5,
}

impl Isa {
    /// Every instruction set, from least to most capable.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Neon, Isa::Sse42, Isa::Avx2, Isa::Avx512];

    /// The name that `FORERUN_ISA` accepts.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Sse42 => "sse4.2",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Whether this CPU and operating system can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "x86_64")]
            Isa::Sse42 => {
                std::arch::is_x86_feature_detected!("sse4.2")
                    && std::arch::is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("bmi1")
                    && std::arch::is_x86_feature_detected!("bmi2")
                    && std::arch::is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
            }
            #[allow(
                unreachable_patterns,
                reason = "which arms exist depends on the target"
            )]
            _ => false,
        }
    }

    /// The most capable set that this machine can run. SSE4.2 is used only on request: it was never
    /// measured on a machine that lacks AVX2.
    fn best() -> Isa {
        let is_chosen = |isa: &Isa| isa.is_available() && *isa != Isa::Sse42;
        let best = Isa::ALL.into_iter().rfind(is_chosen);
        best.unwrap_or(Isa::Scalar)
    }

    fn from_code(code: u8) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| *isa as u8 == code)
    }
}

crate::names! {
    Isa, "instruction set";
    /// A name that no instruction set has.
    UnknownIsa
}

/// The request in `FORERUN_ISA`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsaRequest {
    /// Nothing: the variable is unset or empty.
    None,
    /// A set that this machine can run, which is therefore in use.
    Granted(Isa),
    /// A set that this machine cannot run. The best one is in use instead.
    Unavailable(Isa),
    /// An unknown name. The best set is in use.
    Unknown(String),
}

/// The instruction set in use and why it was chosen. [`fmt::Display`] formats it as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsaChoice {
    /// The set in use.
    pub isa: Isa,
    /// The most capable set that this machine can run.
    pub detected: Isa,
    /// The instruction set that the environment requests.
    pub requested: IsaRequest,
}

impl IsaChoice {
    fn new(detected: Isa, variable: Option<&str>) -> IsaChoice {
        let requested = match variable {
            None => IsaRequest::None,
            Some(name) if name.trim().is_empty() => IsaRequest::None,
            Some(name) => match name.trim().to_ascii_lowercase().parse::<Isa>() {
                Ok(isa) if isa.is_available() => IsaRequest::Granted(isa),
                Ok(isa) => IsaRequest::Unavailable(isa),
                Err(UnknownIsa(_)) => IsaRequest::Unknown(name.to_owned()),
            },
        };
        let isa = match requested {
            IsaRequest::Granted(isa) => isa,
            _ => detected,
        };
        IsaChoice {
            isa,
            detected,
            requested,
        }
    }

    /// Whether the environment requests something that is not available. Callers should warn about
    /// it.
    pub fn is_refused(&self) -> bool {
        matches!(
            self.requested,
            IsaRequest::Unavailable(_) | IsaRequest::Unknown(_)
        )
    }
}

impl fmt::Display for IsaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (isa, detected) = (self.isa, self.detected);
        match &self.requested {
            IsaRequest::None => write!(f, "{isa}"),
            IsaRequest::Granted(_) if isa == detected => write!(f, "{isa} (FORERUN_ISA)"),
            IsaRequest::Granted(_) => {
                write!(f, "{isa} (FORERUN_ISA; this machine has {detected})")
            }
            IsaRequest::Unavailable(requested) => {
                write!(
                    f,
                    "{isa} (FORERUN_ISA={requested} is not available on this machine)"
                )
            }
            IsaRequest::Unknown(name) => write!(
                f,
                "{isa} (FORERUN_ISA={name:?} is unknown: use scalar, neon, sse4.2, avx2 or avx512)"
            ),
        }
    }
}

/// The instruction set to use. After the first call this is one load of a cached byte.
///
/// ```
/// assert!(forerun_core::arch::isa().is_available());
/// ```
#[inline]
pub fn isa() -> Isa {
    /// The code of the set in use, or 0 before the first call.
    static CODE: AtomicU8 = AtomicU8::new(0);
    // Relaxed: the byte publishes nothing else, and a thread that reads 0 computes the same byte.
    match Isa::from_code(CODE.load(Ordering::Relaxed)) {
        Some(isa) => isa,
        None => {
            let isa = isa_choice().isa;
            CODE.store(isa as u8, Ordering::Relaxed);
            isa
        }
    }
}

/// The instruction set in use, what the machine supports and what the environment requests,
/// determined at the first call.
pub fn isa_choice() -> &'static IsaChoice {
    static CHOICE: OnceLock<IsaChoice> = OnceLock::new();
    CHOICE.get_or_init(|| {
        let variable = std::env::var_os("FORERUN_ISA");
        let text = variable.as_ref().map(|value| value.to_string_lossy());
        IsaChoice::new(Isa::best(), text.as_deref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
            assert_eq!(Isa::from_code(isa as u8), Some(isa));
        }
        let message = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(
            message.contains("sse9") && message.contains("avx512"),
            "{message}"
        );
        assert_eq!(Isa::from_code(0), None);
    }

    #[test]
    fn the_choice_in_use_is_available_and_cached() {
        assert!(isa().is_available());
        assert_eq!(isa(), isa_choice().isa);
        assert_eq!(isa(), isa());
    }

    #[test]
    fn the_environment_can_force_a_lower_set() {
        let choice = IsaChoice::new(Isa::best(), Some(" Scalar "));
        assert_eq!(choice.isa, Isa::Scalar);
        assert_eq!(choice.requested, IsaRequest::Granted(Isa::Scalar));
        assert!(!choice.is_refused());
    }

    #[test]
    fn an_unavailable_request_falls_back_and_is_reported() {
        // No machine has both, so one is always missing.
        let missing = [Isa::Neon, Isa::Avx2]
            .into_iter()
            .find(|isa| !isa.is_available())
            .unwrap();
        for name in [missing.name(), "mmx"] {
            let choice = IsaChoice::new(Isa::best(), Some(name));
            assert_eq!(choice.isa, Isa::best());
            assert!(choice.is_refused());
            let line = choice.to_string();
            assert!(
                line.contains(name) && line.contains(choice.isa.name()),
                "{line}"
            );
        }
        let unset = IsaChoice::new(Isa::best(), Some(""));
        assert_eq!(unset, IsaChoice::new(Isa::best(), None));
    }
}
