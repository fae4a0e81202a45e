//! [`Members`]: the nodes of a job, each with the stage of its life, folded from the notes of the job's head.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{BatchReport, JobTime, NodeId, Plan, PlanVersion, Role};
use antdt_job::{EventKind, Note};

/// Plans that a node may still be about to follow: the newest is in force after a few steps.
const PLANS_MAX: usize = 16;

/// Share of the newest batch in the pace of a worker: about five batches make it up.
const PACE_NEWEST: f64 = 0.2;

/// Stage of a node's newest life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It is launched, and has not joined.
    Starting,
    /// It takes part.
    Running,
    /// The platform takes it back.
    Leaving,
    /// It has ended before the job, and another life follows.
    Lost,
    /// It has seen the end of the data.
    Finished,
    /// The job goes on without it.
    Left,
}

impl Stage {
    /// All stages, in the order of the metrics.
    pub(super) const ALL: [Self; 6] =
        [Self::Starting, Self::Running, Self::Leaving, Self::Lost, Self::Finished, Self::Left];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Leaving => "leaving",
            Self::Lost => "lost",
            Self::Finished => "finished",
            Self::Left => "left",
        }
    }
}

/// What a node waits for until it joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// Its first life starts.
    Startup,
    /// A life was lost, and the next one starts.
    Recovery,
}

/// One node of the job.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) stage: Stage,
    /// Number of the life, from 0.
    pub(super) life: u32,
    /// Since when it is absent, and why; `None` while it takes part and after its end.
    pub(super) absent: Option<(JobTime, Absence)>,
    pub(super) straggler: bool,
    /// Links from it that are slow.
    slow_links: u32,
    /// Samples of its batches by the plan in force.
    pub(super) batch_size: Option<u32>,
    /// Seconds of computing per sample, of late.
    pub(super) pace: Option<f64>,
    /// Samples that it has reported.
    pub(super) samples: u64,
    /// Host on which the launcher has placed it.
    pub(super) host: Option<String>,
    /// Version of the view with the last change.
    pub(super) changed: u64,
}

impl Member {
    const fn new() -> Self {
        Self {
            stage: Stage::Starting,
            life: 0,
            absent: None,
            straggler: false,
            slow_links: 0,
            batch_size: None,
            pace: None,
            samples: 0,
            host: None,
            changed: 0,
        }
    }

    /// Samples per second of computing.
    pub(super) fn speed(&self) -> Option<f64> {
        self.pace.filter(|pace| *pace > 0.0).map(|pace| 1.0 / pace)
    }
}

/// What a note has changed besides the node itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum MemberChange {
    /// A life of it was lost.
    Lost,
    /// Another life than the first was launched.
    Restarted,
    /// It was absent for so long, and is so no more; `joined` if it takes part now.
    Absent {
        /// How long.
        lasted: Duration,
        /// Why.
        why: Absence,
        /// Whether it takes part now; otherwise the job goes on without it.
        joined: bool,
    },
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Members {
    nodes: BTreeMap<NodeId, Member>,
    plans: BTreeMap<PlanVersion, Plan>,
}

impl Members {
    /// The processes of the job are started again: all its nodes begin anew.
    pub(super) fn restart(&mut self, at: JobTime) -> Vec<(NodeId, MemberChange)> {
        self.plans.clear();
        let begin_anew = |(node, member): (&NodeId, &mut Member)| {
            let absent = member.absent.take();
            *member = Member { samples: member.samples, life: member.life, ..Member::new() };
            let (since, why) = absent?;
            Some((*node, MemberChange::Absent { lasted: at.since(since), why, joined: false }))
        };
        self.nodes.iter_mut().filter_map(begin_anew).collect()
    }

    pub(super) fn of_role(&self, role: Role) -> impl Iterator<Item = (NodeId, &Member)> {
        let of_role = self.nodes.iter().filter(move |(node, _)| node.role == role);
        of_role.map(|(node, member)| (*node, member))
    }

    /// All nodes, workers first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.of_role(Role::Worker).chain(self.of_role(Role::Server))
    }

    /// Median speed of the workers that take part.
    pub(super) fn median_speed(&self) -> Option<f64> {
        let running = self.of_role(Role::Worker).filter(|(_, member)| member.stage == Stage::Running);
        let mut speeds: Vec<f64> = running.filter_map(|(_, member)| member.speed()).collect();
        let middle = speeds.len().checked_sub(1)? / 2;
        let (_, median, _) = speeds.select_nth_unstable_by(middle, f64::total_cmp);
        Some(*median)
    }

    /// The launcher has placed a node.
    pub(super) fn placed(&mut self, node: NodeId, host: &str, version: u64) {
        if let Some(member) = self.nodes.get_mut(&node).filter(|member| member.host.as_deref() != Some(host))
        {
            (member.host, member.changed) = (Some(host.to_owned()), version);
        }
    }

    /// A note of the head, which makes `version` of the view.
    pub(super) fn note(&mut self, at: JobTime, note: &Note, version: u64) -> Vec<(NodeId, MemberChange)> {
        match note {
            Note::Launched(holder) => self.launched(at, (holder.node, holder.incarnation.0), version),
            Note::Event { node: Some(node), kind, .. } => self.event(at, *node, *kind, version),
            Note::Published(plan) => {
                self.plans.insert(plan.version, plan.clone());
                while self.plans.len() > PLANS_MAX {
                    self.plans.pop_first();
                }
                Vec::new()
            }
            Note::Applied(node, plan) => {
                let planned = self.plans.get(plan).and_then(|plan| plan.batch_sizes.get(node)).copied();
                if let (Some(size), Some(member)) = (planned, self.nodes.get_mut(node)) {
                    (member.batch_size, member.changed) = (Some(size), version);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn launched(
        &mut self,
        at: JobTime,
        (node, life): (NodeId, u32),
        version: u64,
    ) -> Vec<(NodeId, MemberChange)> {
        let member = self.nodes.entry(node).or_insert_with(Member::new);
        let why = if life == 0 { Absence::Startup } else { Absence::Recovery };
        // It was absent before, if its last life was lost.
        member.absent.get_or_insert((at, why));
        (member.life, member.stage, member.changed) = (life, Stage::Starting, version);
        (member.straggler, member.slow_links, member.pace) = (false, 0, None);
        if life == 0 { Vec::new() } else { vec![(node, MemberChange::Restarted)] }
    }

    fn event(
        &mut self,
        at: JobTime,
        node: NodeId,
        kind: EventKind,
        version: u64,
    ) -> Vec<(NodeId, MemberChange)> {
        let mut changes = Vec::new();
        // A node that an earlier master has launched is new here when it joins.
        let member = self.nodes.entry(node).or_insert_with(Member::new);
        member.changed = version;
        let mut present = |member: &mut Member, joined| {
            let absent = |(since, why)| MemberChange::Absent { lasted: at.since(since), why, joined };
            changes.extend(member.absent.take().map(absent).map(|change| (node, change)));
        };
        match kind {
            EventKind::Joined => {
                member.stage = Stage::Running;
                present(member, true);
            }
            EventKind::Lost => {
                member.stage = Stage::Lost;
                member.absent.get_or_insert((at, Absence::Recovery));
                changes.push((node, MemberChange::Lost));
            }
            EventKind::Preempted => member.stage = Stage::Leaving,
            EventKind::Finished => {
                member.stage = Stage::Finished;
                present(member, false);
            }
            EventKind::Left | EventKind::Retired => {
                member.stage = Stage::Left;
                present(member, false);
            }
            EventKind::Straggler => member.straggler = true,
            EventKind::SlowLink => member.slow_links += 1,
            // Of a link or of the node; a node whose link was slow has that mended first.
            EventKind::Recovered if member.slow_links > 0 => member.slow_links -= 1,
            EventKind::Recovered => member.straggler = false,
            _ => {}
        }
        changes
    }

    /// A worker has trained a batch.
    pub(super) fn trained(&mut self, report: &BatchReport, version: u64) {
        let member = self.nodes.entry(report.holder.node).or_insert_with(Member::new);
        #[allow(clippy::cast_precision_loss, reason = "a mean")]
        let pace = report.compute.as_secs_f64() / report.samples as f64;
        member.pace = Some(member.pace.map_or(pace, |before| before + PACE_NEWEST * (pace - before)));
        member.samples += report.samples;
        member.changed = version;
        if member.batch_size.is_none() {
            member.batch_size = u32::try_from(report.samples).ok();
        }
    }
}
