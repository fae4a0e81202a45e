//! [`Regroup`]: programs of the user's that take no part in the protocol. Their ranks talk to each other in ways that are not known here, and
//! none goes on without another: when one fails, all are ended and started again.
//!
//! Source: the agent of torchrun, for its terms; our design.

use antdt_core::{Exit, Holder, JobTime, NodeStatus, Role};

use super::lives::{ended, last_words};
use super::{EventKind, Head, HeadEffect};

/// The group of such programs.
#[derive(Debug, Default)]
pub(super) struct Regroup {
    /// Times that all were started again.
    restarts: u32,
    /// One has failed, and the others are to end.
    is_ending: bool,
}

impl Head {
    /// The process of a program ended that never registered.
    pub(super) fn program_ended(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
        if !self.regroup.is_ending {
            if exit == Exit::Finished {
                self.finish_quietly(now, holder);
                return;
            }
            // What the others say from here on follows from it.
            self.core.event(now, Some(holder.node), EventKind::Lost, ended(holder, exit, tail));
            let limit = self.core.config.max_restarts;
            let is_final = exit == Exit::Unretryable { code: Exit::CODE_NEVER };
            if is_final || self.regroup.restarts == limit {
                let why = match limit {
                    _ if is_final => "by which it says that starting it again cannot help".to_owned(),
                    0 => "no program is started again with --max-restarts 0".to_owned(),
                    _ => format!("all programs were started again {limit} times already (--max-restarts)"),
                };
                self.core.fail(format!("{} ended: {exit}; {why}{}", holder.node, last_words(tail)));
                return;
            }
            self.regroup = Regroup { restarts: self.regroup.restarts + 1, is_ending: true };
            let reason =
                format!("{holder} ended ({exit}), and programs of one group go on together or not at all");
            self.core.action(now, "RESTART", "all".to_owned(), reason);
            let others = self.programs().into_iter().filter(|other| !self.core.nodes[other.node].exited);
            self.core.effects.extend(others.map(HeadEffect::Kill).collect::<Vec<_>>());
        }
        self.core.set_status(holder.node, NodeStatus::Lost);
        if self.programs().iter().all(|program| self.core.nodes[program.node].exited) {
            self.regroup.is_ending = false;
            for program in self.programs() {
                let next = self.core.succeed(now, program);
                self.core.launch(now, next);
            }
        }
    }

    /// The newest life of each.
    fn programs(&self) -> Vec<Holder> {
        let workers = self.core.nodes.of_role(Role::Worker);
        workers.map(|(id, node)| Holder::new(id, node.incarnation)).collect()
    }
}
