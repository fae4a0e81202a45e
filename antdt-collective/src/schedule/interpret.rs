//! An interpreter that runs the schedules of all ranks in memory. It proves that they fit together, and gives
//! tests the expected results.

use std::collections::BTreeMap;

use antdt_core::Rank;

use super::{Schedule, Span, Step};
use crate::element::Element;
use crate::kernel;
use crate::op::ReduceOp;

/// A rule of [`Schedule`] that the schedules of a group break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A message has a send without a receive or the reverse, or the two differ in length.
    #[error("round {round}: {from} sends {sent:?} elements to {to}, which receives {received:?}")]
    Unmatched {
        /// Index of the round.
        round: usize,
        /// Rank that sends the message.
        from: Rank,
        /// Rank that receives the message.
        to: Rank,
        /// Number of elements sent; `None` if there is no send.
        sent: Option<usize>,
        /// Number of elements received; `None` if there is no receive.
        received: Option<usize>,
    },
    /// Two messages of a round go to, or come from, the same peer.
    #[error("round {round}: rank {me} has two messages with rank {peer} in one direction")]
    Twice {
        /// Index of the round.
        round: usize,
        /// Rank whose schedule is at fault.
        me: Rank,
        /// Rank that the two messages go to or come from.
        peer: Rank,
    },
    /// A received span overlaps another span of the round in a way that [`Schedule`] does not allow.
    #[error("round {round}: rank {me} receives into {span:?} while it uses {other:?}")]
    Overlap {
        /// Index of the round.
        round: usize,
        /// Rank whose schedule is at fault.
        me: Rank,
        /// Span that the rank receives into.
        span: Span,
        /// Other span of the round that it overlaps.
        other: Span,
    },
    /// A span is empty or ends beyond the buffer, or the peer of a step does not exist or is the rank itself.
    #[error("round {round}: rank {me} has the impossible step {step:?}")]
    Impossible {
        /// Index of the round.
        round: usize,
        /// Rank whose schedule is at fault.
        me: Rank,
        /// The step that breaks the rule.
        step: Step,
    },
}

/// Runs `schedules[r]` on `buffers[r]` for all ranks `r`, round by round. Checks every rule of [`Schedule`].
///
/// # Errors
/// If the schedules break a rule. The buffers then hold the results of the rounds before.
///
/// # Panics
/// If there are not as many buffers as schedules.
pub fn interpret<E: Element>(
    schedules: &[Schedule],
    buffers: &mut [Vec<E>],
    op: ReduceOp,
) -> Result<(), ScheduleError> {
    assert_eq!(schedules.len(), buffers.len(), "one buffer per schedule");
    let world = u32::try_from(schedules.len()).unwrap_or(u32::MAX);
    let rounds = schedules.iter().map(|schedule| schedule.rounds.len()).max().unwrap_or(0);
    for round in 0..rounds {
        let mut messages = BTreeMap::new();
        for (me, schedule) in (0..world).map(Rank).zip(schedules) {
            let steps = schedule.rounds.get(round).map_or(&[][..], Vec::as_slice);
            check(round, me, world, buffers[me.0 as usize].len(), steps)?;
            for step in steps {
                if let Step::Send { to, span } = step {
                    messages.insert((me, *to), buffers[me.0 as usize][span.range()].to_vec());
                }
            }
        }
        for (me, schedule) in (0..world).map(Rank).zip(schedules) {
            for step in schedule.rounds.get(round).map_or(&[][..], Vec::as_slice) {
                let (from, span, sends) = parts(*step);
                if sends {
                    continue;
                }
                let sent = messages.remove(&(from, me));
                let sent_len = sent.as_ref().map(Vec::len);
                let Some(mut message) = sent.filter(|message| message.len() == span.len) else {
                    let (sent, received) = (sent_len, Some(span.len));
                    return Err(ScheduleError::Unmatched { round, from, to: me, sent, received });
                };
                let into = &mut buffers[me.0 as usize][span.range()];
                match step {
                    Step::Send { .. } => {}
                    Step::RecvCopy { .. } => into.copy_from_slice(&message),
                    Step::RecvReduce { .. } => kernel::reduce(op, into, &message),
                    Step::RecvReduceLeft { .. } => {
                        kernel::reduce(op, &mut message, into);
                        into.copy_from_slice(&message);
                    }
                }
            }
        }
        if let Some(((from, to), message)) = messages.pop_first() {
            let sent = Some(message.len());
            return Err(ScheduleError::Unmatched { round, from, to, sent, received: None });
        }
    }
    Ok(())
}

/// Checks the rules of [`Schedule`] that concern one round of one rank.
///
/// # Errors
/// If it breaks a rule of [`Schedule`].
pub fn check(round: usize, me: Rank, world: u32, len: usize, steps: &[Step]) -> Result<(), ScheduleError> {
    for (index, step) in steps.iter().enumerate() {
        let (peer, span, sends) = parts(*step);
        let fits = span.start.checked_add(span.len).is_some_and(|end| end <= len);
        if peer == me || peer.0 >= world || span.len == 0 || !fits {
            return Err(ScheduleError::Impossible { round, me, step: *step });
        }
        for other in &steps[..index] {
            let (other_peer, other_span, other_sends) = parts(*other);
            if (peer, sends) == (other_peer, other_sends) {
                return Err(ScheduleError::Twice { round, me, peer });
            }
            let allowed = match (sends, other_sends) {
                (true, true) => true,
                (true, false) => other.folds(),
                (false, true) => step.folds(),
                (false, false) => step.folds() && other.folds() && span == other_span,
            };
            if !allowed && span.overlaps(other_span) {
                return Err(ScheduleError::Overlap { round, me, span, other: other_span });
            }
        }
    }
    Ok(())
}

const fn parts(step: Step) -> (Rank, Span, bool) {
    match step {
        Step::Send { to, span } => (to, span, true),
        Step::RecvCopy { from, span }
        | Step::RecvReduce { from, span }
        | Step::RecvReduceLeft { from, span } => (from, span, false),
    }
}
