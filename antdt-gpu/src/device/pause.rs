//! The pauses between two polls of a GPU operation that is in progress.

use std::time::Duration;

/// Questions in a row without a pause: a short call is over within some microseconds, and a sleep would cost more.
const EAGER: u32 = 200;

/// The first pause. Linux wakes a thread some 50 µs later than asked, so that shorter ones say nothing.
const FIRST: Duration = Duration::from_micros(20);

/// The longest pause: a call of so many bytes that it is reached takes a hundred times longer.
const LONGEST: Duration = Duration::from_millis(1);

/// Returns the pause before the next poll of a GPU operation, after `asked` polls that found it unfinished.
/// The first 200 polls follow without a pause; then the pause starts at 20 µs and doubles with every four
/// polls, up to a millisecond. It is never longer than `left`, the time until the deadline.
pub fn pause(asked: u32, left: Duration) -> Duration {
    let Some(late) = asked.checked_sub(EAGER) else { return Duration::ZERO };
    let longer = FIRST.saturating_mul(1 << (late / 4).min(16));
    longer.min(LONGEST).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_millisecond_and_end_at_the_deadline() {
        let far = Duration::from_secs(1);
        assert_eq!(pause(0, far), Duration::ZERO);
        assert_eq!(pause(EAGER - 1, far), Duration::ZERO);
        assert_eq!(pause(EAGER, far), FIRST);
        assert_eq!(pause(EAGER + 4, far), FIRST * 2);
        assert_eq!(pause(u32::MAX, far), LONGEST);
        assert!((0..1000).all(|asked| pause(asked, far) <= pause(asked + 1, far)));
        assert_eq!(pause(u32::MAX, Duration::from_micros(3)), Duration::from_micros(3));
    }
}
