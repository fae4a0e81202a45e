//! The registry of launchers, by the names that jobs use.
//!
//! A launcher that ships with this crate is a file or folder beside this file and a line in `SHIPPED`. A program adds launchers of
//! its own before it reads its command line; both kinds are then treated alike.

use antdt_core::registry::{self, Registry};

use super::{process, ssh};
use crate::launcher::LauncherFactory;

/// A launcher in the registry. What it builds from the settings is a factory, which is called within a tokio runtime that has I/O
/// and time enabled.
pub type Entry = registry::Entry<LauncherFactory>;

/// Name of the launcher of a job that names none.
pub const DEFAULT: &str = process::ENTRY.name;

/// The registry of all known launchers.
///
/// ```
/// use antdt_launch::runtime::REGISTRY;
/// assert!(REGISTRY.by_name("process").is_ok());
/// let refused = REGISTRY.by_name("ssh").err().expect("it needs hosts");
/// assert!(refused.to_string().starts_with("[launcher.ssh] hosts = (nothing)"));
/// ```
pub static REGISTRY: Registry<Entry> =
    Registry::new("launcher", SHIPPED).with_synonyms(&[("local", "process"), ("hosts", "ssh")]);

/// Launchers that ship.
const SHIPPED: &[Entry] = &[process::ENTRY, ssh::ENTRY];
