//! [`SyncSpec`]: the sync mode of a job, or several modes of which the master chooses one when it has measured the
//! first steps.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use antdt_core::{Capabilities, InvalidValue};
use antdt_job::SyncMode;
use antdt_job::mode::{Entry, REGISTRY};

/// What stands for a choice.
const AUTO: &str = "auto";

/// The sync mode of a job. Text form: that of a mode; or `auto=MODE,MODE`, to let the master choose one of
/// these modes; or `auto`, to let it choose among the modes whose result is that of one process with the
/// whole batch.
///
/// With several modes it dereferences to the first one, in which the job begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncSpec {
    modes: Vec<SyncMode>,
    /// `Some` if one of the modes is to be chosen; whether they were named.
    choice: Option<bool>,
}

impl SyncSpec {
    /// Returns the modes to choose from if the master chooses the mode, and whether the user named them;
    /// `None` if the job has one mode.
    pub fn choice(&self) -> Option<(&[SyncMode], bool)> {
        self.choice.map(|named| (&self.modes[..], named))
    }

    /// Returns the texts of the modes, for the help and the schema.
    pub(super) fn usages() -> Vec<String> {
        REGISTRY.entries().iter().map(Entry::usage).chain([format!("{AUTO}[=MODES]")]).collect()
    }

    /// The modes with which a job is trained as by one process with the whole batch: those that differ in who adds up gradients only.
    fn alike() -> Self {
        let alike = [Capabilities::REPLICAS_IN_STEP, Capabilities::SERVERS_IN_STEP];
        let modes = SyncMode::examples().into_iter().filter(|mode| alike.contains(&mode.capabilities()));
        Self { modes: modes.collect(), choice: Some(false) }
    }
}

impl From<SyncMode> for SyncSpec {
    fn from(mode: SyncMode) -> Self {
        Self { modes: vec![mode], choice: None }
    }
}

impl Default for SyncSpec {
    fn default() -> Self {
        SyncMode::default().into()
    }
}

impl Deref for SyncSpec {
    type Target = SyncMode;

    fn deref(&self) -> &SyncMode {
        &self.modes[0]
    }
}

impl fmt::Display for SyncSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.choice {
            None => fmt::Display::fmt(&**self, f),
            Some(false) => f.write_str(AUTO),
            Some(true) => {
                let modes: Vec<String> = self.modes.iter().map(ToString::to_string).collect();
                write!(f, "{AUTO}={}", modes.join(","))
            }
        }
    }
}

impl FromStr for SyncSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let Some(rest) = text.strip_prefix(AUTO) else { return text.parse().map(SyncMode::into) };
        if rest.is_empty() {
            return Ok(Self::alike());
        }
        let refused =
            || InvalidValue::new("--sync", text, "auto, or auto=MODE,MODE with two modes or more, each once");
        let named = rest.strip_prefix('=').ok_or_else(refused)?;
        let mut modes: Vec<SyncMode> = Vec::new();
        for name in named.split(',') {
            let mode = name.parse()?;
            if modes.contains(&mode) {
                return Err(refused());
            }
            modes.push(mode);
        }
        if modes.len() < 2 {
            return Err(refused());
        }
        Ok(Self { modes, choice: Some(true) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_names_its_modes_or_takes_those_with_equal_mathematics() {
        let read = |text: &str| text.parse::<SyncSpec>().unwrap();
        let names = |spec: &SyncSpec| {
            spec.choice().map(|(modes, _)| modes.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names(&read("auto")).unwrap(), ["allreduce", "ps-bsp"]);
        assert_eq!(names(&read("auto=ps-asp,local-sgd=4")).unwrap(), ["ps-asp", "local-sgd=4"]);
        assert_eq!(names(&read("diloco=2")), None);
        for text in ["auto", "auto=ps-asp,ripples=smart:2", "diloco=2", "allreduce"] {
            assert_eq!(read(text).to_string(), text);
        }
        assert_eq!(read("auto=ps-asp,local-sgd=4").name(), "ps-asp", "it begins in the first");
        for wrong in ["auto=", "auto=allreduce", "auto=allreduce,allreduce", "automatic", "auto=allreduce,"] {
            let error = wrong.parse::<SyncSpec>().unwrap_err().to_string();
            assert!(error.starts_with("--sync = ") && !error.contains('\n'), "{error}");
        }
        assert!("auto=allreduce,auto".parse::<SyncSpec>().is_err());
    }
}
