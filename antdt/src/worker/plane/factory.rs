//! [`PlaneFactory`]: makes the data plane of each worker, by default from the capabilities of the job's sync mode.

use std::sync::Arc;

use antdt_core::{InvalidValue, ParamPlace};
use antdt_job::SyncMode;
use antdt_job::mode;

use super::mixed::Mixed;
use super::own::Own;
use super::replicas::Replicas;
use super::servers::Servers;
use super::weighted::Weighted;
use super::{DensePlane, Plane, RowsPlane, WorkerSite};
use crate::worker::WorkerError;
use crate::worker::hot::RowMemoryFactory;
use crate::worker::lift::Accelerator;

/// Devices of a program's own, in place of GPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Devices {
    /// Makes the memory for the hot rows of workers (`--hot-rows N`).
    pub rows: Option<RowMemoryFactory>,
    /// Keeps the dense parameters of workers, and their gradients: trainers that can
    /// ([`Trainer::takes_device_dense`](antdt_agent::Trainer::takes_device_dense)) leave gradients there, and groups reduce them there.
    pub dense: Option<Accelerator>,
}

/// Makes the data plane of each worker: in the worker's process, once for each of its incarnations.
///
/// A function or closure `Fn(&WorkerSite) -> Result<Plane, WorkerError>` is a factory for a program without devices of its own.
pub trait PlaneFactory: Send + Sync {
    /// Returns the devices on which the parameters of the homes that ship lie.
    fn devices(&self) -> Devices {
        Devices::default()
    }

    /// Makes the data plane of the worker at `site`. All workers of a job must have the same one.
    ///
    /// # Errors
    /// If the job's settings do not fit it, or a device fails.
    fn plane(&self, site: &WorkerSite<'_>) -> Result<Plane, WorkerError>;
}

impl<F> PlaneFactory for F
where
    F: Fn(&WorkerSite<'_>) -> Result<Plane, WorkerError> + Send + Sync,
{
    fn plane(&self, site: &WorkerSite<'_>) -> Result<Plane, WorkerError> {
        self(site)
    }
}

/// The factory that chooses among the homes that ship, by the capabilities of the job's sync mode.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standard {
    /// Devices on which parameters lie.
    pub devices: Devices,
}

impl PlaneFactory for Standard {
    fn devices(&self) -> Devices {
        self.devices
    }

    fn plane(&self, site: &WorkerSite<'_>) -> Result<Plane, WorkerError> {
        let mode = site.sync().capabilities();
        let layout = site.layout().clone();
        if mode.dense != mode.rows {
            return Ok(Plane::apart(dense_home(mode.dense, site)?, rows_home(mode.rows, site)?));
        }
        Ok(match mode.dense {
            ParamPlace::Replicas => Plane::joint(Replicas::new(site, layout)?),
            ParamPlace::PerWorker => {
                let averaging = Weighted::new(layout.clone(), site.spec().compress);
                Plane::joint(Own::new(site, layout, averaging)?)
            }
            ParamPlace::Mixed => Plane::joint(Own::new(site, layout.clone(), Mixed::new(layout))?),
            ParamPlace::Servers => Plane::joint(Servers::new(site)?),
        })
    }
}

/// Returns the home that ships for dense parameters at `place`, to go with a home of rows elsewhere.
///
/// # Errors
/// If there is none, or its memory fails.
pub fn dense_home(place: ParamPlace, site: &WorkerSite<'_>) -> Result<Box<dyn DensePlane>, WorkerError> {
    let layout = site.dense_layout();
    Ok(match place {
        ParamPlace::Replicas => Box::new(Replicas::new(site, layout)?),
        ParamPlace::PerWorker => {
            let averaging = Weighted::new(layout.clone(), site.spec().compress);
            Box::new(Own::new(site, layout, averaging)?)
        }
        ParamPlace::Mixed => Box::new(Own::new(site, layout.clone(), Mixed::new(layout))?),
        ParamPlace::Servers => return Err(both_on_servers(site)),
    })
}

/// Returns the home that ships for rows at `place`, to go with a home of dense parameters elsewhere.
///
/// # Errors
/// If there is none, or its memory fails.
pub fn rows_home(place: ParamPlace, site: &WorkerSite<'_>) -> Result<Box<dyn RowsPlane>, WorkerError> {
    let layout = site.rows_layout();
    Ok(match place {
        ParamPlace::Replicas => Box::new(Replicas::new(site, layout)?),
        ParamPlace::PerWorker => Box::new(Own::new(site, layout.clone(), Weighted::new(layout, None))?),
        ParamPlace::Mixed => Box::new(Own::new(site, layout.clone(), Mixed::new(layout))?),
        ParamPlace::Servers => return Err(both_on_servers(site)),
    })
}

fn both_on_servers(site: &WorkerSite<'_>) -> WorkerError {
    let expected = "a mode whose servers have both kinds of parameters, or one with a data plane of its own";
    WorkerError::Input(InvalidValue::new("--sync", site.sync(), expected).to_string())
}

/// A sync mode with a data plane of its own, if it needs one.
pub struct ModeParts {
    /// The mode's line in the registry.
    pub entry: mode::Entry,
    /// Makes the data planes of workers in jobs of this mode; `None` for the homes that ship.
    pub plane: Option<Arc<dyn PlaneFactory>>,
}

impl std::fmt::Debug for ModeParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModeParts").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl ModeParts {
    /// Returns a mode whose workers have the data plane that `plane` makes.
    pub fn new(entry: mode::Entry, plane: impl PlaneFactory + 'static) -> Self {
        Self { entry, plane: Some(Arc::new(plane)) }
    }
}

impl From<mode::Entry> for ModeParts {
    fn from(entry: mode::Entry) -> Self {
        Self { entry, plane: None }
    }
}

/// The factories of data planes that a program has.
#[derive(Clone)]
pub struct Planes {
    /// For modes that have none of their own.
    usual: Arc<dyn PlaneFactory>,
    of_modes: Vec<(&'static str, Arc<dyn PlaneFactory>)>,
}

impl Default for Planes {
    fn default() -> Self {
        Self { usual: Arc::new(Standard::default()), of_modes: Vec::new() }
    }
}

impl std::fmt::Debug for Planes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modes: Vec<&str> = self.of_modes.iter().map(|(name, _)| *name).collect();
        f.debug_struct("Planes").field("of_modes", &modes).finish_non_exhaustive()
    }
}

impl Planes {
    /// Replaces the factory for modes that have none of their own.
    pub fn set_usual(&mut self, plane: impl PlaneFactory + 'static) {
        self.usual = Arc::new(plane);
    }

    /// Adds the factory of the mode with this name.
    pub fn add(&mut self, mode: &'static str, plane: Arc<dyn PlaneFactory>) {
        self.of_modes.push((mode, plane));
    }

    /// Returns the factory for jobs of this mode.
    pub(in crate::worker) fn of(&self, sync: &SyncMode) -> &dyn PlaneFactory {
        let own = self.of_modes.iter().find(|(name, _)| *name == sync.name());
        own.map_or(&*self.usual, |(_, plane)| &**plane)
    }
}
