//! [`WorkerSite`]: what a worker knows when its data plane is made.

use std::net::SocketAddr;
use std::sync::Arc;

use antdt_agent::Trainer;
use antdt_agent::runtime::Pulse;
use antdt_collective::runtime::transport::Fabric;
use antdt_core::{Holder, ParamLayout, Seed};
use antdt_job::SyncMode;
use antdt_model::{PsClientConfig, Replica, UpdateRule};

use super::factory::Devices;
use super::unfit;
use crate::job::JobSpec;
use crate::node::NodeEnv;
use crate::worker::hot::Heating;
use crate::worker::interrupt::Interrupt;
use crate::worker::lift::Lifting;
use crate::worker::{WorkerError, fabric, library};

/// What a worker knows when its data plane is made: its job, its model, and the devices of the program.
#[derive(Clone)]
pub struct WorkerSite<'a> {
    pub(in crate::worker) env: &'a NodeEnv,
    pub(in crate::worker) rule: &'a UpdateRule,
    pub(in crate::worker) trainer: &'a dyn Trainer,
    pub(in crate::worker) interrupt: &'a Arc<Interrupt>,
    pub(in crate::worker) local: SocketAddr,
    pub(in crate::worker) devices: Devices,
    pub(in crate::worker) pulse: Pulse,
}

impl std::fmt::Debug for WorkerSite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerSite").field("holder", &self.holder()).finish_non_exhaustive()
    }
}

impl WorkerSite<'_> {
    /// Returns the settings of the job.
    pub const fn spec(&self) -> &JobSpec {
        &self.env.spec
    }

    /// Returns the sync mode of the job.
    pub fn sync(&self) -> &SyncMode {
        &self.env.spec.sync
    }

    /// Returns the worker and incarnation.
    pub const fn holder(&self) -> Holder {
        self.env.holder
    }

    /// Returns how gradients change the model: the same on all workers.
    pub const fn rule(&self) -> &UpdateRule {
        self.rule
    }

    /// Returns what computes the gradients.
    pub const fn trainer(&self) -> &dyn Trainer {
        self.trainer
    }

    /// Returns the handle by which this worker's thread says that it works, and does not wait for others.
    pub const fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Returns the shape of the model.
    pub fn layout(&self) -> &ParamLayout {
        self.trainer.layout()
    }

    /// Returns the shape of the dense parameters alone.
    pub fn dense_layout(&self) -> ParamLayout {
        let groups = self.layout().groups().to_vec();
        ParamLayout::new(groups, Vec::new()).expect("a part of a layout is one")
    }

    /// Returns the shape of the tables alone. Joint rows are those of the whole model.
    pub fn rows_layout(&self) -> ParamLayout {
        let tables = self.layout().tables().to_vec();
        ParamLayout::new(Vec::new(), tables).expect("a part of a layout is one")
    }

    /// Returns the seed of the initial parameters.
    pub fn seed(&self) -> Seed {
        Seed(self.spec().seed).derive("model")
    }

    /// Returns the dense parameters that every job with this seed begins with, `[dense_len]`.
    pub fn initial_dense(&self) -> Vec<f32> {
        self.trainer.initial_dense(self.seed())
    }

    /// Returns the parameters that every job with this seed begins with: those that `layout`, a part of the model's, has.
    ///
    /// # Errors
    /// If the rule is invalid, or the parameters do not fit the layout.
    pub fn replica(&self, layout: &ParamLayout) -> Result<Replica, WorkerError> {
        let dense = if layout.dense_len() > 0 { self.initial_dense() } else { Vec::new() };
        Replica::new(layout, self.rule, self.seed(), dense).map_err(unfit)
    }

    pub(super) fn bucket_bytes(&self) -> usize {
        usize::try_from(self.spec().bucket_bytes).unwrap_or(usize::MAX)
    }

    pub(super) const fn heating(&self) -> Heating<'_> {
        Heating { spec: self.spec(), holder: self.holder(), own: self.devices.rows }
    }

    pub(super) fn lifting(&self) -> Result<Lifting<'_>, WorkerError> {
        let own = self.devices.dense;
        let reduces_there = own.is_some() || library(self.env)?.is_some();
        Ok(Lifting { spec: self.spec(), holder: self.holder(), own, reduces_there })
    }

    pub(super) fn fabric(&self) -> Result<Box<dyn Fabric>, WorkerError> {
        fabric(self.env)
    }

    pub(super) fn server_config(&self) -> PsClientConfig {
        let mut config = PsClientConfig::new(self.holder(), self.env.job_token(), self.layout().clone());
        config.timeout = self.spec().meeting_wait();
        config.connections = self.env.data_connections();
        config
    }

    pub(super) fn interrupt(&self) -> Arc<Interrupt> {
        Arc::clone(self.interrupt)
    }

    pub(super) const fn local_address(&self) -> SocketAddr {
        self.local
    }
}
