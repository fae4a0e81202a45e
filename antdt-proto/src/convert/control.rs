//! Conversion of plans and reports.

use std::time::Duration;

use antdt_core as core;

use super::{WireError, to_ns};
use crate::v1;

impl From<&core::Plan> for v1::Plan {
    fn from(plan: &core::Plan) -> Self {
        Self {
            version: plan.version.0,
            membership: plan.membership.0,
            batch_sizes: plan
                .batch_sizes
                .iter()
                .map(|(node, samples)| v1::BatchSize {
                    worker: node.index,
                    samples: *samples,
                    micro_batches: plan.accumulation.get(node).copied().unwrap_or(0),
                })
                .collect(),
            local_steps: plan.local_steps,
            backups: plan.backups,
            actions: plan
                .actions
                .iter()
                .map(|(name, value)| v1::ActionValue { name: name.clone(), value: value.clone() })
                .collect(),
        }
    }
}

impl From<v1::Plan> for core::Plan {
    fn from(wire: v1::Plan) -> Self {
        let of = |b: &v1::BatchSize| core::NodeId::worker(b.worker);
        let in_parts = wire.batch_sizes.iter().filter(|b| b.micro_batches > 1);
        let accumulation = in_parts.map(|b| (of(b), b.micro_batches)).collect();
        Self::new(
            core::PlanVersion(wire.version),
            core::MembershipVersion(wire.membership),
            wire.batch_sizes.iter().map(|b| (of(b), b.samples)).collect(),
        )
        .with_accumulation(accumulation)
        .with_local_steps(wire.local_steps)
        .with_backups(wire.backups)
        .with_actions(wire.actions.into_iter().map(|it| (it.name, it.value)).collect())
    }
}

impl From<core::ModelDistance> for v1::ModelDistance {
    fn from(distance: core::ModelDistance) -> Self {
        Self { average: distance.average, relative: distance.relative }
    }
}

impl From<v1::ModelDistance> for core::ModelDistance {
    fn from(wire: v1::ModelDistance) -> Self {
        Self { average: wire.average, relative: wire.relative }
    }
}

impl From<core::LinkReport> for v1::LinkReport {
    fn from(report: core::LinkReport) -> Self {
        let core::LinkReport { to, bytes, time } = report;
        let v1::Holder { role, index, .. } = core::Holder::new(to, core::Incarnation(0)).into();
        Self { role, index, bytes, time_ns: to_ns(time) }
    }
}

impl TryFrom<v1::LinkReport> for core::LinkReport {
    type Error = WireError;

    fn try_from(wire: v1::LinkReport) -> Result<Self, WireError> {
        let peer = v1::Holder { role: wire.role, index: wire.index, incarnation: 0 };
        let to = core::Holder::try_from(peer)?.node;
        Ok(Self { to, bytes: wire.bytes, time: Duration::from_nanos(wire.time_ns) })
    }
}

impl From<core::NodeLoad> for v1::NodeLoad {
    fn from(load: core::NodeLoad) -> Self {
        let core::NodeLoad {
            over,
            cpu_quota,
            cpu_throttled,
            host_busy,
            host_steal,
            own_busy,
            memory_used,
            memory_bound,
            gpu,
        } = load;
        Self {
            over_ns: to_ns(over),
            cpu_quota,
            cpu_throttled,
            host_busy,
            host_steal,
            own_busy,
            memory_used,
            memory_bound,
            gpu: gpu.map(Into::into),
        }
    }
}

impl From<v1::NodeLoad> for core::NodeLoad {
    /// A figure that can be none counts as unknown.
    fn from(wire: v1::NodeLoad) -> Self {
        let v1::NodeLoad {
            over_ns,
            cpu_quota,
            cpu_throttled,
            host_busy,
            host_steal,
            own_busy,
            memory_used,
            memory_bound,
            gpu,
        } = wire;
        let share = |it: Option<f64>| it.filter(|share| (0.0..=1.0).contains(share));
        Self {
            over: Duration::from_nanos(over_ns),
            cpu_quota: cpu_quota.filter(|cpus| cpus.is_finite() && *cpus >= 0.0),
            cpu_throttled: share(cpu_throttled),
            host_busy: share(host_busy),
            host_steal: share(host_steal),
            own_busy: share(own_busy),
            memory_used,
            memory_bound,
            gpu: gpu.map(core::GpuLoad::from).filter(|gpu| (0.0..=1.0).contains(&gpu.busy)),
        }
    }
}

impl From<core::GpuLoad> for v1::GpuLoad {
    fn from(load: core::GpuLoad) -> Self {
        let core::GpuLoad { index, busy, memory_used, memory_bound } = load;
        Self { index, busy, memory_used, memory_bound }
    }
}

impl From<v1::GpuLoad> for core::GpuLoad {
    fn from(wire: v1::GpuLoad) -> Self {
        let v1::GpuLoad { index, busy, memory_used, memory_bound } = wire;
        Self { index, busy, memory_used, memory_bound }
    }
}

impl From<core::Stall> for v1::Stall {
    fn from(stall: core::Stall) -> Self {
        let work = match stall.work {
            core::Work::Loading => v1::Work::Loading,
            core::Work::Training => v1::Work::Training,
            core::Work::Evaluating => v1::Work::Evaluating,
        };
        Self { work: work.into(), lasts_ns: to_ns(stall.lasts) }
    }
}

impl From<v1::Stall> for core::Stall {
    /// Unknown work counts as evaluating, which has the longest limit.
    fn from(wire: v1::Stall) -> Self {
        let work = match v1::Work::try_from(wire.work) {
            Ok(v1::Work::Loading) => core::Work::Loading,
            Ok(v1::Work::Training) => core::Work::Training,
            Ok(v1::Work::Evaluating | v1::Work::Unspecified) | Err(_) => core::Work::Evaluating,
        };
        Self { work, lasts: Duration::from_nanos(wire.lasts_ns) }
    }
}

impl v1::BatchReport {
    /// Converts the report of one batch to its wire message; `loss_sum` is the sum of its samples' losses.
    pub fn from_core(report: &core::BatchReport, loss_sum: f64) -> Self {
        let phase = match report.phase {
            core::Phase::Train => v1::Phase::Train,
            core::Phase::Evaluate => v1::Phase::Evaluate,
            core::Phase::Checkpoint => v1::Phase::Checkpoint,
            core::Phase::WarmUp => v1::Phase::WarmUp,
        };
        Self {
            sequence: report.sequence,
            iteration: report.iteration.0,
            plan: report.plan.0,
            phase: phase.into(),
            samples: report.samples,
            micro_batches: if report.micro_batches == 1 { 0 } else { report.micro_batches },
            data_wait_ns: to_ns(report.data_wait),
            compute_ns: to_ns(report.compute),
            communicate_ns: to_ns(report.communicate),
            barrier_wait_ns: to_ns(report.barrier_wait),
            loss_sum,
        }
    }

    /// Converts the wire message to the report of one batch, with `holder` as its sender. An unknown phase
    /// becomes one that the monitor does not judge.
    pub fn to_core(&self, holder: core::Holder) -> core::BatchReport {
        core::BatchReport {
            holder,
            sequence: self.sequence,
            iteration: core::Iteration(self.iteration),
            plan: core::PlanVersion(self.plan),
            phase: match v1::Phase::try_from(self.phase) {
                Ok(v1::Phase::Train) => core::Phase::Train,
                Ok(v1::Phase::Checkpoint) => core::Phase::Checkpoint,
                Ok(v1::Phase::WarmUp) => core::Phase::WarmUp,
                Ok(v1::Phase::Evaluate) | Err(_) => core::Phase::Evaluate,
            },
            samples: self.samples,
            micro_batches: self.micro_batches.max(1),
            data_wait: Duration::from_nanos(self.data_wait_ns),
            compute: Duration::from_nanos(self.compute_ns),
            communicate: Duration::from_nanos(self.communicate_ns),
            barrier_wait: Duration::from_nanos(self.barrier_wait_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Holder, Incarnation, NodeId};

    use crate::v1;

    #[test]
    fn a_plan_and_a_report_survive_the_wire() {
        let sizes = [(NodeId::worker(0), 3), (NodeId::worker(4), 9)].into_iter().collect();
        let plan = antdt_core::Plan::new(antdt_core::PlanVersion(7), antdt_core::MembershipVersion(2), sizes)
            .with_accumulation([(NodeId::worker(0), 1), (NodeId::worker(4), 3)].into_iter().collect())
            .with_local_steps(Some(4))
            .with_backups(Some(1))
            .with_actions([("ADJUST_LR".to_owned(), "linear".to_owned())].into_iter().collect());
        assert_eq!((plan.micro_batches(NodeId::worker(0)), plan.micro_batches(NodeId::worker(4))), (1, 3));
        assert_eq!(antdt_core::Plan::from(v1::Plan::from(&plan)), plan);

        let holder = Holder::new(NodeId::worker(1), Incarnation(3));
        let wire = v1::BatchReport { sequence: 4, samples: 64, compute_ns: 5_000, ..Default::default() };
        let report = wire.to_core(holder);
        assert_eq!((report.micro_batches, v1::BatchReport::from_core(&report, 0.0)), (1, wire));
        let wire = v1::BatchReport { micro_batches: 3, ..wire };
        assert_eq!(v1::BatchReport::from_core(&wire.to_core(holder), 0.0), wire);
    }

    #[test]
    fn a_load_survives_the_wire_and_figures_that_cannot_be_are_unknown() {
        let load = antdt_core::NodeLoad {
            over: std::time::Duration::from_secs(10),
            cpu_quota: Some(0.5),
            cpu_throttled: Some(0.38),
            host_busy: None,
            host_steal: Some(0.25),
            own_busy: None,
            memory_used: Some(7),
            memory_bound: Some(9),
            gpu: Some(antdt_core::GpuLoad { index: 3, busy: 0.5, memory_used: 1, memory_bound: 2 }),
        };
        let wire = v1::NodeLoad::from(load);
        assert_eq!(antdt_core::NodeLoad::from(wire), load);
        let odd = v1::NodeLoad {
            cpu_throttled: Some(f64::NAN),
            cpu_quota: Some(-1.0),
            host_busy: Some(1.5),
            own_busy: Some(-0.1),
            gpu: Some(v1::GpuLoad { busy: 2.0, ..v1::GpuLoad::default() }),
            ..wire
        };
        let unknown = antdt_core::NodeLoad { cpu_throttled: None, cpu_quota: None, gpu: None, ..load };
        assert_eq!(antdt_core::NodeLoad::from(odd), unknown);
    }

    #[test]
    fn a_report_of_a_link_survives_the_wire() {
        let time = std::time::Duration::from_millis(7);
        let report = antdt_core::LinkReport { to: NodeId::server(3), bytes: 1 << 40, time };
        assert_eq!(antdt_core::LinkReport::try_from(v1::LinkReport::from(report)), Ok(report));
        antdt_core::LinkReport::try_from(v1::LinkReport::default()).unwrap_err();
    }

    #[test]
    fn an_unknown_role_is_refused_by_name() {
        let error = Holder::try_from(v1::Holder { role: 9, index: 0, incarnation: 0 }).unwrap_err();
        assert_eq!(error.to_string(), "field `holder.role` has the unknown value 9");
    }
}
