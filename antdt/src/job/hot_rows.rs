//! [`HotRowsSpec`]: how many rows of a model's table lie in the memory of a worker's GPU.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;

/// Number of table rows that each worker keeps in the memory of its GPU. Text form: `auto`, `off` or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HotRowsSpec {
    /// No rows: all of them lie in host memory. The default, because hot rows have not been tried on a GPU.
    #[default]
    Off,
    /// As many rows as fit into a quarter of the GPU's memory, shared by all workers on that GPU.
    Auto,
    /// At most this many rows; at least 1.
    Rows(u32),
}

impl HotRowsSpec {
    /// Of the memory of a GPU, `auto` takes one over this. The rest is for the framework, whose batches and pools need more than
    /// the model itself.
    const SHARE: u64 = 4;

    /// Returns the number of slots for a table of `rows` rows that take `slot_bytes` each, on a GPU with
    /// `memory_bytes` that so many `workers` share; `None` if no row is to have a slot.
    pub fn slots(self, rows: u64, slot_bytes: usize, memory_bytes: u64, workers: u32) -> Option<u32> {
        let most = match self {
            Self::Off => 0,
            Self::Rows(most) => u64::from(most),
            Self::Auto => memory_bytes / Self::SHARE / u64::from(workers.max(1)) / slot_bytes.max(1) as u64,
        };
        // Slots are numbered below 2^31.
        u32::try_from(most.min(rows).min(1 << 31)).ok().filter(|slots| *slots > 0)
    }
}

impl fmt::Display for HotRowsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Rows(rows) => rows.fmt(f),
        }
    }
}

impl FromStr for HotRowsSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused =
            || InvalidValue::new("--hot-rows", text, "auto, off or a number of rows, such as 100000");
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => text.parse().ok().filter(|rows| *rows > 0).map(Self::Rows).ok_or_else(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_says_how_many_and_says_itself_again() {
        for text in ["auto", "off", "7"] {
            assert_eq!(text.parse::<HotRowsSpec>().unwrap().to_string(), text);
        }
        for text in ["0", "-1", "all", "", "4294967296"] {
            let said = text.parse::<HotRowsSpec>().unwrap_err().to_string();
            assert!(said.ends_with("must be auto, off or a number of rows, such as 100000"), "{said}");
        }
    }

    #[test]
    fn auto_takes_a_quarter_of_the_memory_for_all_workers_of_a_gpu() {
        let slots = |text: &str, rows, workers| {
            text.parse::<HotRowsSpec>().unwrap().slots(rows, 100, 80_000, workers)
        };
        assert_eq!(slots("auto", 1_000, 1), Some(200));
        assert_eq!(slots("auto", 1_000, 4), Some(50));
        assert_eq!(slots("auto", 10, 1), Some(10), "no more than there are");
        assert_eq!((slots("auto", 1_000, 201), slots("off", 1_000, 1)), (None, None));
        assert_eq!((slots("300", 1_000, 9), slots("300", 20, 9)), (Some(300), Some(20)));
    }
}
