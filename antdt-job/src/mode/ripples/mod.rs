//! The sync mode `ripples=POLICY[:SIZE]`: every worker trains a separate model, and averages it with the
//! group that a generator in the master forms.
//!
//! After a step a worker asks the master for its group. The [`GroupGenerator`](antdt_groups::GroupGenerator) forms groups among the workers that are not too far behind;
//! when all members of one have asked, they average their models beside them and report it, and when all have reported, the
//! master commits: it acknowledges their samples and tells them to go on with the average. So a slow worker delays the members of its
//! groups only, and a group counts for all of its members or for none.
//!
//! When a worker comes, leaves or dies, groups that run are void, and all members meet: a new generation of groups begins. A step that is
//! in no committed group stays in its worker's model and is part of its next average. Before a checkpoint and at the end all workers
//! average with all, which makes the mean of all models the model of each.
//!
//! A step of a worker: `Load`, `Compute`, `Advance`, `Ready` (which group), `Combine`, `Ready` (it is averaged), `Apply`.
//!
//! Source: Ripples (arXiv 1909.08029) and Prague (ASPLOS 2020), recalled, see [`antdt_groups`]; that the master commits groups and
//! acknowledges their samples, and what a death means, is our design.

use std::fmt;

use antdt_core::{Capabilities, InvalidValue};
use antdt_groups::{
    Division, FirstToArrive, GeneratorConfig, GroupPolicy, InterIntra, ProgressFilter, Random,
};

use crate::choice::Traffic;

use super::shared::grouped::{Head, Worker};
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `ripples` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ripples",
    setting: Some("POLICY"),
    about: "every worker trains a model of its own and averages it in groups that the master forms: smart, division, buffer or arrival, as in smart:4",
    example: "ripples=smart:2",
    parse,
};

/// Members of a group unless the job says otherwise: in groups of 3 progress spreads nearly twice as fast as in pairs, and few wait.
const SIZE_DEFAULT: u32 = 3;

/// Most members of a group: beyond, a slip of the hand is likelier than a wish.
const SIZE_MAX: u32 = 4096;

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    setting.and_then(read).map(SyncMode::new).ok_or_else(|| {
        let given = setting.map_or_else(|| ENTRY.name.to_owned(), |given| format!("{}={given}", ENTRY.name));
        let expected = format!(
            "{0}=smart, {0}=division, {0}=buffer or {0}=arrival, or with the size of a group from 2 to {SIZE_MAX}, such as {0}=smart:4; \
             :{UNFILTERED} after it lets groups have members that are far behind",
            ENTRY.name
        );
        InvalidValue::new("--sync", given, expected)
    })
}

/// What turns the filter off.
const UNFILTERED: &str = "filter=off";

fn read(text: &str) -> Option<Ripples> {
    let (text, filtered) = text
        .strip_suffix(UNFILTERED)
        .and_then(|rest| rest.strip_suffix(':'))
        .map_or((text, true), |rest| (rest, false));
    let (name, size) = text.split_once(':').map_or((text, None), |(name, size)| (name, Some(size)));
    let size = size.map_or(Some(SIZE_DEFAULT), |size| size.parse().ok())?;
    let grouping = Grouping::ALL.into_iter().find(|grouping| grouping.name() == name)?;
    (2..=SIZE_MAX).contains(&size).then_some(Ripples { grouping, size, filtered })
}

/// How the generator chooses the workers of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// Alternately one worker of each host, and all workers of each host; on a single host as
    /// [`Division`](Self::Division).
    Smart,
    /// All idle workers, divided into groups.
    Division,
    /// Workers drawn at random, idle or not; a worker runs the groups that it is in one after the other, in
    /// the order in which they were drawn.
    Buffer,
    /// The workers that arrive first.
    Arrival,
}

impl Grouping {
    const ALL: [Self; 4] = [Self::Smart, Self::Division, Self::Buffer, Self::Arrival];

    const fn name(self) -> &'static str {
        match self {
            Self::Smart => "smart",
            Self::Division => "division",
            Self::Buffer => "buffer",
            Self::Arrival => "arrival",
        }
    }
}

/// The sync mode `ripples`: the master forms groups of workers that average their models. See the
/// [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Ripples {
    /// How the generator chooses the workers of a group.
    pub grouping: Grouping,
    /// Number of members of a group, in groupings that do not take all workers of a host; at least 2.
    pub size: u32,
    /// Whether workers that are far behind are left out of groups.
    pub filtered: bool,
}

impl Ripples {
    /// The policy of the generator.
    fn groups(self) -> Box<dyn GroupPolicy> {
        let made: Result<Box<dyn GroupPolicy>, InvalidValue> = match self.grouping {
            Grouping::Smart => InterIntra::new(self.size).map(|policy| Box::new(policy) as _),
            Grouping::Division => Division::new(self.size).map(|policy| Box::new(policy) as _),
            Grouping::Buffer => Random::buffered(self.size).map(|policy| Box::new(policy) as _),
            Grouping::Arrival => FirstToArrive::new(self.size).map(|policy| Box::new(policy) as _),
        };
        made.expect("the size was checked")
    }
}

impl fmt::Display for Ripples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.grouping.name(), self.size)?;
        if self.filtered { Ok(()) } else { write!(f, ":{UNFILTERED}") }
    }
}

impl Mode for Ripples {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::MIXED_IN_GROUPS
    }

    fn traffic(&self, workers: u32, _servers: u32) -> Traffic {
        Traffic::among(self.size.min(workers))
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        let filter = if self.filtered { ProgressFilter::default() } else { ProgressFilter::off() };
        let config = GeneratorConfig { filter, ..GeneratorConfig::default() };
        Box::new(Head::new(config, self.groups()))
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Worker::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_named_and_groups_have_at_least_two_members() {
        for (text, written) in [
            ("ripples=smart", "ripples=smart:3"),
            ("ripples=division:2", "ripples=division:2"),
            ("ripples=buffer:4096", "ripples=buffer:4096"),
            ("ripples=arrival", "ripples=arrival:3"),
            ("ripples=smart:filter=off", "ripples=smart:3:filter=off"),
            ("ripples=smart:2:filter=off", "ripples=smart:2:filter=off"),
        ] {
            assert_eq!(text.parse::<SyncMode>().unwrap().to_string(), written);
        }
        for wrong in [
            "ripples",
            "ripples=",
            "ripples=random",
            "ripples=fast",
            "ripples=smart:",
            "ripples=smart:1",
            "ripples=smart:4097",
            "ripples=filter=off",
            "ripples=smart:filter=on",
            "ripples=smart:2:3",
        ] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            let expected =
                format!("--sync = {wrong}: must be ripples=smart, ripples=division, ripples=buffer or");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
