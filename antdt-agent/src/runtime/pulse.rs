//! [`Pulse`]: what the training thread does, as the agent is to tell.

use std::fmt;
use std::sync::Arc;

use antdt_core::Work;

use super::heartbeat::Shared;

/// Handle by which the training thread reports its activity to the agent. Cheap to clone.
#[derive(Clone)]
pub struct Pulse(pub(super) Arc<Shared>);

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pulse").field(&self.0.holder).finish()
    }
}

impl Pulse {
    /// Reports that the training thread begins this work. The thread counts as working until the guard is
    /// dropped.
    pub fn begin(&self, work: Work) -> AtWork<'_> {
        let at_work = AtWork { pulse: self, work };
        at_work.gets_on();
        at_work
    }
}

/// Guard that reports the training thread as working, and not as waiting for another process, until it is
/// dropped.
#[derive(Debug)]
pub struct AtWork<'a> {
    pulse: &'a Pulse,
    work: Work,
}

impl AtWork<'_> {
    /// Reports that the thread has made progress with its work, so that it does not count as hung.
    pub fn gets_on(&self) {
        let shared = &self.pulse.0;
        shared.session().activity.works(shared.clock.now(), self.work);
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.pulse.0.session().activity.waits();
    }
}
