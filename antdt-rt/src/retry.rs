//! When to try again.

use std::time::Duration;

use antdt_core::{DetRng, Seed};

/// Exponential back-off with seeded jitter and a deadline.
///
/// Delays grow from `first` by a factor of two up to `most`, each shortened at random by up to a half, so that
/// many clients of one lost service do not come back at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    most: Duration,
    left: Duration,
    rng: DetRng,
}

impl Backoff {
    /// Tries for `deadline` in all.
    pub fn new(first: Duration, most: Duration, deadline: Duration, seed: Seed) -> Self {
        Self { next: first, most, left: deadline, rng: seed.derive("backoff").rng() }
    }

    /// How long to sleep before the next try; `None` when the deadline is used up.
    pub fn next_delay(&mut self) -> Option<Duration> {
        if self.left.is_zero() {
            return None;
        }
        let delay = self.next.mul_f64(0.5 + self.rng.unit() / 2.0).min(self.left);
        self.left -= delay;
        self.next = (self.next * 2).min(self.most);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_limit_and_end_at_the_deadline() {
        let deadline = Duration::from_secs(10);
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1), deadline, Seed(1));
        let delays: Vec<Duration> = std::iter::from_fn(|| backoff.next_delay()).collect();
        assert_eq!(delays.iter().sum::<Duration>(), deadline);
        assert!(delays.iter().all(|d| *d <= Duration::from_secs(1)));
        assert!(delays[0] >= Duration::from_millis(5) && delays[0] <= Duration::from_millis(10));
    }
}
