//! The sync mode `diloco=STEPS`: as `local-sgd`, but an outer optimizer computes the next model from each
//! average.
//!
//! Workers and master decide as under [`local-sgd`](super::local_sgd), and a sample is acknowledged with the
//! same average. Only the effect of an average differs: the difference between the last common model and the
//! mean of all models is the gradient of an outer optimizer with momentum, whose state is the same on all
//! workers.
//!
//! Source: DiLoCo (Douillard et al., 2023; recalled), and its outer optimizer, Nesterov momentum with a rate of 0.7 and a momentum of
//! 0.9. The mean by samples, leases and what a death means are our design.

use antdt_core::{Capabilities, InvalidValue};

use crate::choice::Traffic;

use super::shared::group::Group;
use super::shared::local_steps::LocalSteps;
use super::shared::member::Member;
use super::{Entry, HeadHalf, Mode, OuterStep, SyncMode, WorkerHalf};

/// Entry of the sync mode `diloco` in the registry.
pub const ENTRY: Entry = Entry {
    name: "diloco",
    setting: Some("STEPS"),
    about: "as local-sgd; each average is a step of an outer optimizer with momentum",
    example: "diloco=4",
    parse,
};

/// The outer optimizer of the paper.
const DEFAULT: OuterStep = OuterStep { rate: 0.7, momentum: 0.9 };

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    setting.and_then(read).map(SyncMode::new).ok_or_else(|| {
        let given = setting.map_or_else(|| ENTRY.name.to_owned(), |given| format!("{}={given}", ENTRY.name));
        let OuterStep { rate, momentum } = DEFAULT;
        let expected = format!(
            "{} with 1 to {} steps between two averages, then perhaps :rate=RATE above 0 and :momentum=SHARE from 0 to below 1, such as \
             {} or {}:rate={rate}:momentum={momentum}",
            ENTRY.usage(),
            LocalSteps::MOST,
            ENTRY.example,
            ENTRY.example,
        );
        InvalidValue::new("--sync", given, expected)
    })
}

fn read(text: &str) -> Option<DiLoCo> {
    let mut parts = text.split(':');
    let steps = LocalSteps::read(parts.next()?)?;
    let (mut rate, mut momentum) = (None, None);
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let number: f32 = value.parse().ok().filter(|number: &f32| number.is_finite())?;
        let setting = match name {
            "rate" if number > 0.0 => &mut rate,
            "momentum" if (0.0..1.0).contains(&number) => &mut momentum,
            _ => return None,
        };
        if setting.replace(number).is_some() {
            return None;
        }
    }
    let outer =
        OuterStep { rate: rate.unwrap_or(DEFAULT.rate), momentum: momentum.unwrap_or(DEFAULT.momentum) };
    Some(DiLoCo { steps, outer })
}

/// The sync mode `diloco`: an outer optimizer applies the averages of all models. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct DiLoCo {
    /// Number of steps of a worker between two averages, unless a plan says otherwise; at least 1.
    pub steps: u32,
    /// Outer optimizer, which changes the model by one step at each average.
    pub outer: OuterStep,
}

impl Mode for DiLoCo {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        let OuterStep { rate, momentum } = self.outer;
        let mut text = self.steps.to_string();
        if rate != DEFAULT.rate {
            text += &format!(":rate={rate}");
        }
        if momentum != DEFAULT.momentum {
            text += &format!(":momentum={momentum}");
        }
        Some(text)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::AVERAGED
    }

    fn outer(&self) -> Option<OuterStep> {
        Some(self.outer)
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
    fn the_outer_optimizer_is_that_of_the_paper_unless_the_setting_says_otherwise() {
        for (text, rate, momentum, written) in [
            ("diloco=8", 0.7, 0.9, "diloco=8"),
            ("diloco=8:rate=0.7", 0.7, 0.9, "diloco=8"),
            ("diloco=1:rate=1:momentum=0", 1.0, 0.0, "diloco=1:rate=1:momentum=0"),
            ("diloco=1:momentum=0.5", 0.7, 0.5, "diloco=1:momentum=0.5"),
        ] {
            let mode: SyncMode = text.parse().unwrap();
            assert_eq!((mode.name(), mode.to_string().as_str()), ("diloco", written));
            assert_eq!(mode.outer(), Some(OuterStep { rate, momentum }));
            assert_eq!(mode, written.parse().unwrap());
        }
        assert_eq!("local-sgd=8".parse::<SyncMode>().unwrap().outer(), None);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_in_one_line() {
        for wrong in [
            "",
            "=",
            "=0",
            "=x",
            "=1000001",
            "=4:",
            "=4:rate",
            "=4:rate=0",
            "=4:rate=-1",
            "=4:rate=inf",
            "=4:rate=nan",
            "=4:momentum=1",
            "=4:momentum=-0.1",
            "=4:rate=1:rate=1",
            "=4:nesterov=1",
        ] {
            let error = format!("diloco{wrong}").parse::<SyncMode>().unwrap_err().to_string();
            assert!(
                error.contains("--sync")
                    && error.contains("such as diloco=4 or diloco=4:rate=0.7:momentum=0.9")
                    && !error.contains('\n'),
                "{error}"
            );
        }
    }
}
