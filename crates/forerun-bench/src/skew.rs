//! Which of the present keys are asked for how often.

use std::fmt;
use std::str::FromStr;

/// How often which of the present keys is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Skew {
    /// Each as often as any other.
    #[default]
    Uniform,
    /// The r-th most popular one r to the power of -s as often as the first (Zipf's law). Which
    /// key is popular is random.
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
                "{text:?} is no skew: write uniform, or zipf:0.99 with an exponent from 0 to 10"
            )),
        }
    }
}
