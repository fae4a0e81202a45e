//! Starts that all take the same time.

use std::time::Duration;

use antdt_core::{DetRng, Holder, JobTime};

use crate::model::Scheduler;

/// A cluster where a process always runs after this long.
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
