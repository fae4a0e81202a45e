//! Devices of workers: their processor, class and memory, and, to emulate a mixed cluster on one machine,
//! their speed.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use antdt_core::InvalidValue;
use antdt_core::text::{format_duration, named_duration, nearest};

use super::processor::Processor;

/// Value of `--device`: the CPU or GPU on which all workers compute, or properties of the devices of some workers.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceSetting {
    /// CPU or GPU on which all workers compute.
    On(Processor),
    /// Properties of the device of some workers.
    Of(DeviceSpec),
}

impl FromStr for DeviceSetting {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text.contains('=') {
            return text.parse().map(Self::Of);
        }
        let refused = || format!("{}, or {}", Processor::FORM, DeviceSpec::FORM);
        text.parse().map(Self::On).map_err(|error| InvalidValue { expected: refused(), ..error })
    }
}

impl fmt::Display for DeviceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On(processor) => processor.fmt(f),
            Self::Of(device) => device.fmt(f),
        }
    }
}

/// Properties of the device of some workers. Text form:
/// `class=v100,worker=0-1,batch-max=64,speed=400,fixed=20ms`; only `class` and `worker` are required.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec {
    /// Class of the device, such as `v100`: a node is compared only with nodes of its own class.
    pub class: String,
    /// Indices of the first and the last worker with this device.
    pub workers: (u32, u32),
    /// Largest batch, or micro-batch, in samples that fits the device; `None` leaves it to the host.
    pub batch_max: Option<u32>,
    /// Emulated memory, in samples: a worker runs out of memory with more samples at once. Unlike
    /// [`batch_max`](Self::batch_max), no plan respects it before a worker has run out of memory.
    pub memory: Option<u32>,
    /// Emulated speed, in samples per second; `None` leaves it to `--emulate-speed`.
    pub speed: Option<f64>,
    /// Emulated additional time of each batch, or micro-batch, whatever its size.
    pub fixed: Duration,
}

impl DeviceSpec {
    const FORM: &str =
        "class=NAME,worker=N or N-M[,batch-max=SAMPLES][,memory=SAMPLES][,speed=SAMPLES_PER_S][,fixed=20ms]";

    /// Returns the indices of the workers that have this device.
    pub const fn workers(&self) -> RangeInclusive<u32> {
        self.workers.0..=self.workers.1
    }

    pub(super) fn validate(&self, workers: u32) -> Result<(), InvalidValue> {
        let flag = "--device";
        let (first, last) = self.workers;
        if self.class.is_empty() {
            return Err(InvalidValue::new(format!("{flag} class"), "(nothing)", "a name, such as v100"));
        }
        if first > last || last >= workers {
            let expected = format!(
                "of 0 to {}: there are {workers} workers (--nproc-per-node)",
                workers.saturating_sub(1)
            );
            return Err(InvalidValue::new(format!("{flag} worker"), span(first, last), expected));
        }
        if self.batch_max == Some(0) {
            return Err(InvalidValue::new(format!("{flag} batch-max"), 0, "at least 1 sample"));
        }
        if self.memory == Some(0) {
            return Err(InvalidValue::new(format!("{flag} memory"), 0, "room for at least 1 sample"));
        }
        if let Some(speed) = self.speed
            && !(speed.is_finite() && speed > 0.0)
        {
            let expected = "above 0 samples per second; leave it out to run at the machine's speed";
            return Err(InvalidValue::new(format!("{flag} speed"), speed, expected));
        }
        Ok(())
    }
}

/// Workers as they are written: `0-3`, or `2`.
fn span(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

impl FromStr for DeviceSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const KEYS: [&str; 6] = ["class", "worker", "batch-max", "memory", "speed", "fixed"];
        let refused = || InvalidValue::new("--device", format!("`{text}`"), Self::FORM);
        let (mut class, mut workers) = (None, None);
        let (mut batch_max, mut memory) = (None, None);
        let (mut speed, mut fixed) = (None, Duration::ZERO);
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').ok_or_else(refused)?;
            let field = format!("--device {key}");
            match key {
                "class" => class = Some(value.to_owned()),
                "worker" => {
                    let expected = "the index of a worker, or the first and the last, such as 0-3";
                    let (first, last) = value.split_once('-').unwrap_or((value, value));
                    let index = |index: &str| {
                        index.parse().map_err(|_| InvalidValue::new(field.clone(), value, expected))
                    };
                    workers = Some((index(first)?, index(last)?));
                }
                "batch-max" => {
                    let expected = "a number of samples, such as 64";
                    batch_max = Some(value.parse().map_err(|_| InvalidValue::new(field, value, expected))?);
                }
                "memory" => {
                    let expected = "a number of samples that fit at once, such as 64";
                    memory = Some(value.parse().map_err(|_| InvalidValue::new(field, value, expected))?);
                }
                "speed" => {
                    let expected = "samples per second, such as 400";
                    speed = Some(value.parse().map_err(|_| InvalidValue::new(field, value, expected))?);
                }
                "fixed" => fixed = named_duration(field, value)?,
                _ => {
                    let expected = match nearest(key, &KEYS) {
                        Some(known) => format!("a known word; did you mean `{known}`?"),
                        None => Self::FORM.to_owned(),
                    };
                    return Err(InvalidValue::new("--device", format!("`{key}`"), expected));
                }
            }
        }
        let (Some(class), Some(workers)) = (class, workers) else { return Err(refused()) };
        Ok(Self { class, workers, batch_max, memory, speed, fixed })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class={},worker={}", self.class, span(self.workers.0, self.workers.1))?;
        if let Some(most) = self.batch_max {
            write!(f, ",batch-max={most}")?;
        }
        if let Some(most) = self.memory {
            write!(f, ",memory={most}")?;
        }
        if let Some(speed) = self.speed {
            write!(f, ",speed={speed}")?;
        }
        if !self.fixed.is_zero() {
            write!(f, ",fixed={}", format_duration(self.fixed))?;
        }
        Ok(())
    }
}
