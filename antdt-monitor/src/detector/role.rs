//! What a [detector](super::StragglerDetector) knows of all nodes of a role.

use std::time::Duration;

use antdt_core::{DeviceClass, PlanVersion};

use super::watched::Reference;
use crate::baseline::Baseline;
use crate::config::MonitorConfig;
use crate::segment::Noise;
use crate::slow_classes::SlowClasses;
use crate::steps::StepLog;
use crate::window::SampleTime;

/// Nodes of one role and class that must be known for a reference, the judged node included.
const PEERS_MIN: usize = 2;

/// Nodes of one device class.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) name: DeviceClass,
    pub(super) live: usize,
    pub(super) noise: Noise,
    pub(super) baseline: Baseline,
}

#[derive(Debug)]
pub(super) struct RoleState {
    pub(super) live: u64,
    /// One without live nodes makes room for the next new one.
    pub(super) device_classes: Vec<Class>,
    pub(super) reports_since_beat: u64,
    pub(super) plan: PlanVersion,
    pub(super) step_median: Option<Duration>,
    /// Usual duration of the slowest node's steps; of the longest one while there is no usual one.
    pub(super) step_longest: Option<Duration>,
    /// Training batches so far, and the longest of them; kept until there is a median.
    pub(super) early: (u64, Duration),
    pub(super) steps: StepLog,
    pub(super) slow_classes: SlowClasses,
    /// By how much all nodes are slower than they were.
    pub(super) slowdown: Option<f64>,
}

impl RoleState {
    pub(super) fn new(config: &MonitorConfig) -> Self {
        Self {
            live: 0,
            device_classes: Vec::new(),
            reports_since_beat: 0,
            plan: PlanVersion(0),
            step_median: None,
            step_longest: None,
            early: (0, Duration::ZERO),
            steps: StepLog::default(),
            slow_classes: SlowClasses::new(config.window.long_beats()),
            slowdown: None,
        }
    }

    /// A node of this class came; returns the index of its class.
    pub(super) fn enter(&mut self, name: &DeviceClass) -> usize {
        self.live += 1;
        let classes = &mut self.device_classes;
        let known = classes.iter().position(|class| class.live > 0 && class.name == *name);
        let index = known.or_else(|| classes.iter().position(|class| class.live == 0));
        let index = index.unwrap_or_else(|| {
            let (noise, baseline) = (Noise::default(), Baseline::default());
            classes.push(Class { name: name.clone(), live: 0, noise, baseline });
            classes.len() - 1
        });
        if known.is_none() {
            classes[index].name.clone_from(name);
            classes[index].noise = Noise::default();
            classes[index].baseline = Baseline::default();
        }
        classes[index].live += 1;
        index
    }

    /// By how much all classes of workers are slower than they were, from the medians of their times; `None` if one is not, because
    /// of one class alone another cause is likelier.
    pub(super) fn slowdown_of_all(&self, medians: &[Option<SampleTime>]) -> Option<f64> {
        let known =
            self.device_classes.iter().zip(medians).filter(|(class, it)| class.live > 0 && it.is_some());
        let slowdowns = known.map(|(class, _)| class.baseline.slowdown()).collect::<Option<Vec<f64>>>();
        slowdowns?.into_iter().reduce(f64::min)
    }

    /// What nodes of each class are judged by, of which so many are known and have these medians.
    pub(super) fn references(&self, peers: &[usize], medians: &[Option<SampleTime>]) -> Vec<Reference> {
        let reference = |(class, (peers, median)): (&Class, (&usize, &Option<SampleTime>))| {
            let enough = *peers >= PEERS_MIN && peers * 2 >= class.live;
            Reference {
                median: median.filter(|median| enough && median.0 > 0),
                peers: *peers,
                noise: class.noise,
                is_slow_class: self.slow_classes.is_slow_class(&class.name),
            }
        };
        self.device_classes.iter().zip(peers.iter().zip(medians)).map(reference).collect()
    }

    pub(super) fn leave(&mut self, class: usize) {
        self.live -= 1;
        self.device_classes[class].live -= 1;
    }
}
