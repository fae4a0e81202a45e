//! [`RateSchedule`]: the learning rate as a function of the number of samples trained.
//!
//! Samples, not steps: the batch sizes of a job change while it runs, and a job that is resumed, or has other workers, goes on
//! at the same rate. The count is that of the parameters when the step begins, so the first step of a warm-up has the rate 0,
//! as in `get_linear_schedule_with_warmup` of Hugging Face's Transformers (recalled).

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;
use antdt_core::text::nearest;

/// The share of the base learning rate that a step takes, by the number of samples trained.
///
/// Text form: a name, then settings of it:
///
/// | text | share |
/// |---|---|
/// | `constant` | 1 |
/// | `linear:total=N` | falls in a straight line to `end` at `N` samples, and stays there |
/// | `cosine:total=N` | falls along half a cosine to `end` at `N` samples, and stays there |
/// | `step:every=N,factor=F` | is multiplied with `F` every `N` samples |
///
/// `end=SHARE` is 0 where it is left out. With `warmup=N`, which all take, the share first rises in a straight line from 0 to
/// 1 at `N` samples; `linear` and `cosine` fall from there.
///
/// ```
/// use antdt_model::RateSchedule;
/// let schedule: RateSchedule = "linear:warmup=100,total=1100".parse()?;
/// assert_eq!([0, 50, 100, 600, 5000].map(|samples| schedule.share(samples)), [0.0, 0.5, 1.0, 0.5, 0.0]);
/// # Ok::<(), antdt_core::InvalidValue>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RateSchedule {
    warmup: u64,
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Shape {
    #[default]
    Constant,
    Linear {
        total: u64,
        end: f64,
    },
    Cosine {
        total: u64,
        end: f64,
    },
    Step {
        every: u64,
        factor: f64,
    },
}

/// What an error names.
const FLAG: &str = "--lr-schedule";

#[allow(clippy::cast_precision_loss, reason = "a share; 2^53 samples are more than any job has")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

impl RateSchedule {
    /// Text forms of a rate schedule, for help texts.
    pub const USAGES: [&'static str; 4] = [
        "constant[:warmup=N]",
        "linear:total=N[,warmup=N][,end=SHARE]",
        "cosine:total=N[,warmup=N][,end=SHARE]",
        "step:every=N,factor=F[,warmup=N]",
    ];

    /// Returns the share of the learning rate after this many samples.
    pub fn share(&self, samples: u64) -> f64 {
        let warmup = self.warmup;
        if samples < warmup {
            return ratio(samples, warmup);
        }
        let left = |total: u64| 1.0 - ratio((samples - warmup).min(total - warmup), total - warmup);
        match self.shape {
            Shape::Constant => 1.0,
            Shape::Linear { total, end } => end + (1.0 - end) * left(total),
            // By a software library: the cosines of two machines' systems may differ in the last bit, and replicas with them.
            Shape::Cosine { total, end } => {
                let angle = std::f64::consts::PI * (1.0 - left(total));
                end + (1.0 - end) * 0.5 * (1.0 + libm::cos(angle))
            }
            Shape::Step { every, factor } => crate::optimizer::power(factor, samples / every),
        }
    }

    fn validate(&self, text: &str) -> Result<(), InvalidValue> {
        let refused = |expected: String| Err(InvalidValue::new(FLAG, format!("`{text}`"), expected));
        match self.shape {
            Shape::Linear { total, .. } | Shape::Cosine { total, .. } if total <= self.warmup => {
                refused(format!("with a total above the warm-up of {} samples", self.warmup))
            }
            Shape::Linear { end, .. } | Shape::Cosine { end, .. } if !(0.0..=1.0).contains(&end) => {
                refused("with an end from 0 to 1, a share of the learning rate".to_owned())
            }
            Shape::Step { every: 0, .. } => refused("with every=N of at least 1 sample".to_owned()),
            Shape::Step { factor, .. } if !(factor > 0.0 && factor <= 1.0) => {
                refused("with a factor above 0 and at most 1".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for RateSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.warmup > 0 {
            parts.push(format!("warmup={}", self.warmup));
        }
        let name = match self.shape {
            Shape::Constant => "constant",
            Shape::Linear { total, end } => {
                parts.extend([format!("total={total}"), format!("end={end}")]);
                "linear"
            }
            Shape::Cosine { total, end } => {
                parts.extend([format!("total={total}"), format!("end={end}")]);
                "cosine"
            }
            Shape::Step { every, factor } => {
                parts.extend([format!("every={every}"), format!("factor={factor}")]);
                "step"
            }
        };
        f.write_str(name)?;
        if parts.is_empty() { Ok(()) } else { write!(f, ":{}", parts.join(",")) }
    }
}

impl FromStr for RateSchedule {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const NAMES: [&str; 4] = ["constant", "linear", "cosine", "step"];
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let known: &[&str] = match name {
            "constant" => &["warmup"],
            "linear" | "cosine" => &["total", "warmup", "end"],
            "step" => &["every", "factor", "warmup"],
            _ => {
                let expected = match nearest(name, &NAMES) {
                    Some(near) => format!("one of {}; did you mean `{near}`?", NAMES.join(", ")),
                    None => format!("one of {}", Self::USAGES.join("; ")),
                };
                return Err(InvalidValue::new(FLAG, format!("`{name}`"), expected));
            }
        };
        let usage = || {
            let usage =
                Self::USAGES.iter().find(|usage| usage.starts_with(name)).copied().unwrap_or_default();
            InvalidValue::new(FLAG, format!("`{text}`"), usage)
        };
        let (mut total, mut every, mut factor) = (None, None, None);
        let (mut warmup, mut end) = (0, 0.0);
        for part in settings.split(',').filter(|_| !settings.is_empty()) {
            let (key, value) = part.trim().split_once('=').ok_or_else(usage)?;
            if !known.contains(&key) {
                let expected = match nearest(key, known) {
                    Some(near) => format!("a setting of `{name}`; did you mean `{near}`?"),
                    None => format!("a setting of `{name}`: {}", known.join(", ")),
                };
                return Err(InvalidValue::new(FLAG, format!("`{key}`"), expected));
            }
            let field = format!("{FLAG} {key}");
            let samples = || {
                let digits: String = value.chars().filter(|c| *c != '_').collect();
                let expected = "a whole number of samples";
                digits.parse().map_err(|_| InvalidValue::new(field.clone(), value, expected))
            };
            let number = || value.parse().map_err(|_| InvalidValue::new(field.clone(), value, "a number"));
            match key {
                "total" => total = Some(samples()?),
                "every" => every = Some(samples()?),
                "warmup" => warmup = samples()?,
                "factor" => factor = Some(number()?),
                _ => end = number()?,
            }
        }
        let shape = match name {
            "linear" => Shape::Linear { total: total.ok_or_else(usage)?, end },
            "cosine" => Shape::Cosine { total: total.ok_or_else(usage)?, end },
            "step" => Shape::Step { every: every.ok_or_else(usage)?, factor: factor.ok_or_else(usage)? },
            _ => Shape::Constant,
        };
        let schedule = Self { warmup, shape };
        schedule.validate(text)?;
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares<const N: usize>(text: &str, samples: [u64; N]) -> [f64; N] {
        let schedule: RateSchedule = text.parse().unwrap();
        samples.map(|samples| schedule.share(samples))
    }

    #[test]
    fn each_shape_turns_where_its_numbers_say() {
        assert_eq!(shares("constant", [0, 1, u64::MAX]), [1.0; 3]);
        assert_eq!(shares("constant:warmup=4", [0, 1, 3, 4, 5]), [0.0, 0.25, 0.75, 1.0, 1.0]);
        assert_eq!(
            shares("linear:warmup=4,total=8,end=0.5", [0, 2, 4, 5, 6, 8, 9, u64::MAX]),
            [0.0, 0.5, 1.0, 0.875, 0.75, 0.5, 0.5, 0.5]
        );
        assert_eq!(shares("linear:total=4", [0, 1, 4, 5]), [1.0, 0.75, 0.0, 0.0]);
        let cosine = shares("cosine:warmup=10,total=70,end=0.1", [5, 10, 30, 40, 50, 70, 1000]);
        let expected = [0.5, 1.0, 0.1 + 0.9 * 0.75, 0.55, 0.1 + 0.9 * 0.25, 0.1, 0.1];
        for (share, expected) in cosine.iter().zip(expected) {
            assert!((share - expected).abs() < 1e-12, "{cosine:?}");
        }
        assert_eq!(
            shares("step:every=10,factor=0.5,warmup=2", [0, 1, 2, 9, 10, 19, 20, 39]),
            [0.0, 0.5, 1.0, 1.0, 0.5, 0.5, 0.25, 0.125]
        );
    }

    // Pinned: replicas on machines of every kind must have these bits.
    #[test]
    fn a_cosine_has_the_same_bits_everywhere() {
        let bits = shares("cosine:total=1000", [1, 333, 500, 999]).map(f64::to_bits);
        assert_eq!(bits, PINNED);
    }

    const PINNED: [u64; 4] = [
        4_607_182_396_575_662_336,
        4_604_934_702_063_968_818,
        4_602_678_819_172_646_912,
        4_522_936_407_588_732_928,
    ];

    #[test]
    fn texts_read_back() {
        for text in [
            "constant",
            "constant:warmup=10",
            "linear:total=100,end=0",
            "linear:warmup=10,total=100,end=0.25",
            "cosine:warmup=1,total=2,end=1",
            "step:every=5,factor=0.5",
        ] {
            let schedule: RateSchedule = text.parse().unwrap();
            assert_eq!(schedule.to_string(), text);
        }
        assert_eq!(
            "linear:total=1_000, warmup=10".parse::<RateSchedule>().unwrap().to_string(),
            "linear:warmup=10,total=1000,end=0"
        );
    }

    #[test]
    fn an_impossible_schedule_is_refused_in_one_line() {
        let said = |text: &str| text.parse::<RateSchedule>().unwrap_err().to_string();
        assert_eq!(
            said("cosin:total=3"),
            "--lr-schedule = `cosin`: must be one of constant, linear, cosine, step; did you mean `cosine`?"
        );
        assert!(said("").contains("one of constant[:warmup=N]; linear:total=N"), "{}", said(""));
        assert_eq!(
            said("linear:warmup=3"),
            "--lr-schedule = `linear:warmup=3`: must be linear:total=N[,warmup=N][,end=SHARE]"
        );
        assert!(said("step:every=3").ends_with("must be step:every=N,factor=F[,warmup=N]"));
        assert!(said("step:every").ends_with("must be step:every=N,factor=F[,warmup=N]"));
        assert!(said("linear:totl=3").ends_with("a setting of `linear`; did you mean `total`?"));
        assert!(said("constant:total=3").ends_with("a setting of `constant`: warmup"));
        assert_eq!(said("linear:total=x"), "--lr-schedule total = x: must be a whole number of samples");
        assert!(said("linear:total=3,end=y").starts_with("--lr-schedule end = y"));
        for text in [
            "linear:total=0",
            "cosine:warmup=5,total=5",
            "linear:total=5,end=1.5",
            "cosine:total=5,end=nan",
            "step:every=0,factor=0.5",
            "step:every=5,factor=0",
            "step:every=5,factor=1.5",
        ] {
            assert!(
                said(text).starts_with(&format!("--lr-schedule = `{text}`: must be with ")),
                "{}",
                said(text)
            );
        }
    }
}
