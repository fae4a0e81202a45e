//! Starts that all take the same time.

use std::time::Duration;

use antdt_core::{DetRng, Holder, JobTime};

use crate::model::Scheduler;

/// A scheduler model in which every process takes the same time to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Constant(pub Duration);

impl Constant {
    /// A scheduler that starts every process at once.
    pub const IMMEDIATE: Self = Self(Duration::ZERO);
}

impl Scheduler for Constant {
    fn start(&mut self, _at: JobTime, _life: Holder, _rng: &mut DetRng) -> Option<Duration> {
        Some(self.0)
    }
}
