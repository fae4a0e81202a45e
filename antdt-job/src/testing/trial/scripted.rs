//! What a history has the policy decide.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_controller::policy::{Decision, ProposedAction};
use antdt_controller::{Policy, RestartBudget};
use antdt_core::{ClusterView, Holder, JobTime, LocalSteps, NodeActionKind, NodeId, Reason};

use crate::testing::history::Step;

/// The step of the history that the policy is to decide on next.
pub(super) type Wish = Arc<Mutex<Option<Step>>>;

/// Decides what the history says.
#[derive(Debug, Clone)]
pub(super) struct Scripted(pub(super) Wish);

impl Policy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn decide(&mut self, _: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
        let reason = || Reason::Other("the history says so".to_owned());
        let wish = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let live: Vec<_> = view.live_workers().collect();
        match wish {
            Some(Step::Plan { shift, pieces, local_steps, backups }) if !live.is_empty() => {
                let mut sizes: BTreeMap<NodeId, u32> =
                    live.iter().map(|node| (node.id, node.batch_size)).collect();
                let (first, last) = (live[0].id, live[live.len() - 1].id);
                let given = u32::from(shift).min(sizes[&first].saturating_sub(1));
                *sizes.entry(first).or_default() -= given;
                *sizes.entry(last).or_default() += given;
                // One more in the next worker than in one, up to four; never more than samples.
                let micro = |(at, (id, size)): (u32, (&NodeId, &u32))| {
                    (*id, (1 + (u32::from(pieces) + at) % 4).min(*size))
                };
                let accumulation = match view.mode.sums_to_global_batch() && pieces > 0 {
                    true => (0..).zip(&sizes).map(micro).collect(),
                    false => BTreeMap::new(),
                };
                let several = view.mode.local_steps == LocalSteps::Several;
                let most = u32::try_from(live.len()).unwrap_or(1);
                Decision {
                    // None is named at 0, so that there are jobs in which every plan leaves it to the mode.
                    backups: (view.mode.takes_backups() && backups > 0)
                        .then(|| u32::from(backups - 1) % most),
                    batch_sizes: Some(sizes),
                    accumulation,
                    local_steps: several.then_some(u32::from(local_steps)),
                    reasons: vec![reason()],
                    ..Decision::default()
                }
            }
            Some(Step::Restart { worker, drain_ms }) => {
                let others: Vec<_> = live.iter().filter(|node| !node.chief).collect();
                let Some(node) = pick(&others, worker) else { return Decision::nothing(reason()) };
                let drain = Duration::from_millis(drain_ms.into());
                Decision {
                    node_actions: vec![ProposedAction {
                        target: Holder::new(node.id, node.incarnation),
                        kind: NodeActionKind::KillRestart { drain },
                        reason: reason(),
                    }],
                    ..Decision::default()
                }
            }
            Some(_) | None => Decision::nothing(reason()),
        }
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

pub(super) fn pick<T>(of: &[T], which: u8) -> Option<&T> {
    of.get(usize::from(which) % of.len().max(1))
}
