//! The activity of a worker's training thread, from which the master can tell that the thread hangs.

use antdt_core::{JobTime, Stall, Work};

/// Activity of the training thread, as the thread itself reports it: at work, or waiting for another process.
///
/// Heartbeats come from another thread and continue while the training thread hangs. A thread that waits for
/// a peer, a server or the master never counts as hung, however long it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    at_work: Option<(Work, JobTime)>,
}

impl Activity {
    /// Records that at `now` the training thread began `work`, or made progress with it.
    pub const fn works(&mut self, now: JobTime, work: Work) {
        self.at_work = Some((work, now));
    }

    /// Records that the training thread waits for a peer, a server or the master, or is done.
    pub const fn waits(&mut self) {
        self.at_work = None;
    }

    /// Returns how long the training thread has made no progress with its work; `None` while it waits for
    /// another process, and below [`Stall::LEAST`].
    pub fn stall(&self, now: JobTime) -> Option<Stall> {
        let (work, since) = self.at_work?;
        let lasts = now.since(since);
        (lasts >= Stall::LEAST).then_some(Stall { work, lasts })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_work_that_does_not_get_on_is_a_stall() {
        let at = |millis| JobTime::ZERO + Duration::from_millis(millis);
        let mut activity = Activity::default();
        assert_eq!(activity.stall(at(60_000)), None, "nothing began");
        activity.works(at(1000), Work::Loading);
        activity.works(at(2000), Work::Training);
        assert_eq!(activity.stall(at(2499)), None);
        let stall = Stall { work: Work::Training, lasts: Duration::from_millis(500) };
        assert_eq!(activity.stall(at(2500)), Some(stall));
        activity.works(at(2600), Work::Training);
        assert_eq!(activity.stall(at(3000)), None, "it got on");
        activity.waits();
        assert_eq!(activity.stall(at(60_000)), None, "for others");
    }
}
