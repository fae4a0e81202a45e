//! Hosts of a job that are pods: one for each, bare, owned by the job's master or what owns that, and replaced when they end.
//!
//! The pods are made from a template, a file that `antdt submit --kubernetes` writes and its user may change: this source adds the name, the
//! labels, the owner and the arguments of the program. Which pod is created or deleted, the book of pods decides; what the object of a
//! pod says, `view` reads.

#[cfg(feature = "kubernetes")]
mod access;
#[cfg(feature = "kubernetes")]
mod book;
#[cfg(feature = "kubernetes")]
mod client;
#[cfg(feature = "kubernetes")]
mod manifest;
mod name;
#[cfg(feature = "kubernetes")]
mod pods;
#[cfg(feature = "kubernetes")]
mod view;

use antdt_core::registry::Setting;

use super::SourceEntry;

#[cfg(feature = "kubernetes")]
pub use self::access::denied;
pub use self::name::check_name;

/// The source's line in the registry. A program that is built without it knows its name, to say so.
pub(super) const ENTRY: SourceEntry = SourceEntry {
    name: "kubernetes",
    about: "one pod for each of --nnodes, replaced when it ends; this process takes no workers itself",
    settings: || {
        vec![
            Setting::new("job", "", "name of the job, with which names of its pods begin"),
            Setting::new(
                "template",
                "",
                "file with the template of its pods, a PodTemplateSpec as YAML or JSON",
            ),
            Setting::new(
                "endpoint",
                "",
                "HOST:PORT at which pods reach this process; its address if none is given",
            ),
            Setting::new(
                "namespace",
                "",
                "namespace of the pods; that of the service account if none is given",
            ),
        ]
    },
    #[cfg(feature = "kubernetes")]
    build: pods::build,
    #[cfg(not(feature = "kubernetes"))]
    build: |_| {
        let expected =
            "of a program that is built with the feature kubernetes: cargo install --features kubernetes";
        Err(antdt_core::InvalidValue::new("--host-source", "kubernetes", expected))
    },
};
