//! Emulated stragglers: workers and servers that are made slow to see what the policy does.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use antdt_core::text::{format_duration, named_duration, nearest};
use antdt_core::{InvalidValue, NodeId, Role};

/// Whether a restart ends the slowness of an emulated straggler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterRestart {
    /// The restarted node is as slow as before, as if the cause were its host.
    #[default]
    Keeps,
    /// The restarted node is not slow, as if the cause were the old process.
    Cures,
}

/// One emulated straggler. Text form: `worker=1,slow=4,from=10s,to=60s,restart=cures`; only `worker`, or `server`, and `slow` are
/// required.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StragglerSpec {
    /// The worker or the server.
    pub node: NodeId,
    /// Factor by which the worker's computation, or each request to the server, takes longer; at least 1.
    pub slow: f64,
    /// Time since the job's start at which the node becomes slow.
    pub from: Duration,
    /// Time since the job's start at which the node stops being slow; `None` for the end of the job.
    pub to: Option<Duration>,
    /// Whether a restart ends the slowness.
    pub restart: AfterRestart,
}

impl StragglerSpec {
    /// Returns the factor by which the node's work takes longer at a time since the job's start,
    /// after `restarts` restarts; 1 while it is not slow.
    pub fn factor(&self, restarts: u32, at: Duration) -> f64 {
        let cured = self.restart == AfterRestart::Cures && restarts > 0;
        let active = at >= self.from && self.to.is_none_or(|to| at < to);
        if active && !cured { self.slow } else { 1.0 }
    }

    pub(super) fn validate(&self, workers: u32, servers: u32) -> Result<(), InvalidValue> {
        let flag = "--straggler";
        let (role, count, setting) = match self.node.role {
            Role::Worker => ("worker", workers, "--nproc-per-node"),
            Role::Server => ("server", servers, "--servers"),
        };
        if self.node.index >= count {
            let expected = match count {
                0 => format!("left out: there are no {role}s ({setting})"),
                1 => format!("0: there is one {role} ({setting} 1)"),
                _ => format!("0 to {}: there are {count} {role}s ({setting})", count - 1),
            };
            return Err(InvalidValue::new(format!("{flag} {role}"), self.node.index, expected));
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
        const FORM: &str = "worker=N or server=N, then slow=FACTOR[,from=10s][,to=60s][,restart=keeps|cures]";
        const KEYS: [&str; 6] = ["worker", "server", "slow", "from", "to", "restart"];
        let refused = || InvalidValue::new("--straggler", format!("`{text}`"), FORM);
        let (mut node, mut slow) = (None, None);
        let (mut from, mut to, mut restart) = (Duration::ZERO, None, AfterRestart::Keeps);
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').ok_or_else(refused)?;
            let field = format!("--straggler {key}");
            match key {
                "worker" | "server" if node.is_none() => {
                    let expected = format!("the index of a {key}, such as 1");
                    let index = value.parse().map_err(|_| InvalidValue::new(field, value, expected))?;
                    node = Some(if key == "worker" { NodeId::worker(index) } else { NodeId::server(index) });
                }
                "worker" | "server" => return Err(refused()),
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
        let (Some(node), Some(slow)) = (node, slow) else { return Err(refused()) };
        Ok(Self { node, slow, from, to, restart })
    }
}

impl fmt::Display for StragglerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.node.role {
            Role::Worker => "worker",
            Role::Server => "server",
        };
        write!(f, "{role}={},slow={}", self.node.index, self.slow)?;
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
