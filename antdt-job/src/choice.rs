//! [`choose`]: chooses the sync mode in which a job continues, by the measured cost of its first steps.
//!
//! The first steps are trained in the first of the modes. Two times are measured: the compute time of each
//! worker in each step, and the time of a step's transfers, taken from the worker that waits least for the
//! others. The cost of a step in each mode follows from these times and two properties of the mode: which
//! workers wait for each other, and the [`Traffic`] of an exchange.
//!
//! ```text
//! all wait:       Σ maxᵢ cᵢ over the steps of a round / their number + transfer / their number
//! all but b:      the (b + 1)th largest cᵢ + transfer
//! within s steps: in the long run the slowest sets the pace: maxᵢ mean cᵢ + transfer
//! no worker:      n / Σ 1 / (mean cᵢ + transfer)
//! a few, g:       the same, with (g - 1) / g of a median step added, the rest of its peers' steps
//! beside:         n / Σ 1 / max(mean cᵢ, transfer)
//! transfer:       hops × latency + loads × (transfer measured - its hops × latency) / its loads
//! ```
//!
//! Only time is compared, because how much a model learns from a sample in each mode is not known here. So a
//! job that does not name the modes chooses among modes with the same mathematics. A mode is not better if
//! its time is below that of the first mode by less than the error.
//!
//! Source: the cost of all-reduce and of servers as in Thakur et al. (2005) and Li et al. (2014), recalled; the rest is ours.

use antdt_core::{Barrier, Capabilities, InvalidValue, ParamPlace};

use crate::mode::SyncMode;

/// The messages of one exchange in which workers combine their results, for the comparison of sync modes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// Number of steps of a worker between two exchanges, at least 1.
    pub every: u32,
    /// Amount of data that passes the busiest network card, as a number of gradients or models. Directions
    /// that are not used at the same time are added.
    pub loads: f64,
    /// Number of messages that must follow one another.
    pub hops: f64,
    /// Whether the exchange moves whole models; otherwise it moves only the parameters that a step changes.
    pub whole: bool,
    /// Number of workers that wait for each other in an exchange.
    pub peers: u32,
    /// Whether the exchange runs while the next gradient is computed, with workers that are ready for it.
    pub beside: bool,
}

impl Traffic {
    /// Returns the usual exchange of a mode with these capabilities, in a job of this many workers and
    /// servers.
    pub fn usual(capabilities: Capabilities, workers: u32, servers: u32) -> Self {
        let doublings = f64::from(workers.max(1).next_power_of_two().ilog2());
        let all = 2.0 * f64::from(workers.saturating_sub(1)) / f64::from(workers.max(1));
        let usual =
            Self { every: 1, loads: all, hops: 4.0 * doublings, whole: false, peers: workers, beside: false };
        match (capabilities.dense, capabilities.barrier) {
            (ParamPlace::Replicas | ParamPlace::PerWorker, _) => usual,
            (ParamPlace::Servers, _) => {
                // A pull, then a push; each server has a part of the model for all workers.
                let busiest = (f64::from(workers) / f64::from(servers.max(1))).max(1.0);
                Self { loads: 2.0 * busiest, hops: 4.0, ..usual }
            }
            // A model to each of two neighbours, and the agreement of all.
            (ParamPlace::Mixed, Barrier::All) => {
                Self { loads: 2.0, hops: 1.0 + 2.0 * doublings, whole: true, ..usual }
            }
            (ParamPlace::Mixed, _) => Self::among(2),
        }
    }

    /// Returns the exchange in which `peers` workers average their whole models, in a group that the master
    /// forms and commits.
    pub fn among(peers: u32) -> Self {
        let peers = peers.max(2);
        let loads = 2.0 * f64::from(peers - 1) / f64::from(peers);
        Self { every: 1, loads, hops: 6.0, whole: true, peers, beside: false }
    }
}

/// Measurements of the first steps of a job, all in the same sync mode.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// Seconds that each worker computed in each step, `[workers][steps]`; at least one of each.
    pub compute: Vec<Vec<f64>>,
    /// Seconds that the transfers of each step took, `[steps]`.
    pub transfer: Vec<f64>,
    /// Seconds that one message takes; 0 if unknown, when it counts as a part of the data.
    pub latency: f64,
    /// Size of a whole model divided by the size of what a step changes; at least 1.
    pub whole: f64,
    /// Number of parameter servers, for modes that use servers.
    pub servers: u32,
}

impl Measured {
    /// Checks that the measurements are consistent.
    ///
    /// # Errors
    /// If there are no workers or steps, workers have different numbers of steps, or a time is negative or
    /// not finite.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let steps = self.transfer.len();
        if steps == 0 || self.compute.is_empty() {
            return Err(InvalidValue::new("measured steps", steps, "at least one, of at least one worker"));
        }
        if let Some(other) = self.compute.iter().find(|compute| compute.len() != steps) {
            return Err(InvalidValue::new("steps of a worker", other.len(), format!("{steps}, as of all")));
        }
        let times = self.compute.iter().flatten().chain(&self.transfer).chain([&self.latency]);
        if let Some(time) = times.into_iter().find(|time| !(time.is_finite() && **time >= 0.0)) {
            return Err(InvalidValue::new("measured seconds", time, "a finite number of at least 0"));
        }
        if !(self.whole.is_finite() && self.whole >= 1.0) {
            let expected = "at least 1: a step changes no more than the model";
            return Err(InvalidValue::new("size of the model", self.whole, expected));
        }
        Ok(())
    }

    fn workers(&self) -> u32 {
        u32::try_from(self.compute.len()).unwrap_or(u32::MAX)
    }

    fn traffic(&self, mode: &SyncMode) -> Traffic {
        mode.traffic(self.workers(), self.servers)
    }

    /// Seconds that all workers together need for as many steps as there are workers, in a job that was measured in the mode `in_mode`.
    fn step(&self, mode: &SyncMode, in_mode: &SyncMode) -> f64 {
        let of = self.traffic(mode);
        let transfer = self.transfer(&of, &self.traffic(in_mode));
        let means: Vec<f64> = self.compute.iter().map(|compute| mean(compute)).collect();
        let at_own_pace = |wait: f64| {
            let step = |compute: &f64| {
                if of.beside { compute.max(transfer) } else { compute + wait + transfer }
            };
            let paces = means.iter().map(|compute| step(compute).max(f64::MIN_POSITIVE).recip());
            f64::from(self.workers()) / paces.sum::<f64>()
        };
        match mode.capabilities().barrier {
            Barrier::All => self.slowest(0, of.every) + transfer / f64::from(of.every),
            Barrier::AllBut(backups) => self.slowest(backups as usize, of.every) + transfer,
            Barrier::Within(_) => means.iter().copied().fold(0.0, f64::max) + transfer,
            Barrier::Nobody => at_own_pace(0.0),
            Barrier::Peers => at_own_pace(median(&means) * f64::from(of.peers - 1) / f64::from(of.peers)),
        }
    }

    /// Seconds of an exchange.
    fn transfer(&self, of: &Traffic, measured: &Traffic) -> f64 {
        let size = |exchange: &Traffic| exchange.loads * if exchange.whole { self.whole } else { 1.0 };
        let moved = (mean(&self.transfer) - measured.hops * self.latency).max(0.0);
        let load = if size(measured) > 0.0 { moved / size(measured) } else { 0.0 };
        of.hops * self.latency + size(of) * load
    }

    /// Mean seconds of a step that waits for all workers but the slowest few, which all take some steps before they wait.
    fn slowest(&self, but: usize, every: u32) -> f64 {
        let steps = self.transfer.len();
        // Beyond all measured steps, rounds are alike.
        let every = (every as usize).min(steps);
        let of_round = |first: usize| {
            let round = |compute: &Vec<f64>| -> f64 {
                (first..first + every).map(|step| compute[step % steps]).sum()
            };
            let mut rounds: Vec<f64> = self.compute.iter().map(round).collect();
            rounds.sort_by(|a, b| b.total_cmp(a));
            rounds[but.min(rounds.len() - 1)]
        };
        #[allow(clippy::cast_precision_loss, reason = "few steps")]
        let rounds = (steps * every) as f64;
        (0..steps).map(of_round).sum::<f64>() / rounds
    }

    /// How far a time that follows from these may be off, as a share of it: twice the standard error of the measured steps, and at least
    /// what the model of costs leaves out.
    fn error(&self) -> f64 {
        let slowest = |step: usize| self.compute.iter().map(|compute| compute[step]).fold(0.0, f64::max);
        let times: Vec<f64> =
            self.transfer.iter().enumerate().map(|(step, transfer)| slowest(step) + transfer).collect();
        let (steps, mean) = (times.len(), mean(&times));
        if steps < 2 || mean <= 0.0 {
            return 1.0;
        }
        #[allow(clippy::cast_precision_loss, reason = "few steps")]
        let (steps, of_steps) = (steps as f64, (steps - 1) as f64);
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / of_steps;
        (2.0 * (variance / steps).sqrt() / mean).max(ERROR_LEAST)
    }
}

/// Share of a step's time that the model of costs may be off by: in emulated clusters its steps were within 10 % of real ones.
const ERROR_LEAST: f64 = 0.1;

/// The rest of a job, for the decision whether another sync mode pays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Left {
    /// Number of steps left, of all workers together.
    pub steps: f64,
    /// Seconds that the switch to another mode costs.
    pub switch: f64,
}

/// The sync mode in which a job continues, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenMode {
    /// Index of the chosen mode among those that were compared.
    pub at: usize,
    /// Predicted seconds of a step, with all workers, in each of the modes.
    pub seconds: Vec<f64>,
    /// Error of the predicted seconds, as a share of them.
    pub error: f64,
    /// Reason for the choice, in one line.
    pub why: String,
}

/// Chooses the sync mode in which a job continues. `measured` are steps in the first of `modes`; the job
/// stays in it unless another mode is faster by more than the error, and saves more in the rest of the job,
/// `left`, than the switch costs.
///
/// # Errors
/// If the measurements are inconsistent, or there are no modes.
pub fn choose(measured: &Measured, modes: &[SyncMode], left: Left) -> Result<ChosenMode, InvalidValue> {
    measured.validate()?;
    let Some(first) = modes.first() else {
        return Err(InvalidValue::new("modes", 0, "at least one to choose from"));
    };
    let seconds: Vec<f64> = modes.iter().map(|mode| measured.step(mode, first)).collect();
    let error = measured.error();
    let (best, least) =
        seconds.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0));
    let saved = (seconds[0] - least) * left.steps;
    let is_better = seconds[0] > least * (1.0 + error);
    let pays = saved > left.switch;
    let at = if is_better && pays { best } else { 0 };
    let of = |at: usize| format!("{} {}", modes[at], time(seconds[at]));
    let (computes, transfer) =
        (measured.compute.iter().map(|compute| mean(compute)), mean(&measured.transfer));
    let (fastest, slowest) =
        computes.fold((f64::INFINITY, 0.0_f64), |(least, most), time| (least.min(time), most.max(time)));
    let of_workers = format!("workers compute {} to {}", time(fastest), time(slowest));
    let facts = format!("{of_workers}, transfers take {}", time(transfer));
    let others: Vec<String> = (0..modes.len()).filter(|other| *other != at).map(of).collect();
    let because = if at != 0 {
        format!("saves about {} of what is left and costs {}", time(saved), time(left.switch))
    } else if best == 0 {
        "no other one is faster".to_owned()
    } else if !is_better {
        format!("{} is not faster by more than the error of {:.0} %", modes[best], error * 100.0)
    } else {
        format!("{} would save {} and cost {}", modes[best], time(saved.max(0.0)), time(left.switch))
    };
    let compared = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    let steps = measured.transfer.len();
    let why = format!("{} a step{compared}: {because}; over {steps} steps {facts}", of(at));
    Ok(ChosenMode { at, seconds, error, why })
}

fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

fn mean(of: &[f64]) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "few numbers")]
    let len = of.len().max(1) as f64;
    of.iter().sum::<f64>() / len
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn modes(names: &[&str]) -> Vec<SyncMode> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn measured(compute: &[f64], transfer: f64) -> Measured {
        Measured {
            compute: compute.iter().map(|compute| vec![*compute; 8]).collect(),
            transfer: vec![transfer; 8],
            latency: 0.0,
            whole: 1.0,
            servers: 2,
        }
    }

    const LONG: Left = Left { steps: 1000.0, switch: 2.0 };

    fn chosen(names: &[&str], measured: &Measured, left: Left) -> ChosenMode {
        choose(measured, &modes(names), left).unwrap()
    }

    #[test]
    fn each_mode_costs_as_its_barrier_and_its_exchange_say() {
        // 4 workers, one 5 times as slow; an all-reduce moves 1.5 loads in 0.3 s, so a load takes 0.2 s.
        let steps = measured(&[0.1, 0.1, 0.1, 0.5], 0.3);
        let names =
            ["allreduce", "ps-bsp", "ps-backup=1", "ps-asp", "ps-ssp=3", "local-sgd=4", "diloco=4", "d-psgd"];
        let found = chosen(&names, &steps, LONG).seconds;
        // Two servers have half of the model for 4 workers each: 2 * 2 loads.
        let own_pace = 4.0 / (3.0 / 0.9 + 1.0 / 1.3);
        let expected = [0.8, 1.3, 0.9, own_pace, 1.3, 0.575, 0.575, 0.9];
        for ((name, found), expected) in names.iter().zip(&found).zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{name}: {found} {expected}");
        }
        // In pairs a worker waits for half of a median step, and moves one load.
        let found =
            chosen(&["allreduce", "ripples=division:2", "ad-psgd", "ad-psgd=overlap"], &steps, LONG).seconds;
        let in_pairs = 4.0 / (3.0 / 0.35 + 1.0 / 0.75);
        assert!((found[1] - in_pairs).abs() < 1e-9 && (found[2] - in_pairs).abs() < 1e-9, "{found:?}");
        // Beside the gradient it never waits, and the load takes longer than a fast gradient.
        let beside = 4.0 / (3.0 / 0.2 + 1.0 / 0.5);
        assert!((found[3] - beside).abs() < 1e-9, "{found:?}");
        // A whole model is larger than what a step changes.
        let found =
            chosen(&["allreduce", "ad-psgd"], &Measured { whole: 3.0, ..steps.clone() }, LONG).seconds[1];
        let in_pairs = 4.0 / (3.0 / 0.75 + 1.0 / 1.15);
        assert!((found - in_pairs).abs() < 1e-9, "{found}");
        // 8 messages of an all-reduce take 80 ms of the 300; 4 to servers take 40.
        let slow = Measured { latency: 0.01, ..steps };
        let found = chosen(&["allreduce", "ps-bsp"], &slow, LONG).seconds;
        assert!((found[0] - 0.8).abs() < 1e-9, "what was measured stays");
        assert!((found[1] - (0.5 + 0.04 + 4.0 * 0.22 / 1.5)).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_job_goes_on_as_it_began_unless_another_mode_saves_more_than_it_costs() {
        let names = ["allreduce", "local-sgd=8"];
        let steps = measured(&[0.1, 0.1], 0.4);
        let choice = chosen(&names, &steps, LONG);
        assert_eq!(choice.at, 1);
        assert_eq!(
            choice.why,
            "local-sgd=8 150 ms a step (allreduce 500 ms): saves about 350.0 s of what is left and costs 2.0 s; over 8 steps workers \
             compute 100 ms to 100 ms, transfers take 400 ms"
        );
        let short = chosen(&names, &steps, Left { steps: 4.0, switch: 2.0 });
        assert_eq!(short.at, 0);
        assert!(short.why.contains("local-sgd=8 would save 1.4 s and cost 2.0 s"), "{}", short.why);
        let near = chosen(&names, &measured(&[0.1, 0.1], 0.01), LONG);
        assert_eq!(near.at, 0);
        assert!(near.why.contains("is not faster by more than the error of 10 %"), "{}", near.why);
        let same = chosen(&["allreduce"], &steps, LONG);
        assert!(same.at == 0 && same.why.contains("no other one is faster"), "{}", same.why);
        assert!(!choice.why.contains('\n'));
    }

    #[test]
    fn steps_that_differ_much_are_no_reason_to_switch() {
        let mut steps = measured(&[0.1, 0.1], 0.05);
        let names = ["allreduce", "local-sgd=8"];
        assert_eq!(chosen(&names, &steps, LONG).at, 1);
        steps.compute[0] = vec![0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 2.0];
        let choice = chosen(&names, &steps, LONG);
        assert!(choice.error > 1.0 && choice.at == 0, "{choice:?}");
    }

    #[test]
    fn choices_that_do_not_fit_are_refused() {
        let fits = measured(&[0.1, 0.2], 0.1);
        let wrong = [
            Measured::default(),
            Measured { transfer: vec![0.1], ..fits.clone() },
            Measured { latency: f64::NAN, ..fits.clone() },
            Measured { whole: 0.5, ..fits.clone() },
            Measured { compute: vec![vec![-1.0; 8]; 2], ..fits.clone() },
        ];
        for wrong in wrong {
            assert!(choose(&wrong, &modes(&["allreduce"]), LONG).is_err(), "{wrong:?}");
        }
        assert!(choose(&fits, &[], LONG).is_err());
    }

    proptest! {
        #[test]
        fn a_choice_is_never_slower_by_its_own_figures_and_always_pays(
            compute in prop::collection::vec(prop::collection::vec(0.0_f64..2.0, 6), 1..9),
            transfer in prop::collection::vec(0.0_f64..2.0, 6),
            latency in 0.0_f64..0.2, whole in 1.0_f64..100.0, servers in 0_u32..5,
            steps in 0.0_f64..1e4, switch in 0.0_f64..100.0,
        ) {
            let measured = Measured { compute, transfer, latency, whole, servers };
            let modes = SyncMode::examples();
            let choice = choose(&measured, &modes, Left { steps, switch }).unwrap();
            prop_assert!(choice.seconds.iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0));
            if choice.at != 0 {
                let (before, after) = (choice.seconds[0], choice.seconds[choice.at]);
                prop_assert!(choice.seconds.iter().all(|seconds| *seconds >= after));
                prop_assert!(before > after * (1.0 + choice.error) && (before - after) * steps > switch);
            }
            prop_assert!(!choice.why.contains('\n') && choice.error >= ERROR_LEAST);
        }
    }
}
