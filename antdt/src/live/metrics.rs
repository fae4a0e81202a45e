//! The state of a job in the text format of Prometheus, version 0.0.4.
//!
//! [`FAMILIES`] is the one table of metrics: name, type, help and samples. Labels are bounded: the job, roles, states and kinds that the
//! code names, and the first [`WORKERS_MAX`] workers.

use std::fmt::Write;
use std::time::Duration;

use antdt_core::{Metric, Role};

use super::JobView;
use super::members::{Absence, Stage};
use super::totals::{BUCKETS, Durations, PHASES};

/// Workers with series of their own, of three each: with those of the whole job, fewer than 5,000 series.
pub(super) const WORKERS_MAX: u32 = 1_600;

/// Metrics of an evaluation that are shown: those that come first by name.
const EVALUATED_MAX: usize = 16;

/// Content type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics with one name.
pub(super) struct Family {
    pub(super) name: &'static str,
    /// Type, as Prometheus has it.
    pub(super) kind: &'static str,
    pub(super) help: &'static str,
    samples: fn(&JobView, &mut Samples),
}

const fn family(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&JobView, &mut Samples),
) -> Family {
    Family { name, kind, help, samples }
}

/// Writes the samples of one family.
pub(super) struct Samples {
    text: String,
    name: &'static str,
    /// Label of the job, ready to be written.
    job: String,
}

/// Text of a label's value or of a help line.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

impl Samples {
    /// Adds the sample with these labels besides the job, which the names of the metric and of labels suit by construction.
    fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        self.add_to("", labels, value);
    }

    fn add_to(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let Self { text, name, job } = self;
        // Writing to a String cannot fail.
        let _ = write!(text, "{name}{suffix}{{{job}");
        for (label, value) in labels {
            let _ = write!(text, ",{label}=\"{}\"", escaped(value));
        }
        let _ = writeln!(text, "}} {value}");
    }

    #[allow(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
    fn count(&mut self, labels: &[(&str, &str)], value: u64) {
        self.add(labels, value as f64);
    }

    #[allow(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
    fn durations(&mut self, labels: &[(&str, &str)], durations: Durations) {
        self.add_to("_sum", labels, durations.sum.as_secs_f64());
        self.add_to("_count", labels, durations.count as f64);
    }

    fn of_workers(&mut self, view: &JobView, value: impl Fn(&super::members::Member) -> Option<f64>) {
        let workers = view.members.of_role(Role::Worker).filter(|(node, _)| node.index < WORKERS_MAX);
        for (node, member) in workers {
            if let Some(value) = value(member) {
                self.add(&[("worker", &node.index.to_string())], value);
            }
        }
    }
}

/// Returns the metrics of a job.
pub(crate) fn render(view: &JobView) -> String {
    let job = view.start.as_ref().map_or("", |start| &start.job);
    let job = format!("job=\"{}\"", escaped(job));
    let mut samples = Samples { text: String::with_capacity(1 << 14), name: "", job };
    for Family { name, kind, help, samples: of } in FAMILIES {
        let before = samples.text.len();
        let _ = writeln!(samples.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        let header = samples.text.len();
        samples.name = name;
        of(view, &mut samples);
        if samples.text.len() == header {
            samples.text.truncate(before);
        }
    }
    samples.text
}

/// All metrics, in the order in which they are shown.
#[allow(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
pub(super) const FAMILIES: &[Family] = &[
    family("antdt_build_info", "gauge", "Version of antdt; always 1.", |_, out| {
        out.add(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    }),
    family("antdt_job_info", "gauge", "Sync mode and policy of the job; always 1.", |view, out| {
        let Some(start) = &view.start else { return };
        let dry_run = if start.dry_run { "true" } else { "false" };
        out.add(&[("mode", &start.mode), ("policy", &start.policy), ("dry_run", dry_run)], 1.0);
    }),
    family("antdt_job_elapsed_seconds", "gauge", "Time since the start of the job.", |view, out| {
        out.add(&[], view.now.as_secs_f64());
    }),
    family("antdt_samples_expected", "gauge", "Samples to commit in all.", |view, out| {
        out.count(&[], view.progress.expected);
    }),
    family(
        "antdt_samples_committed_total",
        "counter",
        "Samples committed, those included that a rollback undid.",
        |view, out| out.count(&[], view.totals.samples.committed),
    ),
    family(
        "antdt_samples_undone_total",
        "counter",
        "Committed samples that a rollback undid.",
        |view, out| {
            out.count(&[], view.totals.samples.undone);
        },
    ),
    family("antdt_samples_lost_total", "counter", "Samples missing at the end of the job.", |view, out| {
        out.count(&[], view.totals.lost.total);
    }),
    family("antdt_samples_duplicated_total", "counter", "Samples committed a second time.", |view, out| {
        out.count(&[], view.totals.duplicated.total);
    }),
    family("antdt_samples", "gauge", "Samples by state.", |view, out| {
        let now = &view.progress;
        for (state, count) in [
            ("committed", now.committed),
            ("leased", now.leased),
            ("waiting", now.waiting),
            ("quarantined", now.quarantined),
        ] {
            out.count(&[("state", state)], count);
        }
    }),
    family("antdt_samples_per_second", "gauge", "Samples committed per second, of late.", |view, out| {
        out.add(&[], view.progress.samples_per_second.max(0.0));
    }),
    family("antdt_shards", "gauge", "Shards by state.", |view, out| {
        out.count(&[("state", "leased")], view.progress.shards.leased);
    }),
    family(
        "antdt_shard_leases_total",
        "counter",
        "Ended leases on shards by how they ended.",
        |view, out| {
            for (outcome, lease) in ["done", "released", "lost", "failed"].iter().zip(view.totals.leases) {
                out.count(&[("outcome", outcome)], lease.total);
            }
        },
    ),
    family(
        "antdt_steps_total",
        "counter",
        "Steps; without common steps, batches of all workers.",
        |view, out| {
            out.count(&[], view.totals.steps.total);
        },
    ),
    family("antdt_training_loss", "gauge", "Mean training loss of recent batches.", |view, out| {
        if let Some(loss) = view.progress.loss {
            out.add(&[], loss);
        }
    }),
    family(
        "antdt_step_duration_seconds",
        "histogram",
        "Time of a worker's batch, waiting included.",
        |view, out| {
            let mut below = 0;
            for (most, count) in BUCKETS.iter().zip(view.totals.batches) {
                below += count;
                out.add_to("_bucket", &[("le", &most.to_string())], below as f64);
            }
            out.add_to("_bucket", &[("le", "+Inf")], view.totals.batch_time.count as f64);
            out.durations(&[], view.totals.batch_time);
        },
    ),
    family(
        "antdt_step_phase_duration_seconds",
        "summary",
        "Parts of the time of workers' batches, by their own account.",
        |view, out| {
            let count = view.totals.batch_time.count;
            for (phase, sum) in PHASES.iter().zip(view.totals.phases) {
                out.durations(&[("phase", phase)], Durations { sum, count });
            }
        },
    ),
    family("antdt_worker_batch_size", "gauge", "Samples per batch of the worker.", |view, out| {
        out.of_workers(view, |member| member.batch_size.map(f64::from));
    }),
    family(
        "antdt_worker_speed_ratio",
        "gauge",
        "Samples per second of computing, as a share of the median worker's.",
        |view, out| {
            let Some(median) = view.members.median_speed() else { return };
            out.of_workers(view, |member| member.speed().map(|speed| speed / median));
        },
    ),
    family("antdt_worker_samples_total", "counter", "Samples that the worker has trained.", |view, out| {
        out.of_workers(view, |member| Some(member.samples as f64));
    }),
    family(
        "antdt_straggler_detections_total",
        "counter",
        "Findings that something is slow, by kind and by what is slow.",
        |view, out| {
            for ((kind, scope), count) in &view.totals.stragglers {
                out.count(&[("kind", kind), ("scope", scope)], *count);
            }
        },
    ),
    family(
        "antdt_controller_actions_total",
        "counter",
        "Actions of the policy and the master, by the kind of their reason and by outcome.",
        |view, out| {
            for (key, count) in &view.totals.actions {
                let labels = [("action", key.action), ("reason", key.reason), ("outcome", key.outcome)];
                out.count(&labels, *count);
            }
        },
    ),
    family(
        "antdt_membership_members",
        "gauge",
        "Nodes by role and by the state of their newest life.",
        |view, out| {
            for (name, role) in [("worker", Role::Worker), ("server", Role::Server)] {
                for stage in Stage::ALL {
                    let of_stage = view.members.of_role(role).filter(|(_, member)| member.stage == stage);
                    out.count(&[("role", name), ("state", stage.name())], of_stage.count() as u64);
                }
            }
        },
    ),
    family("antdt_node_losses_total", "counter", "Lives of nodes that were lost.", |view, out| {
        for (role, lost, _) in view.totals.deaths() {
            out.count(&[("role", role)], lost);
        }
    }),
    family("antdt_node_restarts_total", "counter", "Lives of nodes after their first one.", |view, out| {
        for (role, _, restarted) in view.totals.deaths() {
            out.count(&[("role", role)], restarted);
        }
    }),
    family(
        "antdt_recovery_duration_seconds",
        "summary",
        "Time from the loss of a worker's life until the next one takes part.",
        |view, out| out.durations(&[], view.totals.recovery),
    ),
    family(
        "antdt_checkpoints_total",
        "counter",
        "Checkpoints that were attempted, by outcome.",
        |view, out| {
            for (outcome, kind) in [("complete", "checkpoint"), ("failed", "no-checkpoint")] {
                out.count(&[("outcome", outcome)], view.totals.events.get(kind).copied().unwrap_or(0));
            }
        },
    ),
    family(
        "antdt_checkpoint_duration_seconds",
        "summary",
        "Time of complete checkpoints from the moment at which their copies existed.",
        |view, out| out.durations(&[], view.totals.checkpoints),
    ),
    family(
        "antdt_goodput_seconds_total",
        "counter",
        "Time of all workers, by what it went to.",
        |view, out| {
            for (category, seconds) in view.goodput() {
                out.add(&[("category", category)], seconds);
            }
        },
    ),
    family("antdt_evaluations_total", "counter", "Evaluations of the model.", |view, out| {
        out.count(&[], view.totals.evaluations);
    }),
    family("antdt_evaluation_loss", "gauge", "Loss of the newest evaluation.", |view, out| {
        if let Some((_, Some(loss))) = view.newest_evaluation() {
            out.add(&[], loss);
        }
    }),
    family("antdt_evaluation_metric", "gauge", "Other metrics of the newest evaluation.", |view, out| {
        let Some((newest, _)) = view.newest_evaluation() else { return };
        let others = newest.metrics.iter().filter(|(name, _)| *name != Metric::LOSS);
        for (name, value) in others.take(EVALUATED_MAX) {
            out.add(&[("metric", name)], *value);
        }
    }),
    family(
        "antdt_events_total",
        "counter",
        "Events of the job, by the kinds of report.json.",
        |view, out| {
            for (kind, count) in &view.totals.events {
                out.count(&[("kind", kind)], *count);
            }
        },
    ),
];

impl JobView {
    /// Seconds of all workers by what they went to. A worker that is absent now counts up to the last note.
    pub(super) fn goodput(&self) -> [(&'static str, f64); 5] {
        let absent = |of: Absence| -> f64 {
            let workers = self.members.of_role(Role::Worker).filter_map(|(_, member)| member.absent);
            let now = workers.filter(|(_, why)| *why == of).map(|(since, _)| self.now.since(since));
            (now.sum::<Duration>() + self.totals.absences(of)).as_secs_f64()
        };
        let [data_wait, compute, communicate, barrier_wait] = self.totals.phases.map(|it| it.as_secs_f64());
        [
            ("training", compute),
            ("data_loading", data_wait),
            // In a collective operation, a worker cannot tell the two apart.
            ("communication", communicate + barrier_wait),
            ("startup", absent(Absence::Startup)),
            ("recovery", absent(Absence::Recovery)),
        ]
    }
}
