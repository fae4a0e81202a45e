//! Checks that an order to kill or to give up a node only affects the incarnation that it was issued for: one
//! that was judged, that was silent, that said that it does not get on, that lost a server and heard nothing
//! of it, that never registered or never began, or without which the job goes back. A new incarnation is launched once, when
//! the earlier one has ended or the job has gone back without it.
//!
//! Source: our design; actions name the incarnation that was judged, so that a late or repeated one cannot
//! hit its replacement.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_controller::RestartConfig;
use antdt_core::{Capabilities, Holder, Incarnation, JobTime, NodeId, Role};
use antdt_job::{EventKind, HeadAnswer, HeadEffect, HeadEvent, Note};

use super::Invariant;
use crate::happening::Happening;
use crate::setup::Setup;

#[derive(Debug, Clone, Copy)]
struct Life {
    incarnation: Incarnation,
    launched: JobTime,
    /// When it was last heard of; `None` before it registered.
    heard: Option<JobTime>,
    /// It said that it does not get on.
    stalled: bool,
    /// An order to restart it stands.
    ordered: bool,
    /// It saw the end of the data.
    finished: bool,
    /// It asked for a place again, having lost a server, and has none since.
    doubted: Option<JobTime>,
    /// The job has gone back since it was let in.
    outdated: bool,
    /// The job goes back without it: another life follows, whenever the news of its end comes.
    undone: bool,
    /// Its platform takes it back; and a checkpoint is whole since the master heard of that.
    preempted: bool,
    taken_back: bool,
    /// It left without the end of the data, or its end is known.
    over: bool,
    /// Its process has ended, or it never was one.
    ended: bool,
}

impl Life {
    const fn begun(at: JobTime, holder: Holder) -> Self {
        Self {
            incarnation: holder.incarnation,
            launched: at,
            heard: None,
            stalled: false,
            ordered: false,
            finished: false,
            doubted: None,
            outdated: false,
            undone: false,
            preempted: false,
            taken_back: false,
            over: false,
            ended: false,
        }
    }
}

/// Checks that a kill order hits only the incarnation that it was issued for; see the [module](self).
#[derive(Debug)]
pub struct RestartNeverHitsTheReplacement {
    silence: Duration,
    mode: Capabilities,
    lives: BTreeMap<NodeId, Life>,
    /// Another master has gone on with the job.
    taken_over: bool,
}

impl RestartNeverHitsTheReplacement {
    /// Returns the invariant for a job with this setup.
    pub fn new(setup: &Setup) -> Self {
        let mode = setup.sync.capabilities();
        Self { silence: setup.silence_limit, mode, lives: BTreeMap::new(), taken_over: false }
    }

    fn life(&mut self, holder: Holder) -> Option<&mut Life> {
        self.lives.get_mut(&holder.node).filter(|life| life.incarnation == holder.incarnation)
    }

    fn launched(&mut self, at: JobTime, holder: Holder) -> Result<(), String> {
        match self.lives.get(&holder.node) {
            None if holder.incarnation == Incarnation(0) => {}
            Some(life) if life.incarnation.next() == holder.incarnation && life.ended => {}
            // A life that was to follow may never have begun when the job went back again.
            Some(life) if life.incarnation < holder.incarnation && life.undone => {}
            None => return Err(format!("{holder} is launched, the first life is 0")),
            Some(life) => {
                let (before, ended) = (life.incarnation, if life.ended { "has" } else { "has not" });
                return Err(format!("{holder} is launched after life {before}, which {ended} ended"));
            }
        }
        self.lives.insert(holder.node, Life::begun(at, holder));
        Ok(())
    }

    /// Notes the first life of a node that the master before wrote down and never launched. The next master ends it before it
    /// launches another one, since it cannot know.
    fn never_began(&mut self, at: JobTime, holder: Holder) {
        let life = Life { undone: true, over: true, ended: true, ..Life::begun(at, holder) };
        self.lives.insert(holder.node, life);
    }

    /// Why a life may be ended, if there is a reason.
    fn is_meant(&self, at: JobTime, holder: Holder) -> bool {
        let Some(life) = self.lives.get(&holder.node) else { return false };
        if holder.incarnation < life.incarnation {
            return true; // It has ended already.
        }
        if holder.incarnation > life.incarnation {
            return life.undone; // It was to follow, and never began.
        }
        let silent = match life.heard {
            Some(heard) => at.since(heard) >= self.silence,
            None => at.since(life.launched) >= RestartConfig::default().starting_limit,
        };
        let cut_off = life.doubted.is_some_and(|since| at.since(since) >= self.silence);
        life.ordered || life.taken_back || life.over || life.undone || life.stalled || silent || cut_off
    }

    /// The job goes back: servers, whose parameters are too new, are started again, and so are workers that have seen the end of the
    /// data. If that is because another master goes on, also workers with the model, and those that it does not know to be there.
    fn goes_back(&mut self, taken_over: bool) {
        for (node, life) in &mut self.lives {
            // One that was being restarted may have been given up with the last word of the master before.
            let unknown = life.heard.is_none() || life.over || life.ordered || self.mode.forms_groups();
            life.outdated = true;
            life.undone |= node.role == Role::Server || life.finished || (taken_over && unknown);
        }
    }

    fn heard(&mut self, at: JobTime, event: &HeadEvent, answer: &HeadAnswer) {
        match event {
            HeadEvent::Register(registration) if matches!(answer, HeadAnswer::Registered { .. }) => {
                if let Some(life) = self.life(registration.info.holder) {
                    life.heard = Some(at);
                }
            }
            HeadEvent::Heartbeat { holder, .. } if matches!(answer, HeadAnswer::Beat(_)) => {
                if let Some(life) = self.life(*holder) {
                    life.heard = Some(at);
                }
            }
            HeadEvent::Stalled { holder, .. } if matches!(answer, HeadAnswer::Noted) => {
                if let Some(life) = self.life(*holder) {
                    life.stalled = true;
                }
            }
            HeadEvent::Preempted(holder) if matches!(answer, HeadAnswer::Noted) => {
                if let Some(life) = self.life(*holder) {
                    life.preempted = true;
                }
            }
            HeadEvent::Leave { holder, end_of_data, .. } => {
                if let Some(life) = self.life(*holder) {
                    life.over |= !end_of_data;
                    life.finished |= end_of_data;
                    // The end that it has seen is undone.
                    life.undone |= *end_of_data && life.outdated;
                }
            }
            HeadEvent::Join { holder, standing } if self.mode.needs_servers() && standing.group.0 > 0 => {
                if let Some(life) = self.life(*holder) {
                    life.doubted.get_or_insert(at);
                }
            }
            HeadEvent::Exited(holder, ..) | HeadEvent::LaunchFailed(holder, _) => {
                if let Some(life) = self.life(*holder) {
                    (life.over, life.ended) = (true, true);
                }
            }
            _ => {}
        }
    }
}

impl Invariant for RestartNeverHitsTheReplacement {
    fn name(&self) -> &'static str {
        "restart_never_hits_the_replacement"
    }

    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Head(event, answer) => self.heard(at, event, answer),
            // With the model in a checkpoint nothing is lost with a node that its platform takes back anyway.
            Happening::Kept(_) => {
                self.lives.values_mut().for_each(|life| life.taken_back |= life.preempted);
            }
            Happening::TakenOver => {
                self.taken_over = true;
                self.goes_back(true);
            }
            Happening::Effect(HeadEffect::Note {
                note: Note::Event { node: None, kind: EventKind::Rollback, .. },
                ..
            }) => self.goes_back(false),
            Happening::Effect(HeadEffect::Joined(holder, _)) => {
                if let Some(life) = self.life(*holder) {
                    (life.doubted, life.outdated) = (None, false);
                }
            }
            Happening::Effect(HeadEffect::Launch(holder)) => return self.launched(at, *holder),
            Happening::Effect(HeadEffect::Note {
                note: Note::Action { kind: "KILL_RESTART", target, .. },
                ..
            }) => {
                let node = target.parse::<NodeId>().map_err(|error| error.to_string())?;
                if let Some(life) = self.lives.get_mut(&node) {
                    life.ordered = true;
                }
            }
            Happening::Effect(HeadEffect::Kill(holder))
                if self.taken_over && !self.lives.contains_key(&holder.node) =>
            {
                self.never_began(at, *holder);
            }
            Happening::Effect(HeadEffect::Kill(holder)) if !self.is_meant(at, *holder) => {
                return Err(format!(
                    "{holder} is killed without an order, a long silence, or a missing start"
                ));
            }
            Happening::Effect(HeadEffect::LedgerLost(holder)) if !self.is_meant(at, *holder) => {
                return Err(format!("{holder} is given up at the ledger while it lives"));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Exit;

    use super::super::testing::{History, action, holder, life, registered};
    use super::*;

    fn history() -> History<RestartNeverHitsTheReplacement> {
        let mut history = History::new(RestartNeverHitsTheReplacement::new(&Setup::default()));
        history.effect(&HeadEffect::Launch(holder(1)));
        let (event, answer) = registered(holder(1), 1, 8);
        history.at(1).head(&event, &answer);
        history
    }

    /// It is ordered to be restarted, killed, and its replacement is there.
    fn replaced() -> History<RestartNeverHitsTheReplacement> {
        let mut history = history();
        history.effect(&action(2, "KILL_RESTART", "worker-1"));
        history.effect(&HeadEffect::LedgerLost(holder(1))).effect(&HeadEffect::Kill(holder(1)));
        let exited = HeadEvent::Exited(holder(1), Exit::Killed { signal: 9 }, vec![]);
        history.at(3).head(&exited, &HeadAnswer::Noted);
        history.effect(&HeadEffect::Launch(life(1, 1)));
        let (event, answer) = registered(life(1, 1), 1, 8);
        history.at(4).head(&event, &answer);
        history
    }

    #[test]
    fn an_order_ends_the_life_that_it_judged_and_no_other() {
        replaced().effect(&HeadEffect::Kill(holder(1))).holds();
        replaced().effect(&HeadEffect::Kill(life(1, 1))).fails("worker-1#1 is killed without an order");
        replaced().effect(&HeadEffect::LedgerLost(life(1, 1))).fails("given up at the ledger while it lives");
    }

    #[test]
    fn another_master_ends_lives_with_the_model_and_a_job_that_goes_back_no_worker_but_its_servers() {
        let begun = |sync: &str| {
            let setup = Setup { sync: sync.parse().unwrap(), servers: 1, ..Setup::default() };
            let mut history = History::new(RestartNeverHitsTheReplacement::new(&setup));
            let server = Holder::new(NodeId::server(0), Incarnation(0));
            for holder in [holder(1), server] {
                let (event, answer) = registered(holder, 1, 8);
                history.effect(&HeadEffect::Launch(holder)).head(&event, &answer);
            }
            (history, server)
        };
        let back = HeadEffect::Note {
            at: JobTime::ZERO,
            note: Note::Event { node: None, kind: EventKind::Rollback, text: "back".to_owned() },
        };
        let (mut history, server) = begun("ps-bsp");
        history.effect(&back).effect(&HeadEffect::Kill(server));
        // The life after the next one: that one may never have begun.
        history.effect(&HeadEffect::Launch(Holder::new(server.node, Incarnation(2)))).holds();
        history.effect(&HeadEffect::Kill(holder(1))).fails("worker-1#0 is killed without an order");
        let (mut history, _) = begun("ps-bsp");
        history.saw(&Happening::TakenOver);
        history.effect(&HeadEffect::Kill(holder(1))).fails("worker-1#0 is killed without an order");
        let (mut history, _) = begun("allreduce");
        history.saw(&Happening::TakenOver).effect(&HeadEffect::Kill(holder(1)));
        history.effect(&HeadEffect::Launch(life(1, 1))).holds();
        history.effect(&HeadEffect::Kill(life(1, 1))).fails("worker-1#1 is killed without an order");
    }

    /// A server is added; its master writes that down, and dies before it launches it.
    #[test]
    fn another_master_ends_the_first_life_of_a_node_that_never_began_and_launches_the_next_one() {
        let server = |life| Holder::new(NodeId::server(1), Incarnation(life));
        history().effect(&HeadEffect::Kill(server(0))).fails("server-1#0 is killed without an order");
        let mut history = history();
        history.saw(&Happening::TakenOver).effect(&HeadEffect::Kill(server(0)));
        history.effect(&HeadEffect::Launch(server(1))).holds();
        history.effect(&HeadEffect::Kill(server(1))).fails("server-1#1 is killed without an order");
    }

    #[test]
    fn a_life_that_is_silent_may_be_killed() {
        history().at(10).effect(&HeadEffect::Kill(holder(1))).fails("is killed without an order");
        history().at(11).effect(&HeadEffect::Kill(holder(1))).holds();
    }

    #[test]
    fn a_node_has_one_life_at_a_time() {
        history().effect(&HeadEffect::Launch(life(1, 1))).fails("after life 0, which has not ended");
        replaced().effect(&HeadEffect::Launch(life(1, 1))).fails("worker-1#1 is launched after life 1");
    }
}
