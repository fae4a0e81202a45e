//! The sync mode `local-sgd=STEPS`: every worker trains a separate model; after some steps all models are
//! averaged.
//!
//! A round is up to `STEPS` steps of each worker with its own optimizer, then one average over all workers, weighted by the
//! samples that each trained since the last one. A worker that gets no samples ends its round early, so that no other worker waits for
//! data. The samples of a round are acknowledged when its average is agreed on. A worker that dies takes at most one round
//! with it, whose samples go to others; the survivors keep the steps that they have taken. A plan may change the number of
//! steps, from one round to the next, on all workers at once.
//!
//! A worker that loses a lease in the middle of a round, as a restart of the shard service may have it, undoes the round and
//! takes its steps again without those samples.
//!
//! A round of a worker: (`Load`, `Compute`, `Advance`) as many times as it takes steps, `Combine`, `Agree`, `Apply`, `Exchange`.
//!
//! Source: local SGD (Stich, 2018; recalled); weights, leases and what a death means are our design.

use antdt_core::{Capabilities, InvalidValue};

use crate::choice::Traffic;

use super::shared::group::Group;
use super::shared::local_steps::LocalSteps;
use super::shared::member::Member;
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `local-sgd` in the registry.
pub const ENTRY: Entry = Entry {
    name: "local-sgd",
    setting: Some("STEPS"),
    about: "every worker trains a model of its own; all are averaged every STEPS steps",
    example: "local-sgd=4",
    parse,
};

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    let steps = setting.and_then(LocalSteps::read);
    let refused = || {
        let given = setting.map_or_else(|| ENTRY.name.to_owned(), |given| format!("{}={given}", ENTRY.name));
        let expected = format!(
            "{} with 1 to {} steps between two averages, such as {}",
            ENTRY.usage(),
            LocalSteps::MOST,
            ENTRY.example
        );
        InvalidValue::new("--sync", given, expected)
    };
    steps.map(|steps| SyncMode::new(LocalSgd { steps })).ok_or_else(refused)
}

/// The sync mode `local-sgd`: after some steps of each worker all models are averaged. See the
/// [module](self).
#[derive(Debug, Clone, Copy)]
pub struct LocalSgd {
    /// Number of steps that a worker takes between two averages, unless a plan says otherwise; at least 1.
    pub steps: u32,
}

impl Mode for LocalSgd {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        Some(self.steps.to_string())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::AVERAGED
    }

    fn traffic(&self, workers: u32, servers: u32) -> Traffic {
        Traffic { every: self.steps, ..Traffic::usual(self.capabilities(), workers, servers) }
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Group::default())
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Member::new(LocalSteps::new(self.steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_steps_is_at_least_one_and_written_back() {
        let mode: SyncMode = "local-sgd=8".parse().unwrap();
        assert_eq!((mode.name(), mode.to_string().as_str()), ("local-sgd", "local-sgd=8"));
        for wrong in
            ["local-sgd", "local-sgd=", "local-sgd=0", "local-sgd=x", "local-sgd=-1", "local-sgd=1000001"]
        {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            assert!(error.contains("--sync") && error.contains("such as local-sgd=4"), "{error}");
        }
    }
}
