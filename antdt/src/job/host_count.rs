//! [`HostCount`]: how many hosts a job waits for.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;

/// Number of hosts of a job whose hosts join it. Text form, as of torchrun: `N`, or `MIN:MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostCount {
    /// Without which the job does not begin; at least 1.
    pub least: u32,
    /// For which it waits a while.
    pub most: u32,
}

impl Default for HostCount {
    fn default() -> Self {
        Self { least: 1, most: 1 }
    }
}

impl fmt::Display for HostCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most { self.most.fmt(f) } else { write!(f, "{}:{}", self.least, self.most) }
    }
}

impl FromStr for HostCount {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (least, most) = text.split_once(':').unwrap_or((text, text));
        match (least.parse(), most.parse()) {
            (Ok(least), Ok(most)) if 1 <= least && least <= most => Ok(Self { least, most }),
            _ => {
                Err(InvalidValue::new("--nnodes", text, "a number of hosts, or MIN:MAX with 1 <= MIN <= MAX"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_or_range_says_itself_again() {
        for (text, least, most) in [("1", 1, 1), ("4", 4, 4), ("2:4", 2, 4)] {
            let count: HostCount = text.parse().unwrap();
            assert_eq!((count, count.to_string().as_str()), (HostCount { least, most }, text));
        }
        for text in ["0", "0:2", "4:2", "", ":", "1:2:3", "-1", "auto"] {
            assert!(text.parse::<HostCount>().unwrap_err().to_string().contains("MIN:MAX"), "{text}");
        }
    }
}
