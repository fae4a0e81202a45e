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
//! # With `overlap`
//!
//! A worker averages while it computes its next gradient, and applies the gradient to the average: `x = average - rate * g(x_t)`, where
//! `x_t` is its model when the gradient was begun. The gradient is computed on a copy of the model. Beside it the training thread
//! asks for a partner; averages are the only changes of the model until the gradient is there, so both members of a pair bring the
//! model that the mean replaces, and the mean of all models stays. Only workers that ask at the same time are
//! paired ([`OpenPairs`](antdt_groups::OpenPairs)): an active one has one average in a step, a passive one answers as often as it is drawn. When the gradient is
//! there before a partner, the worker takes the question back and goes on; only an average that has begun is waited for.
//!
//! A step of a worker: `Load`, `ComputeBeside`, any number of averages, each `ReadyBeside` (with which worker), `Combine`, `Ready` (it is
//! averaged), `Apply`; then `Ready` (the question is taken back) or `Finish`, and `Advance`.
//!
//! # What was rejected
//!
//! - *Two calls of a training loop at a time*, one for the gradient and one for the average: each mode, the simulator and all
//!   checks would have to know of replies that cross. A gradient that was begun and is waited for later needs one new pair of calls.
//! - *Averages in a thread of their own, and a lock for the model.* The averages stay with the thread that has the connections; the gradient,
//!   which needs neither them nor the model, has a thread.
//! - *A first come, first served order of pairs.* Two workers that have averaged begin the next step at the same moment, and would meet
//!   again and again.
//!
//! Source: AD-PSGD (Lian et al., 2018; recalled); that the master commits pairs, and what a death means, is our design.

use antdt_core::{Capabilities, InvalidValue};
use antdt_groups::{Bipartite, GeneratorConfig};

use super::shared::grouped::{Head, Worker};
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};
use crate::choice::Traffic;

/// Entry of the sync mode `ad-psgd` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ad-psgd",
    setting: Some("[overlap]"),
    about: "every worker trains a model of its own; each active one averages it with a random passive one after its step, \
            or with overlap beside its gradient, and no other worker waits",
    example: "ad-psgd",
    parse,
};

/// The setting by which averages run beside gradients.
const OVERLAP: &str = "overlap";

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    match setting {
        None => Ok(SyncMode::new(AdPsgd { overlap: false })),
        Some(OVERLAP) => Ok(SyncMode::new(AdPsgd { overlap: true })),
        Some(given) => {
            let expected = format!("{0} or {0}={OVERLAP}", ENTRY.name);
            Err(InvalidValue::new("--sync", format!("{}={given}", ENTRY.name), expected))
        }
    }
}

/// The sync mode `ad-psgd`: pairs of workers average their models. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct AdPsgd {
    /// Whether averages run while gradients are computed.
    pub overlap: bool,
}

impl Mode for AdPsgd {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        self.overlap.then(|| OVERLAP.to_owned())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::MIXED_IN_GROUPS
    }

    fn traffic(&self, workers: u32, servers: u32) -> Traffic {
        Traffic { beside: self.overlap, ..Traffic::usual(self.capabilities(), workers, servers) }
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        if self.overlap {
            return Box::new(Head::of_open_pairs());
        }
        // Even draws connect all workers; a group that connects what had nothing in common would be of more than two, or of one side.
        let config = GeneratorConfig { bridges: false, ..GeneratorConfig::default() };
        Box::new(Head::new(config, Box::new(Bipartite)))
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(if self.overlap { Worker::overlapping() } else { Worker::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_may_overlap_and_nothing_else_can_be_set() {
        for text in ["ad-psgd", "ad-psgd=overlap"] {
            assert_eq!(text.parse::<SyncMode>().unwrap().to_string(), text);
        }
        for wrong in ["ad-psgd=overlaps", "ad-psgd=", "ad-psgd=1"] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            assert_eq!(error, format!("--sync = {wrong}: must be ad-psgd or ad-psgd=overlap"));
        }
    }
}
