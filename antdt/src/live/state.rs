//! The state of a job as JSON, whole or as far as it has changed since a version that a reader has seen.
//!
//! Nodes are rows of an array, because a job may have a thousand: the page names the columns.

use antdt_core::Role;
use serde_json::{Value as Json, json};

use super::JobView;
use super::view::Happening;
use crate::report::Outcome;

/// Points of the loss curve: a narrow chart has no more pixels.
const LOSS_POINTS: usize = 240;

/// A number as it is shown, with three significant digits, so that rows change only if their text does.
fn rounded(value: f64) -> Json {
    if value == 0.0 || !value.is_finite() {
        return json!(0);
    }
    #[allow(clippy::cast_possible_truncation, reason = "an exponent")]
    let digits = 2 - value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(digits);
    json!((value * scale).round() / scale)
}

impl JobView {
    /// Returns what a reader of the page that has seen version `since` must show; everything if that is 0.
    pub(crate) fn state(&self, since: u64) -> Json {
        let start = self.start.clone().unwrap_or_default();
        let outcome = self.outcome.as_ref().map(|outcome| match outcome {
            Outcome::Completed => json!({ "kind": "completed" }),
            Outcome::Incomplete { why } => json!({ "kind": "incomplete", "why": why }),
            Outcome::Failed { why } => json!({ "kind": "failed", "why": why }),
        });
        let goodput: Vec<Json> = self
            .goodput()
            .into_iter()
            .map(|(category, seconds)| json!([category, rounded(seconds)]))
            .collect();
        let newest = self.newest_evaluation().map(|(newest, _)| {
            json!({ "time_s": newest.at.as_secs_f64(), "samples": newest.samples, "metrics": newest.metrics })
        });
        let losses = |(role, lost, restarted)| json!({ "role": role, "lost": lost, "restarted": restarted });
        json!({
            "version": self.version(),
            "whole": since == 0,
            "job": start.job,
            "mode": start.mode,
            "policy": start.policy,
            "dry_run": start.dry_run,
            "data": start.data,
            "epochs": start.epochs,
            "time_s": self.now.as_secs_f64(),
            "outcome": outcome,
            "progress": self.progress,
            "undone": self.totals.samples.undone,
            "goodput": goodput,
            "deaths": self.totals.deaths().map(losses).collect::<Vec<_>>(),
            "median_speed": self.members.median_speed().map(rounded),
            "nodes": self.rows(since),
            "loss": self.loss_points(),
            "evaluation": newest,
            "evaluations": self.totals.evaluations,
            "happened": self.happened.iter().filter(|it| it.version > since).map(happening).collect::<Vec<_>>(),
        })
    }

    /// Name, role, state, life, host, speed, batch size, samples and whether it is a straggler, of each node that has changed.
    fn rows(&self, since: u64) -> Vec<Json> {
        let changed = self.members.iter().filter(|(_, member)| member.changed > since || since == 0);
        let row = changed.map(|(node, member)| {
            let role = if node.role == Role::Worker { "worker" } else { "server" };
            json!([
                node.to_string(),
                role,
                member.stage.name(),
                member.life,
                member.host,
                member.speed().map(rounded),
                member.batch_size,
                member.samples,
                member.straggler,
            ])
        });
        row.collect()
    }

    fn loss_points(&self) -> Vec<Json> {
        let points = self.loss.points();
        let every = points.len().div_ceil(LOSS_POINTS).max(1);
        // From the end, so that the newest is there.
        let mut shown: Vec<Json> = points
            .iter()
            .rev()
            .step_by(every)
            .map(|point| json!([(point.time_s * 10.0).round() / 10.0, rounded(point.loss)]))
            .collect();
        shown.reverse();
        shown
    }
}

fn happening(Happening { at, kind, node, text, is_action, version }: &Happening) -> Json {
    json!([version, at.as_secs_f64(), kind, node, text, is_action])
}
