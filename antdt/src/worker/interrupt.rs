//! Wakes the training thread when the event that it waits for cannot come any more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use antdt_agent::Notice;
use antdt_collective::CollectiveError;
use antdt_collective::runtime::AbortHandle;
use antdt_core::MembershipVersion;

#[derive(Debug, Default)]
struct State {
    /// Why nothing may be waited for any more.
    stopped: Option<String>,
    /// What is waited for now.
    current: Option<(MembershipVersion, AbortHandle)>,
}

/// Holds the abort handle of whatever the training thread is in. An abort is final for its handle, so every group
/// has one of its own.
#[derive(Debug, Default)]
pub(super) struct Interrupt(Mutex<State>);

impl Interrupt {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle for waiting in this group; it replaces the one before.
    pub(super) fn enter(&self, group: MembershipVersion) -> Result<AbortHandle, CollectiveError> {
        let handle = AbortHandle::new()?;
        let mut state = self.state();
        if let Some(why) = &state.stopped {
            handle.abort(why.clone());
        }
        state.current = Some((group, handle.clone()));
        Ok(handle)
    }

    /// What the agent's background has to say.
    pub(super) fn notice(&self, notice: Notice) {
        let mut state = self.state();
        match notice {
            Notice::Stopped(session) => {
                let why = format!("the session with the master ended ({session:?})");
                if let Some((_, handle)) = &state.current {
                    handle.abort(why.clone());
                }
                state.stopped = Some(why);
            }
            Notice::GroupBroken(broken) => {
                if let Some((group, handle)) = &state.current
                    && *group == broken
                {
                    handle.abort("a member of the group died, or could not reach another");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_agent::SessionState;

    use super::*;

    #[test]
    fn a_broken_group_wakes_only_its_members() {
        let interrupt = Interrupt::default();
        let old = interrupt.enter(MembershipVersion(1)).unwrap();
        let new = interrupt.enter(MembershipVersion(2)).unwrap();
        interrupt.notice(Notice::GroupBroken(MembershipVersion(1)));
        assert_eq!((old.reason(), new.reason()), (None, None));
        interrupt.notice(Notice::GroupBroken(MembershipVersion(2)));
        assert!(new.reason().is_some());
        assert_eq!(interrupt.enter(MembershipVersion(3)).unwrap().reason(), None);
    }

    #[test]
    fn an_ended_session_wakes_callers_that_wait_now_or_later() {
        let interrupt = Interrupt::default();
        let now = interrupt.enter(MembershipVersion(1)).unwrap();
        interrupt.notice(Notice::Stopped(SessionState::Fenced));
        assert!(now.reason().unwrap().contains("Fenced"));
        assert!(interrupt.enter(MembershipVersion(2)).unwrap().reason().is_some());
    }
}
