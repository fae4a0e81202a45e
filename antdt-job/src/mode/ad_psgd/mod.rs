//! The sync mode `ad-psgd`: every worker trains a separate model, and averages it from time to time with that
//! of one other worker, in pairs that the master forms.
//!
//! Half of the workers are active, the others passive. After a step an active worker is paired with a passive one, drawn evenly from
//! those that are in no pair; when that one has finished its step too, both average their models. A passive worker that was not
//! drawn goes on at once. An active worker draws no worker that is three or more steps behind it; the slow worker draws the fast one
//! instead, so that no worker waits for it and it is not left alone either: see [`Bipartite`].
//!
//! Pairs are groups of two, which the master forms, commits and voids as those of [`ripples`](super::ripples), from which this mode
//! differs in its policy only. What a death, a checkpoint or the end of the data mean is the same.
//!
//! A step of a worker: `Load`, `Compute`, `Advance`, `Ready` (with which worker), and if there is one, `Combine`, `Ready` (it is averaged),
//! `Apply`.
//!
//! # What was rejected
//!
//! - *A passive worker that answers in the middle of its step*, as the paper has it. The training loop of a worker makes one call at a
//!   time; an exchange beside the gradient needs a copy of the model to exchange and a call that goes on while others are made.
//! - *A first come, first served order of pairs.* Two workers that have averaged begin the next step at the same moment, and would meet
//!   again and again.
//!
//! Source: AD-PSGD (Lian et al., 2018; recalled); that the master commits pairs, and what a death means, is our design.

use antdt_core::{Capabilities, InvalidValue};
use antdt_groups::{Bipartite, GeneratorConfig};

use super::shared::grouped::{Head, Worker};
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `ad-psgd` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ad-psgd",
    setting: None,
    about: "every worker trains a model of its own; each active one averages it with a random passive one after its step, and no other worker waits",
    example: "ad-psgd",
    parse,
};

fn parse(_: Option<&str>) -> Result<SyncMode, InvalidValue> {
    Ok(SyncMode::new(AdPsgd))
}

/// The sync mode `ad-psgd`: pairs of workers average their models. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct AdPsgd;

impl Mode for AdPsgd {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::MIXED_IN_GROUPS
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        // Even draws connect all workers; a group that connects what had nothing in common would be of more than two, or of one side.
        let config = GeneratorConfig { bridges: false, ..GeneratorConfig::default() };
        Box::new(Head::new(config, Box::new(Bipartite)))
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Worker::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_nothing_to_set() {
        assert_eq!("ad-psgd".parse::<SyncMode>().unwrap().to_string(), "ad-psgd");
        for wrong in ["ad-psgd=overlap", "ad-psgd="] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            assert_eq!(error, format!("--sync = {wrong}: must be ad-psgd, without `=`"));
        }
    }
}
