//! The sync mode `ps-ssp=STEPS`: parameter servers, each worker at its own pace, but none far ahead of the
//! others.
//!
//! As in `ps-asp` each push counts on its own. Before each step a worker asks the master,
//! which lets it begin when it is at most `STEPS` steps ahead of the slowest worker that has data. So no gradient is computed on
//! parameters that lack more than a bounded number of the others' pushes. A worker that waits for data delays no other; one that
//! joins starts at the clock of the slowest; a rollback sets all clocks back.
//!
//! A worker that waits for permission gets an answer when the master has orders for it. Otherwise a
//! checkpoint, for which every worker pauses, would wait for workers that wait for paused ones.
//!
//! A step of a worker: `Exchange`, `Load`, `Ready`, `Pull`, `Compute`, `Push`, `Ready`, `Apply`.
//!
//! Source: stale synchronous parallel training (Ho et al., 2013; recalled); what joins, deaths and waits for data mean is our design.

mod head;
mod worker;

use antdt_core::{Capabilities, InvalidValue};

use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `ps-ssp` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ps-ssp",
    setting: Some("STEPS"),
    about: "the model lives on servers; each worker trains at its own pace, at most STEPS steps ahead of the slowest",
    example: "ps-ssp=2",
    parse,
};

/// What a worker asks the master in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Whether it may begin the step.
    Turn,
    /// To count its push, which all servers have.
    Counts,
}

/// The number of a question: no answer to one of a step is taken for that to the other.
const fn number(step: u64, question: Question) -> u64 {
    2 * step + question as u64
}

/// The step that a question of this number is about.
const fn step_of(number: u64) -> u64 {
    number / 2
}

/// Largest lead: beyond, a slip of the hand is likelier than a wish.
const STEPS_MAX: u32 = 1_000_000;

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    let steps = setting.and_then(|steps| steps.parse().ok()).filter(|steps| *steps <= STEPS_MAX);
    let refused = || {
        let given = setting.map_or_else(|| ENTRY.name.to_owned(), |given| format!("{}={given}", ENTRY.name));
        let expected = format!(
            "{} with 0 to {STEPS_MAX} steps that a worker may be ahead, such as {}",
            ENTRY.usage(),
            ENTRY.example
        );
        InvalidValue::new("--sync", given, expected)
    };
    steps.map(|steps| SyncMode::new(PsSsp { steps })).ok_or_else(refused)
}

/// The sync mode `ps-ssp`: parameter servers, with a bound on the lead of a worker. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct PsSsp {
    /// Number of steps that a worker may be ahead of the slowest worker that still has data.
    pub steps: u32,
}

impl Mode for PsSsp {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        Some(self.steps.to_string())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::servers_within(self.steps)
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(head::Head::new(self.steps))
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(worker::Worker::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_is_a_number_of_steps_and_written_back() {
        for steps in ["0", "8"] {
            let text = format!("ps-ssp={steps}");
            let mode: SyncMode = text.parse().unwrap();
            assert_eq!((mode.name(), mode.to_string()), ("ps-ssp", text));
        }
        for wrong in ["ps-ssp", "ps-ssp=", "ps-ssp=x", "ps-ssp=-1", "ps-ssp=1000001"] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            assert!(error.contains("--sync") && error.contains("such as ps-ssp=2"), "{error}");
        }
    }
}
