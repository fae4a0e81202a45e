//! I7: whatever happens to a member, every call of the others ends, and they know which member caused it.

use super::fault::{Fault, REASON};
use super::i08_atomicity::{CallResult, Story, stories, tell, tell_all};
use super::members::{AnyTransport, LONGER, Make, Members, PATIENT, holder, on_all};
use super::watchdog::Watchdog;
use crate::error::CollectiveError;
use crate::runtime::Communicator;

/// Checks invariant I7: when a member dies, falls silent or aborts before any of its rounds, in any
/// collective, under any algorithm, all others fail, soon after the deadline at the latest, and their errors
/// name that member. An abort handle ends the calls of all members, with its reason.
///
/// # Panics
/// If the invariant is broken.
pub fn i07_termination(make: &Make<'_>) {
    let _watchdog = Watchdog::over("I7");
    tell_all(&stories(make), |story| ends(story, make));
    for world in 2..=5 {
        aborts(make(world));
    }
}

// The first member never comes: all wait for it until the second one's handle is used. The first one's own next call is
// refused as well.
fn aborts((transports, aborts): Members<AnyTransport>) {
    let results = on_all(transports, PATIENT, |me, communicator| {
        if me.0 == 0 {
            aborts[1].abort("enough");
        }
        communicator.barrier().and_then(|()| communicator.barrier())
    });
    for (rank, result) in results.iter().enumerate() {
        let told = matches!(result, Err(CollectiveError::Aborted { reason, .. }) if reason == "enough");
        assert!(told, "rank {rank} of {} is told {result:?}", results.len());
    }
}

fn ends(story: &Story, make: &Make<'_>) {
    if story.fault != Fault::FallsSilent {
        return judge(story, &tell(story, make(story.world).0, PATIENT));
    }
    for timeout in LONGER {
        let told = tell(story, make(story.world).0, timeout);
        let others = (0..).zip(&told).filter(|(rank, _)| *rank != story.odd);
        let mut named = others.map(|(_, calls)| calls.iter().find_map(|(result, _)| result.as_ref().err()));
        if named.all(|error| error.is_none_or(|error| error.culprit() == Some(holder(story.odd)))) {
            return judge(story, &told);
        }
    }
    panic!("somebody else is named whatever the deadline: {story:?}");
}

fn judge(story: &Story, told: &[[CallResult; 2]]) {
    for (rank, calls) in (0..).zip(told) {
        if rank == story.odd {
            continue;
        }
        // A member may have all that it needs for the first call; none gets through the second one.
        let error = calls.iter().find_map(|(result, _)| result.as_ref().err());
        let Some(error) = error else { panic!("rank {rank} noticed nothing: {story:?}") };
        match (story.fault, error) {
            (Fault::GivesUp, CollectiveError::Aborted { by, reason, .. }) => {
                assert_eq!(
                    (*by, reason.as_str()),
                    (Some(holder(story.odd)), REASON),
                    "rank {rank}: {story:?}"
                );
            }
            (Fault::GivesUp, other) => panic!("rank {rank} is told {other}: {story:?}"),
            (Fault::Dies | Fault::DiesWithin | Fault::FallsSilent, error) => {
                assert_eq!(
                    error.culprit(),
                    Some(holder(story.odd)),
                    "rank {rank} is told {error}: {story:?}"
                );
            }
        }
        let first = calls.iter().position(|(result, _)| result.is_err()).unwrap_or(calls.len());
        for (result, _) in &calls[first..] {
            assert_eq!(result.as_ref().err(), Some(error), "rank {rank}, a later call: {story:?}");
        }
    }
}
