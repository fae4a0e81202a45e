//! Measured times of whole batches, by device and batch size.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId, Role};

use crate::model::{Compute, seconds};

/// Measured times of a batch on each kind of device.
///
/// Between two measured sizes the time of a batch lies on the line between theirs. Below the smallest it lies
/// on the line through the two smallest, but the time per sample is never less than in the smallest measured
/// batch, and the time of the batch never more than that of this batch. Above the largest, the time per
/// sample is that of the largest measured batch.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceTimes {
    // Sizes ascending, seconds of a batch; not empty.
    devices: BTreeMap<String, Vec<(u32, f64)>>,
}

impl DeviceTimes {
    /// Returns the times given by rows of `(device, samples of a batch, batches per second)`, in any order.
    ///
    /// # Errors
    /// If there is no row, a batch is empty, a rate is not above 0, or a device has two rates for one size.
    pub fn new(rows: impl IntoIterator<Item = (impl Into<String>, u32, f64)>) -> Result<Self, InvalidValue> {
        let mut devices = BTreeMap::<String, BTreeMap<u32, f64>>::new();
        for (device, batch_size, rate) in rows {
            let device = device.into();
            let field = |what: &str| format!("device {device}, {what}");
            if batch_size == 0 {
                return Err(InvalidValue::new(field("batch_size"), 0, "at least 1"));
            }
            if !(rate.is_finite() && rate > 0.0) {
                let remedy = "above 0; leave a size out that does not run";
                return Err(InvalidValue::new(field("steps_per_s"), rate, remedy));
            }
            let times = devices.entry(device.clone()).or_default();
            if times.insert(batch_size, 1.0 / rate).is_some() {
                return Err(InvalidValue::new(field("batch_size"), batch_size, "listed once"));
            }
        }
        if devices.is_empty() {
            return Err(InvalidValue::new("device table", "(nothing)", "at least one row"));
        }
        let devices = devices.into_iter().map(|(device, times)| (device, times.into_iter().collect()));
        Ok(Self { devices: devices.collect() })
    }

    /// Returns the names of all devices, in order.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.devices.keys().map(String::as_str)
    }

    /// Returns the largest batch that was measured on `device`, in samples; `None` if there is no such
    /// device.
    pub fn largest(&self, device: &str) -> Option<u32> {
        self.devices.get(device).and_then(|times| times.last()).map(|(size, _)| *size)
    }

    /// Returns the seconds that a batch of `samples` takes on `device`; `None` if there is no such device.
    pub fn seconds(&self, device: &str, samples: u64) -> Option<f64> {
        self.devices.get(device).map(|times| interpolate(times, samples as f64))
    }
}

// Sizes ascending.
fn interpolate(times: &[(u32, f64)], samples: f64) -> f64 {
    let after = times.partition_point(|(size, _)| f64::from(*size) < samples);
    let line = |(size, time): (u32, f64), (size_next, time_next): (u32, f64)| {
        let share = (samples - f64::from(size)) / (f64::from(size_next) - f64::from(size));
        time + (time_next - time) * share
    };
    let proportional = |(size, time): (u32, f64)| time * samples / f64::from(size);
    match (after, times) {
        (0, [first, second, ..]) => line(*first, *second).min(first.1).max(proportional(*first)),
        (0, [only, ..]) => proportional(*only),
        (after, _) if after < times.len() => line(times[after - 1], times[after]),
        (_, [.., last]) => proportional(*last),
        (_, []) => 0.0,
    }
}

/// A compute model of workers on measured devices; a worker's device class has the name of its device.
/// Servers take no time; see [`ByRole`](super::ByRole).
#[derive(Debug, Clone)]
pub struct DeviceTable {
    workers: Vec<Device>,
    bounded: bool,
}

#[derive(Debug, Clone)]
struct Device {
    class: DeviceClass,
    times: Vec<(u32, f64)>,
}

impl DeviceTable {
    /// Returns the model in which worker 0 has the first of `devices`, worker 1 the second, and so on; after
    /// the last device the list begins again.
    ///
    /// # Errors
    /// If there are no devices, or the table lacks one of them.
    pub fn new(times: &DeviceTimes, devices: &[impl AsRef<str>]) -> Result<Self, InvalidValue> {
        let known = || times.devices().collect::<Vec<_>>().join(", ");
        if devices.is_empty() {
            return Err(InvalidValue::new("devices", "(nothing)", format!("some of {}", known())));
        }
        let find = |device: &str| {
            let found = times.devices.get(device).cloned();
            let found = found.map(|times| Device { class: DeviceClass(device.into()), times });
            found.ok_or_else(|| InvalidValue::new("devices", device, format!("one of {}", known())))
        };
        let workers = devices.iter().map(|device| find(device.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { workers, bounded: false })
    }

    /// Returns the same model, in which no batch or micro-batch may be larger than the largest measured on
    /// the worker's device.
    #[must_use]
    pub const fn bounded(mut self) -> Self {
        self.bounded = true;
        self
    }

    fn of(&self, worker: NodeId) -> &Device {
        &self.workers[worker.index as usize % self.workers.len()]
    }
}

impl Compute for DeviceTable {
    fn time(&mut self, _at: JobTime, holder: Holder, samples: u64, _rng: &mut DetRng) -> Duration {
        match holder.node.role {
            Role::Worker => seconds(interpolate(&self.of(holder.node).times, samples as f64)),
            Role::Server => Duration::ZERO,
        }
    }

    fn device(&self, node: NodeId) -> DeviceClass {
        match node.role {
            Role::Worker => self.of(node).class.clone(),
            Role::Server => DeviceClass::default(),
        }
    }

    fn batch_size_max(&self, node: NodeId) -> Option<u32> {
        let largest = || self.of(node).times.last().map(|(size, _)| *size);
        if self.bounded && node.role == Role::Worker { largest() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::compute::testing::{time_of, worker};

    fn times() -> DeviceTimes {
        // 16 samples in 0.1 s and 32 in 0.15 s; 10 samples in a second.
        DeviceTimes::new([("fast", 32, 1.0 / 0.15), ("slow", 10, 1.0), ("fast", 16, 10.0)]).unwrap()
    }

    #[test]
    fn times_lie_on_lines_between_measured_sizes_and_no_sample_is_cheaper_beyond() {
        let near = |device, samples, expected: f64| {
            let seen = times().seconds(device, samples).unwrap();
            assert!((seen - expected).abs() < 1e-12, "{samples} on {device}: {seen}");
        };
        near("fast", 16, 0.1);
        near("fast", 24, 0.125);
        near("fast", 32, 0.15);
        // On the line through 16 and 32, which has a fixed part of 0.05 s.
        near("fast", 8, 0.075);
        near("fast", 64, 0.3);
        near("slow", 5, 0.5);
        near("slow", 20, 2.0);
        assert_eq!(times().seconds("other", 1), None);
    }

    #[test]
    fn odd_measurements_stay_within_their_bounds() {
        // The larger batch took less time: the line through both falls.
        let odd = DeviceTimes::new([("odd", 10, 1.0), ("odd", 20, 2.0)]).unwrap();
        assert_eq!(odd.seconds("odd", 5), Some(1.0));
        // It took more than twice the time: the line has no fixed part.
        let steep = DeviceTimes::new([("steep", 10, 1.0), ("steep", 20, 0.1)]).unwrap();
        assert_eq!(steep.seconds("steep", 5), Some(0.5));
    }

    #[test]
    fn devices_are_dealt_out_to_the_workers_in_turn() {
        let mut table = DeviceTable::new(&times(), &["slow", "fast"]).unwrap();
        let mut of = |index| time_of(&mut table, worker(index, 0), 0, 16).as_millis();
        assert_eq!([of(0), of(1), of(2)], [1600, 100, 1600]);
        let class = |node| table.device(node).to_string();
        assert_eq!([0, 1, 2].map(|index| class(NodeId::worker(index))), ["slow", "fast", "slow"]);
        assert_eq!(table.device(NodeId::server(0)), DeviceClass::default());
        assert_eq!(table.batch_size_max(NodeId::worker(1)), None);
        let bounded = table.bounded();
        let most = |node| bounded.batch_size_max(node);
        assert_eq!([0, 1].map(|index| most(NodeId::worker(index))), [Some(10), Some(32)]);
        assert_eq!(most(NodeId::server(0)), None);
        let error = DeviceTable::new(&times(), &["quick"]).unwrap_err().to_string();
        assert_eq!(error, "devices = quick: must be one of fast, slow");
        assert!(DeviceTable::new(&times(), &[] as &[&str]).is_err());
    }

    #[test]
    fn rows_that_cannot_be_are_refused() {
        let refused =
            |rows: &[(&str, u32, f64)]| DeviceTimes::new(rows.iter().copied()).unwrap_err().to_string();
        assert!(refused(&[]).starts_with("device table = (nothing)"));
        assert!(refused(&[("a", 0, 1.0)]).starts_with("device a, batch_size = 0"));
        assert!(refused(&[("a", 1, 0.0)]).starts_with("device a, steps_per_s = 0: must be above 0"));
        assert!(refused(&[("a", 1, 1.0), ("a", 1, 2.0)]).ends_with("listed once"));
    }
}
