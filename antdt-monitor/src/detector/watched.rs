//! What a [detector](super::StragglerDetector) knows of one node.

use std::time::Duration;

use antdt_core::{Incarnation, JobTime, NodeLoad, Pace, StragglerKind};

use crate::chance::ratio_by_chance;
use crate::hang::Suspicion;
use crate::rule::{Evidence, Rule};
use crate::segment::{Noise, Segment};
use crate::steps::BatchLog;
use crate::window::{LongWindow, SampleTime, ShortWindow};

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) incarnation: Incarnation,
    /// Index of its device class among those of its role.
    pub(super) class: usize,
    pub(super) short: ShortWindow,
    pub(super) long: LongWindow,
    pub(super) segment: Segment,
    pub(super) batches: BatchLog,
    pub(super) last_sequence: Option<u64>,
    pub(super) last_report: Option<JobTime>,
    pub(super) pace_since: Option<JobTime>,
    /// Against its peers: never `Straggler(Deterministic)`.
    pub(super) pace_peers: Pace,
    /// Pace that was given.
    pub(super) pace: Pace,
    pub(super) slowness_ratio: Option<f64>,
    pub(super) suspicion: Suspicion,
    /// Boxed, so that what every report needs is close together.
    pub(super) load: Option<Box<NodeLoad>>,
    pub(super) host: Box<str>,
}

/// What a node is judged by: the nodes of its role and device class.
pub(super) struct Reference {
    /// Median of their times per sample; `None` if too few are known.
    pub(super) median: Option<SampleTime>,
    /// Nodes that are known.
    pub(super) peers: usize,
    pub(super) noise: Noise,
    /// Whether the class is slower than another one.
    pub(super) is_slow_class: bool,
}

impl Watched {
    /// Takes note of how slow the node is while its role's steps take `step`; returns the pace that follows.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub(super) fn judge(&mut self, step: Duration, reference: &Reference, rule: &Rule) -> Pace {
        let time = self.short.sample_time(step);
        if let (Some(time), Some(median)) = (time, reference.median) {
            let ratio = time.0 as f64 / median.0 as f64;
            self.long.push(time, ratio, rule.is_slow(ratio));
            self.slowness_ratio = Some(ratio);
            let noise = reference.noise;
            let spread = self.segment.spread(&noise).max(noise.deviation());
            let span = self.short.span(step);
            let evidence = Evidence {
                ratio_short: ratio,
                ratio_by_chance: ratio_by_chance(spread, noise.batches(), span, reference.peers),
                ratio_long: self.long.slowness_ratio().unwrap_or(ratio),
                slow_fraction_long: self.long.slow_fraction(),
            };
            self.pace_peers = rule.judge(&evidence, self.pace_peers);
        } else {
            self.slowness_ratio = None;
            self.pace_peers = Pace::Unknown;
        }
        match self.pace_peers {
            Pace::Normal | Pace::Unknown if time.is_some() && reference.is_slow_class => {
                Pace::Straggler(StragglerKind::Deterministic)
            }
            pace => pace,
        }
    }
}
