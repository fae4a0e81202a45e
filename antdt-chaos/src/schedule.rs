//! When what goes wrong: a function of a seed, pure, without knowledge of a job.
//!
//! A [`ChaosSchedule`] says which [`ChaosFault`]s begin and end by a moment. The driver chooses the victim of a fault, and takes the
//! fault's [`pick`](Fault::pick) among those that live then: a schedule can be repeated, the job's answer to it cannot.

use std::time::Duration;

use antdt_core::{DetRng, Seed};
use serde::{Deserialize, Serialize};

use super::kind::{ChaosKind, Shared};

/// Settings from which a schedule of faults is drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChaosPlan {
    /// Seed of the schedule: the same settings and seed give the same schedule.
    pub seed: u64,
    /// Kinds of faults that occur in the schedule.
    pub kinds: Vec<ChaosKind>,
    /// Mean time between the starts of two faults.
    pub mtbf: Duration,
    /// Length of the schedule: all faults begin within this time.
    pub lasting: Duration,
}

/// A scheduled fault.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChaosFault {
    /// Number of the fault in the schedule, from 0.
    pub number: u32,
    /// Kind of the fault.
    pub kind: ChaosKind,
    /// Time from the start of the schedule to the start of the fault.
    pub at: Duration,
    /// Duration of the fault; zero for one without a duration.
    pub lasts: Duration,
    /// Random number by which the node that the fault hits is chosen among the live ones.
    pub pick: u64,
    /// Strength of the fault, from 0 to 1.
    pub strength: f64,
}

/// A step of a schedule: a fault begins or ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChaosStep {
    /// The fault begins.
    Begin(ChaosFault),
    /// The fault, which has a duration, ends.
    End(ChaosFault),
}

/// The faults of a job, in order of time.
#[derive(Debug, Clone, PartialEq)]
pub struct ChaosSchedule {
    faults: Vec<ChaosFault>,
    /// Steps that are not due yet, the latest first.
    steps: Vec<(Duration, ChaosStep)>,
}

impl ChaosSchedule {
    /// Draws a schedule. Every kind occurs once before one occurs again. Faults that affect the same disk, the
    /// clock, the calls to the master or the master itself never overlap: the later one begins when the
    /// earlier one has ended.
    pub fn draw(plan: &ChaosPlan) -> Self {
        let rng = &mut Seed(plan.seed).derive("faults").rng();
        let (mut faults, mut busy) = (Vec::new(), Vec::new());
        let (mut now, mut round) = (Duration::ZERO, Vec::new());
        while !plan.kinds.is_empty() && !plan.mtbf.is_zero() {
            now = now.saturating_add(waiting(plan.mtbf, rng));
            if now >= plan.lasting {
                break;
            }
            if round.is_empty() {
                round = plan.kinds.clone();
            }
            let kind = round.swap_remove(index(round.len(), rng));
            let lasts = match kind.lasts() {
                None => Duration::ZERO,
                Some((from, to)) => from + (to - from).mul_f64(rng.unit()),
            };
            let at = kind.shared().map_or(now, |shared| take(&mut busy, shared, now, lasts));
            let number = u32::try_from(faults.len()).unwrap_or(u32::MAX);
            faults.push(ChaosFault { number, kind, at, lasts, pick: rng.next_u64(), strength: rng.unit() });
        }
        let begins = faults.iter().map(|fault| (fault.at, ChaosStep::Begin(*fault)));
        let lasting = faults.iter().filter(|fault| !fault.lasts.is_zero());
        let ends = lasting.map(|fault| (fault.at + fault.lasts, ChaosStep::End(*fault)));
        // An end goes before a beginning at the same moment, which may wait for it.
        let mut steps: Vec<(Duration, ChaosStep)> = ends.chain(begins).collect();
        steps.sort_by_key(|(at, _)| *at);
        steps.reverse();
        Self { faults, steps }
    }

    /// Returns all faults, in the order in which they were drawn.
    pub fn faults(&self) -> &[ChaosFault] {
        &self.faults
    }

    /// Returns the time at which the next step is due; `None` after the last.
    pub fn next(&self) -> Option<Duration> {
        self.steps.last().map(|(at, _)| *at)
    }

    /// Removes and returns a step that is due at `now`; `None` if there is none.
    pub fn due(&mut self, now: Duration) -> Option<ChaosStep> {
        self.steps.pop_if(|(at, _)| *at <= now).map(|(_, step)| step)
    }
}

/// The moment from `now` on at which a shared thing is free, which is taken for so long.
fn take(busy: &mut Vec<(Shared, Duration)>, shared: Shared, now: Duration, lasts: Duration) -> Duration {
    let at = busy.iter().find(|(what, _)| *what == shared).map_or(now, |(_, until)| now.max(*until));
    busy.retain(|(what, _)| *what != shared);
    busy.push((shared, at + lasts));
    at
}

/// An exponential time.
fn waiting(mean: Duration, rng: &mut DetRng) -> Duration {
    mean.mul_f64(-(1.0 - rng.unit()).ln())
}

fn index(len: usize, rng: &mut DetRng) -> usize {
    usize::try_from(rng.below(len as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn plans() -> impl Strategy<Value = ChaosPlan> {
        let kinds = proptest::sample::subsequence(ChaosKind::ALL.to_vec(), 1..=ChaosKind::ALL.len());
        (any::<u64>(), kinds, 1_u64..60_000, 0_u64..600_000).prop_map(|(seed, kinds, mtbf, lasting)| {
            ChaosPlan {
                seed,
                kinds,
                mtbf: Duration::from_millis(mtbf.max(lasting / 500)),
                lasting: Duration::from_millis(lasting),
            }
        })
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_faults_within_their_time_and_of_their_kinds(plan in plans()) {
            let schedule = ChaosSchedule::draw(&plan);
            prop_assert_eq!(&schedule, &ChaosSchedule::draw(&plan));
            for fault in schedule.faults() {
                prop_assert!(plan.kinds.contains(&fault.kind));
                prop_assert!(fault.kind.shared().is_some() || fault.at < plan.lasting);
                let (from, to) = fault.kind.lasts().unwrap_or_default();
                prop_assert!(from <= fault.lasts && fault.lasts <= to);
            }
        }

        #[test]
        fn every_kind_occurs_before_one_occurs_again(plan in plans()) {
            let mut counts: BTreeMap<ChaosKind, u32> = plan.kinds.iter().map(|kind| (*kind, 0)).collect();
            for fault in ChaosSchedule::draw(&plan).faults() {
                *counts.get_mut(&fault.kind).unwrap() += 1;
                let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
                prop_assert!(most - least <= 1, "{counts:?}");
            }
        }

        #[test]
        fn steps_come_in_order_and_a_fault_ends_once_after_it_began(plan in plans(), stride in 1_u64..5_000) {
            let mut schedule = ChaosSchedule::draw(&plan);
            let (mut now, mut last) = (Duration::ZERO, Duration::ZERO);
            let (mut begun, mut ended, mut shared) = (Vec::new(), Vec::new(), Vec::new());
            while let Some(next) = schedule.next() {
                now = now.max(next).saturating_add(Duration::from_millis(stride));
                while let Some(step) = schedule.due(now) {
                    let at = match step {
                        ChaosStep::Begin(fault) => {
                            if let Some(of) = fault.kind.shared() {
                                prop_assert!(!shared.contains(&of), "{fault:?}");
                                shared.extend((!fault.lasts.is_zero()).then_some(of));
                            }
                            begun.push(fault.number);
                            fault.at
                        }
                        ChaosStep::End(fault) => {
                            prop_assert!(begun.contains(&fault.number) && !ended.contains(&fault.number));
                            shared.retain(|of| Some(*of) != fault.kind.shared());
                            ended.push(fault.number);
                            fault.at + fault.lasts
                        }
                    };
                    prop_assert!(last <= at && at <= now);
                    last = at;
                }
            }
            prop_assert_eq!(begun.len(), schedule.faults().len());
            let lasting = schedule.faults().iter().filter(|fault| !fault.lasts.is_zero()).count();
            prop_assert_eq!(ended.len(), lasting);
        }
    }

    #[test]
    fn faults_are_as_often_as_was_asked() {
        let kinds = ChaosKind::ALL.to_vec();
        let (mtbf, lasting) = (Duration::from_secs(15), Duration::from_secs(15 * 4_000));
        let drawn = ChaosSchedule::draw(&ChaosPlan { seed: 3, kinds, mtbf, lasting }).faults().len();
        // Four standard deviations of a Poisson count of 4,000.
        assert!((3_750..=4_250).contains(&drawn), "{drawn}");
    }
}
