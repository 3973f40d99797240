//! The distribution of requests over the present keys.

use std::fmt;
use std::str::FromStr;

/// How often each present key is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Skew {
    /// All keys equally often.
    #[default]
    Uniform,
    /// The r-th most popular key is requested r to the power of -s times as often as the first
    /// (Zipf's law). Which keys are popular is random.
    Zipf(f64),
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skew::Uniform => f.pad("uniform"),
            Skew::Zipf(s) => f.pad(&format!("zipf:{s}")),
        }
    }
}

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Skew, String> {
        let exponent = |s: &str| s.parse().ok().filter(|s| (0.0..=10.0).contains(s));
        match text.trim().split_once(':') {
            None if text.trim() == "uniform" => Ok(Skew::Uniform),
            Some(("zipf", s)) if exponent(s).is_some() => {
                Ok(exponent(s).map_or(Skew::Uniform, Skew::Zipf))
            }
            _ => Err(format!(
                "{text:?} is not a skew: write uniform, or zipf:0.99 with an exponent from 0 to 10"
            )),
        }
    }
}
