//! Delays before retries. They are those of `backon`; its loops are not used, since ours also bound every
//! single call, watch for the end of the process, and ask the error whether to register anew.

use std::time::Duration;

use antdt_core::Seed;
use backon::{BackoffBuilder, ExponentialBuilder};

/// Returns the delays before further tries: exponential back-off with seeded jitter and a deadline.
///
/// Delays grow from `first` by a factor of two up to `most`, each shortened at random by up to a half, so that
/// many clients of one lost service do not come back at the same moment. The last one ends at the deadline.
///
/// ```
/// use std::time::Duration;
/// use antdt_core::Seed;
/// let ms = Duration::from_millis;
/// let delays: Vec<Duration> = antdt_rt::backoff(ms(10), ms(80), ms(500), Seed(1)).collect();
/// assert_eq!(delays.iter().sum::<Duration>(), ms(500));
/// ```
pub fn backoff(
    first: Duration,
    most: Duration,
    deadline: Duration,
    seed: Seed,
) -> impl Iterator<Item = Duration> + Send {
    // Its jitter lengthens a delay by up to as much again.
    let delays = ExponentialBuilder::new()
        .with_min_delay(first / 2)
        .with_max_delay(most / 2)
        .without_max_times()
        .with_jitter()
        .with_jitter_seed(seed.derive("backoff").0)
        .build();
    delays.scan(deadline, |left, delay| {
        let delay = delay.min(*left);
        *left -= delay;
        (!delay.is_zero()).then_some(delay)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_limit_and_end_at_the_deadline() {
        let deadline = Duration::from_secs(10);
        let delays = |seed| {
            let (first, most) = (Duration::from_millis(10), Duration::from_secs(1));
            backoff(first, most, deadline, Seed(seed)).collect::<Vec<_>>()
        };
        let first = delays(1);
        assert_eq!(first.iter().sum::<Duration>(), deadline);
        assert!(first.iter().all(|d| *d <= Duration::from_secs(1)));
        assert!(first[0] >= Duration::from_millis(5) && first[0] <= Duration::from_millis(10));
        assert!(first[9] >= Duration::from_millis(500), "{first:?}");
        assert!(first == delays(1) && first != delays(2), "the seed decides");
    }
}
