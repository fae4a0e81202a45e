//! A transport between threads of one process, for tests and single-process jobs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use antdt_core::{InvalidValue, Rank};

use super::{Exchange, Incoming, Outgoing, Sink, Transport};
use crate::error::CollectiveError;
use crate::frame::{Tag, Timeliness, notice};
use crate::group::{Group, Member};
use crate::runtime::abort::{AbortHandle, Wake};

/// Messages that wait between two members at most; a sender beyond that waits its turn.
const QUEUE_MAX: usize = 4;

type Queue = VecDeque<(Tag, Vec<u8>)>;

#[derive(Debug, Default)]
struct Mailboxes {
    // By sender and receiver.
    queues: BTreeMap<(Rank, Rank), Queue>,
    // By rank: the rank that it waits for.
    waits: Vec<Option<Rank>>,
    gone: Vec<bool>,
    failed: Option<(Rank, CollectiveError)>,
}

impl Mailboxes {
    // The rank that `me` waits for in the end: `peer` may itself wait for another.
    fn culprit(&self, me: Rank, peer: Rank) -> Rank {
        let mut last = peer;
        for _ in &self.waits {
            match self.waits[last.0 as usize] {
                Some(next) if next != me => last = next,
                _ => return last,
            }
        }
        // They wait for each other in a circle.
        peer
    }
}

#[derive(Debug, Default)]
struct Hub {
    mailboxes: Mutex<Mailboxes>,
    changed: Condvar,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Mailboxes> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Hub {
    fn wake(&self) {
        // Taking the lock orders the wake-up after a sleeper's last look at the abort handle.
        drop(self.lock());
        self.changed.notify_all();
    }
}

/// A [`Transport`] for members that are threads of one process.
#[derive(Debug)]
pub struct MemTransport {
    group: Group,
    hub: Arc<Hub>,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
}

impl MemTransport {
    /// Returns one transport for each member of a group, in order of rank. `aborts` holds each member's abort
    /// handle.
    ///
    /// # Errors
    /// If the members are not a valid group, or `aborts` does not hold one handle for each member.
    pub fn group(
        membership: antdt_core::MembershipVersion,
        members: &[Member],
        aborts: &[AbortHandle],
    ) -> Result<Vec<Self>, InvalidValue> {
        if aborts.len() != members.len() {
            return Err(InvalidValue::new(
                "aborts",
                aborts.len(),
                format!("one for each of {}", members.len()),
            ));
        }
        let hub = Arc::new(Hub::default());
        hub.lock().gone = vec![false; members.len()];
        hub.lock().waits = vec![None; members.len()];
        (0_u32..)
            .zip(aborts)
            .map(|(rank, abort)| {
                let group = Group::new(membership, members.to_vec(), Rank(rank))?;
                let sleeper: Arc<dyn Wake> = hub.clone();
                abort.wakes(Arc::downgrade(&sleeper));
                Ok(Self { group, hub: hub.clone(), abort: abort.clone(), failed: None })
            })
            .collect()
    }

    fn run(
        &self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        let me = self.group.me();
        let mut sent = vec![false; sends.len()];
        let mut received = vec![false; receives.len()];
        let mut mailboxes = self.hub.lock();
        loop {
            mailboxes.waits[me.0 as usize] = None;
            if let Some(error) = self.abort.error() {
                return Err(error);
            }
            if let Some((by, error)) = mailboxes.failed.as_ref().filter(|(by, _)| *by != me) {
                return Err(notice::told(self.group.holder(*by), error));
            }
            let mut progress = false;
            for (send, sent) in sends.iter().zip(&mut sent).filter(|(_, sent)| !**sent) {
                let peer = send.to;
                if mailboxes.gone[peer.0 as usize] {
                    return Err(CollectiveError::PeerClosed { peer: self.group.holder(peer), at: call.tag });
                }
                let queue = mailboxes.queues.entry((me, peer)).or_default();
                if queue.len() < QUEUE_MAX {
                    queue.push_back((call.tag, send.bytes.to_vec()));
                    *sent = true;
                    progress = true;
                }
            }
            for (receive, received) in
                receives.iter_mut().zip(&mut received).filter(|(_, received)| !**received)
            {
                let queue = mailboxes.queues.entry((receive.from, me)).or_default();
                let Some((tag, bytes)) = queue.pop_front() else {
                    if mailboxes.gone[receive.from.0 as usize] {
                        let peer = self.group.holder(receive.from);
                        return Err(CollectiveError::PeerClosed { peer, at: call.tag });
                    }
                    continue;
                };
                progress = true;
                if self.accept(call, &tag, bytes.len(), receive)? {
                    match &mut receive.sink {
                        Sink::Place(place) => place.copy_from_slice(&bytes),
                        Sink::Fold(fold) => fold.fold(0, &bytes),
                    }
                    *received = true;
                }
            }
            for ((from, _), queue) in mailboxes.queues.iter().filter(|((_, to), _)| *to == me) {
                // Nothing may be due from it, and it may still mean another call.
                if let Some((tag, bytes)) = queue.front()
                    && matches!(call.tag.judge(tag), Timeliness::Different | Timeliness::NewerMembership)
                {
                    return Err(self.refused(call, tag, bytes.len(), *from));
                }
            }
            if progress {
                self.hub.changed.notify_all();
            }
            if sent.iter().chain(&received).all(|done| *done) {
                return Ok(());
            }
            if progress {
                continue;
            }
            let late = receives.iter().zip(&received).find(|(_, done)| !**done);
            let late = late.map(|(receive, _)| (receive.from, receive.sink.len_bytes()));
            let stuck =
                || sends.iter().zip(&sent).find(|(_, done)| !**done).map(|(s, _)| (s.to, s.bytes.len()));
            let (peer, missing) = late.or_else(stuck).expect("something is unfinished");
            mailboxes.waits[me.0 as usize] = Some(peer);
            let left = call.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let culprit = mailboxes.culprit(me, peer);
                return Err(CollectiveError::Timeout {
                    peer: self.group.holder(culprit),
                    at: call.tag,
                    waited: call.started.elapsed(),
                    missing: missing as u64,
                });
            }
            mailboxes =
                self.hub.changed.wait_timeout(mailboxes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    // Whether the message is the expected one; old ones are dropped.
    fn accept(
        &self,
        call: &Exchange,
        tag: &Tag,
        len: usize,
        receive: &Incoming<'_>,
    ) -> Result<bool, CollectiveError> {
        match call.tag.judge(tag) {
            Timeliness::Expected if len == receive.sink.len_bytes() => Ok(true),
            Timeliness::Old => Ok(false),
            Timeliness::NewerMembership
            | Timeliness::Expected
            | Timeliness::Early
            | Timeliness::Different => Err(self.refused(call, tag, len, receive.from)),
        }
    }

    fn refused(&self, call: &Exchange, tag: &Tag, len: usize, from: Rank) -> CollectiveError {
        if call.tag.judge(tag) == Timeliness::NewerMembership {
            return CollectiveError::StaleMembership { ours: call.tag.membership, theirs: tag.membership };
        }
        let (theirs, ours) = (format!("{tag} ({len} bytes)"), call.tag.to_string());
        CollectiveError::Mismatch { peer: self.group.holder(from), theirs, ours }
    }
}

impl Transport for MemTransport {
    fn group(&self) -> &Group {
        &self.group
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.run(call, sends, receives).map_err(|error| self.fail(error))
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        let me = self.group.me();
        let error = self.failed.get_or_insert(error).clone();
        self.hub.lock().failed.get_or_insert_with(|| (me, error.clone()));
        self.hub.changed.notify_all();
        error
    }
}

impl Drop for MemTransport {
    fn drop(&mut self) {
        self.hub.lock().gone[self.group.me().0 as usize] = true;
        self.hub.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use antdt_core::MembershipVersion;

    use super::*;
    use crate::frame::Operation;
    use crate::runtime::testing::{PATIENT, holder, mem_members};

    fn call(round: u32, patience: Duration) -> Exchange {
        let started = Instant::now();
        let tag = Tag { membership: MembershipVersion(1), sequence: 1, round, operation: Operation::CONNECT };
        Exchange { tag, started, deadline: started + patience, stall: PATIENT }
    }

    #[test]
    fn a_silent_rank_is_named_and_not_one_that_waits_for_it() {
        // Rank 2 says nothing.
        let (mut transports, _aborts) = mem_members(3);
        let [first, second, _silent] = &mut transports[..] else { panic!("not three members") };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut place = [0];
                let incoming = Incoming { from: Rank(2), sink: Sink::Place(&mut place) };
                let outgoing = Outgoing { to: Rank(0), bytes: &[1] };
                second.exchange(&call(0, PATIENT), &[outgoing], &mut [incoming]).unwrap_err()
            });
            let mut place = [0];
            let mut wait = |round, patience| {
                let incoming = Incoming { from: Rank(1), sink: Sink::Place(&mut place) };
                first.exchange(&call(round, patience), &[], &mut [incoming])
            };
            // With its message comes that the second one waits itself.
            wait(0, PATIENT).unwrap();
            let error = wait(1, Duration::from_millis(10)).unwrap_err();
            assert_eq!(error.culprit(), Some(holder(2)), "{error}");
        });
    }
}
