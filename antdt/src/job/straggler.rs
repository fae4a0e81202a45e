//! Emulated stragglers: workers that are made slow to see what the policy does.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use antdt_core::InvalidValue;
use antdt_core::text::{format_duration, named_duration, nearest};

/// Whether a restart ends the slowness of an emulated straggler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterRestart {
    /// The restarted worker is as slow as before, as if the cause were its host.
    #[default]
    Keeps,
    /// The restarted worker is not slow, as if the cause were the old process.
    Cures,
}

/// One emulated straggler. Text form: `worker=1,slow=4,from=10s,to=60s,restart=cures`; only `worker` and `slow` are
/// required.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StragglerSpec {
    /// Index of the worker.
    pub worker: u32,
    /// Factor by which the worker's computation takes longer; at least 1.
    pub slow: f64,
    /// Time since the job's start at which the worker becomes slow.
    pub from: Duration,
    /// Time since the job's start at which the worker stops being slow; `None` for the end of the job.
    pub to: Option<Duration>,
    /// Whether a restart ends the slowness.
    pub restart: AfterRestart,
}

impl StragglerSpec {
    /// Returns the factor by which the worker's computation takes longer at a time since the job's start,
    /// after `restarts` restarts; 1 while it is not slow.
    pub fn factor(&self, restarts: u32, at: Duration) -> f64 {
        let cured = self.restart == AfterRestart::Cures && restarts > 0;
        let active = at >= self.from && self.to.is_none_or(|to| at < to);
        if active && !cured { self.slow } else { 1.0 }
    }

    pub(super) fn validate(&self, workers: u32) -> Result<(), InvalidValue> {
        let flag = "--straggler";
        if self.worker >= workers {
            let expected = match workers {
                1 => "0: there is one worker (--nproc-per-node 1)".to_owned(),
                _ => format!(
                    "0 to {}: there are {workers} workers (--nproc-per-node)",
                    workers.saturating_sub(1)
                ),
            };
            return Err(InvalidValue::new(format!("{flag} worker"), self.worker, expected));
        }
        if !(self.slow.is_finite() && self.slow >= 1.0) {
            let expected = "at least 1: how many times longer it takes than normal";
            return Err(InvalidValue::new(format!("{flag} slow"), self.slow, expected));
        }
        if let Some(to) = self.to
            && self.from >= to
        {
            let expected = format!("before to={}", format_duration(to));
            return Err(InvalidValue::new(format!("{flag} from"), format_duration(self.from), expected));
        }
        Ok(())
    }
}

impl FromStr for StragglerSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const FORM: &str = "worker=N,slow=FACTOR[,from=10s][,to=60s][,restart=keeps|cures]";
        const KEYS: [&str; 5] = ["worker", "slow", "from", "to", "restart"];
        let refused = || InvalidValue::new("--straggler", format!("`{text}`"), FORM);
        let (mut worker, mut slow) = (None, None);
        let (mut from, mut to, mut restart) = (Duration::ZERO, None, AfterRestart::Keeps);
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').ok_or_else(refused)?;
            let field = format!("--straggler {key}");
            match key {
                "worker" => {
                    let expected = "the index of a worker, such as 1";
                    worker = Some(value.parse().map_err(|_| InvalidValue::new(field, value, expected))?);
                }
                "slow" => {
                    let expected = "a number of at least 1, such as 4";
                    slow = Some(value.parse().map_err(|_| InvalidValue::new(field, value, expected))?);
                }
                "from" => from = named_duration(field, value)?,
                "to" => to = Some(named_duration(field, value)?),
                "restart" => {
                    restart = match value {
                        "keeps" => AfterRestart::Keeps,
                        "cures" => AfterRestart::Cures,
                        _ => return Err(InvalidValue::new(field, value, "keeps or cures")),
                    }
                }
                _ => {
                    let expected = match nearest(key, &KEYS) {
                        Some(known) => format!("a known word; did you mean `{known}`?"),
                        None => FORM.to_owned(),
                    };
                    return Err(InvalidValue::new("--straggler", format!("`{key}`"), expected));
                }
            }
        }
        let (Some(worker), Some(slow)) = (worker, slow) else { return Err(refused()) };
        Ok(Self { worker, slow, from, to, restart })
    }
}

impl fmt::Display for StragglerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker={},slow={}", self.worker, self.slow)?;
        if !self.from.is_zero() {
            write!(f, ",from={}", format_duration(self.from))?;
        }
        if let Some(to) = self.to {
            write!(f, ",to={}", format_duration(to))?;
        }
        if self.restart == AfterRestart::Cures {
            f.write_str(",restart=cures")?;
        }
        Ok(())
    }
}
