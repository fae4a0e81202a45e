//! The transports of this program by name: fabrics, and libraries of collectives, which are over the default fabric. Those of
//! `antdt-collective` are always there, others come with a feature, and a program adds its own.
//!
//! The name of a part whose feature is not built in is known all the same; its refusal says how to get it.

use std::sync::Once;

use antdt_collective::runtime::process_group::{self, Library};
use antdt_collective::runtime::transport::{self, Fabric};
use antdt_core::InvalidValue;
use antdt_core::registry::{BuildError, Entry, Registry, Settings};

pub use antdt_collective::runtime::transport::DEFAULT;

/// Fabrics that a feature brings.
const FABRICS: &[transport::Entry] = &[
    #[cfg(feature = "rdma")]
    antdt_rdma::ENTRIES[0],
    #[cfg(feature = "rdma")]
    antdt_rdma::ENTRIES[1],
    #[cfg(not(feature = "rdma"))]
    absent("rdma"),
    #[cfg(not(feature = "rdma"))]
    absent("rdma-cm"),
];

/// Libraries that a feature brings.
const LIBRARIES: &[process_group::Entry] = &[
    #[cfg(feature = "nccl")]
    antdt_gpu::nccl::ENTRY,
    #[cfg(not(feature = "nccl"))]
    absent("nccl"),
    #[cfg(feature = "cuda")]
    antdt_gpu::ipc::ENTRY,
    #[cfg(not(feature = "cuda"))]
    absent("cuda-ipc"),
];

/// The feature that brings each of them, with the package that it needs, if it needs one.
const FEATURES: [(&str, &str); 4] = [
    ("rdma", "`rdma`, which needs libibverbs"),
    ("rdma-cm", "`rdma`, which needs libibverbs"),
    ("nccl", "`nccl`"),
    ("cuda-ipc", "`cuda`"),
];

/// Returns an entry for a part that this program is built without.
#[allow(dead_code, reason = "a program may be built with all of them")]
const fn absent<T>(name: &'static str) -> Entry<T> {
    Entry::new(name, "this program is built without it", |settings: &Settings<'_>| {
        let name = settings.part();
        let feature = FEATURES.iter().find(|(known, _)| *known == name).map_or("", |(_, feature)| feature);
        let expected = format!(
            "another transport, or the program built with feature {feature}; this one is built without"
        );
        Err(InvalidValue::new("--transport", name, expected))
    })
}

/// Returns the registry with all fabrics of this program.
pub fn fabrics() -> &'static Registry<transport::Entry> {
    static FILLED: Once = Once::new();
    FILLED.call_once(|| fill(&transport::REGISTRY, FABRICS));
    &transport::REGISTRY
}

/// Returns the registry with all libraries of collectives of this program.
pub fn libraries() -> &'static Registry<process_group::Entry> {
    static FILLED: Once = Once::new();
    FILLED.call_once(|| fill(&process_group::REGISTRY, LIBRARIES));
    &process_group::REGISTRY
}

fn fill<T>(registry: &Registry<Entry<T>>, entries: &[Entry<T>]) {
    for entry in entries {
        // One that the program has added under such a name is the one that it means.
        let _ = registry.register(*entry);
    }
}

/// Returns the names of all transports: of the fabrics, then of the libraries.
pub fn names() -> Vec<&'static str> {
    [fabrics().names(), libraries().names()].concat()
}

/// Returns the fabric of a transport; that of a library is the default one.
///
/// # Errors
/// If there is no such transport, or it is not built in; the error says what to do.
pub fn fabric(name: &str) -> Result<Box<dyn Fabric>, InvalidValue> {
    let name = if library(name)?.is_some() { DEFAULT } else { name };
    fabrics().by_name(name).map_err(|error| refused(name, error))
}

/// Returns the library of collectives of a transport; `None` if it is a fabric.
///
/// # Errors
/// If the library is not built in; the error says what to do.
pub fn library(name: &str) -> Result<Option<Library>, InvalidValue> {
    if libraries().find(name).is_err() {
        return Ok(None);
    }
    libraries().by_name(name).map(Some).map_err(|error| refused(name, error))
}

fn refused(name: &str, error: BuildError) -> InvalidValue {
    match error {
        BuildError::Setting(error) => error,
        other => InvalidValue::new("--transport", name, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_transport_that_is_not_built_in_names_its_feature() {
        for (name, feature, built) in [
            ("rdma", "rdma", cfg!(feature = "rdma")),
            ("rdma-cm", "rdma", cfg!(feature = "rdma")),
            ("nccl", "nccl", cfg!(feature = "nccl")),
            ("cuda-ipc", "cuda", cfg!(feature = "cuda")),
        ] {
            assert!(names().contains(&name));
            if built {
                assert!(fabric(name).is_ok());
            } else {
                let error = fabric(name).unwrap_err().to_string();
                let begins = format!("--transport = {name}: must be another transport");
                assert!(error.starts_with(&begins) && !error.contains('\n'), "{error}");
                assert!(error.contains(&format!("built with feature `{feature}`")), "{error}");
            }
        }
    }

    #[test]
    fn a_library_is_over_the_default_fabric_and_a_fabric_is_no_library() {
        assert!(library("tcp").unwrap().is_none() && library("nothing").unwrap().is_none());
        let own: process_group::Entry = Entry::new("own-library", "for this test", |_| Ok(|_, below| below));
        libraries().register(own).unwrap();
        assert!(library("own-library").unwrap().is_some());
        let (own, default) = (fabric("own-library").unwrap(), fabric(DEFAULT).unwrap());
        assert_eq!(format!("{own:?}"), format!("{default:?}"));
        let error = fabric("nothing").unwrap_err().to_string();
        assert!(error.starts_with("--transport = nothing: must be unknown transport"), "{error}");
    }
}
