//! [`ProgressFilter`]: keeps workers that have made too few requests out of the groups that a worker with more requests starts.

use std::num::NonZeroU64;

use antdt_core::InvalidValue;

/// Limit on how far behind a worker may be to be drafted into a group, which bounds how long a fast worker
/// waits. A worker that starts a group drafts no worker that is this many requests, or more, behind it.
///
/// The filter does not isolate slow workers. When *they* ask, all others are ahead of them and may be
/// drafted, and the others do not have to wait for them.
///
/// Source: Prague's filter, `c_w - c_x < C_thres` (recalled). In pilot simulations 1 cost 10 to 12 % of the throughput of an
/// even cluster, as noise alone makes differences of 1; 2 and 3 were best or as good as any; none cost 3 to 9 % with one worker
/// five times as slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "C_thres")]
pub struct ProgressFilter {
    gap_max: Option<NonZeroU64>,
}

impl ProgressFilter {
    /// Returns a filter that excludes workers which are `progress_gap_max` or more requests behind.
    ///
    /// # Errors
    /// If `progress_gap_max` is 0: not even the initiator would pass.
    pub fn new(progress_gap_max: u64) -> Result<Self, InvalidValue> {
        let gap = NonZeroU64::new(progress_gap_max);
        let refused = || InvalidValue::new("progress_gap_max", 0, "at least 1; 3 is usual");
        Ok(Self { gap_max: Some(gap.ok_or_else(refused)?) })
    }

    /// Returns a filter that excludes no worker, however far behind it is.
    pub const fn off() -> Self {
        Self { gap_max: None }
    }

    /// Returns the least progress, in requests, of a worker that may be drafted by an initiator with progress
    /// `initiator`.
    pub fn least(self, initiator: u64) -> u64 {
        match self.gap_max {
            Some(gap) => initiator.saturating_add(1).saturating_sub(gap.get()),
            None => 0,
        }
    }
}

impl Default for ProgressFilter {
    /// 3.
    fn default() -> Self {
        Self { gap_max: NonZeroU64::new(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_gap_max_behind_is_left_out_and_one_step_less_is_not() {
        for gap in 1..6 {
            let filter = ProgressFilter::new(gap).unwrap();
            for (initiator, other) in (0..12).flat_map(|a| (0..12).map(move |b| (a, b))) {
                let admitted = other >= filter.least(initiator);
                assert_eq!(admitted, initiator.saturating_sub(other) < gap, "{initiator} {other} {gap}");
            }
        }
        assert_eq!(ProgressFilter::off().least(u64::MAX - 1), 0);
        assert!(ProgressFilter::new(0).unwrap_err().to_string().starts_with("progress_gap_max = 0"));
    }
}
