//! [`ClassSpeeds`]: how fast the nodes of each device class are.

use std::collections::BTreeMap;

use antdt_core::{DeviceClass, NodeView};

/// Samples per second of each node whose time per sample is known: ordered once, however many nodes are asked about.
pub(super) struct ClassSpeeds<'a> {
    /// Speeds of the nodes of each class, ascending.
    of_class: BTreeMap<&'a DeviceClass, Vec<f64>>,
    pub(super) total: f64,
}

impl<'a> ClassSpeeds<'a> {
    pub(super) fn of(live: &[&'a NodeView]) -> Self {
        let mut of_class: BTreeMap<&DeviceClass, Vec<f64>> = BTreeMap::new();
        for node in live {
            of_class.entry(&node.device).or_default().extend(speed(node));
        }
        of_class.values_mut().for_each(|speeds| speeds.sort_unstable_by(f64::total_cmp));
        Self { total: live.iter().filter_map(|node| speed(node)).sum(), of_class }
    }

    /// The upper median of the nodes of the same class without one whose speed is `own`; `None` if there is no other.
    pub(super) fn median_beside(&self, node: &NodeView, own: f64) -> Option<f64> {
        let speeds = self.of_class.get(&node.device)?;
        let others = speeds.len().checked_sub(1).filter(|others| *others > 0)?;
        let at = speeds.partition_point(|speed| speed.total_cmp(&own).is_lt());
        let middle = others / 2;
        speeds.get(if middle < at { middle } else { middle + 1 }).copied()
    }
}

pub(super) fn speed(node: &NodeView) -> Option<f64> {
    let time = node.estimate?.sample_time;
    (!time.is_zero()).then(|| 1.0 / time.as_secs_f64())
}
