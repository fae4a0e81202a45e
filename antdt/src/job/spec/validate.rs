//! Checks of a job's settings: of each by itself, and of all against each other.

use std::time::Duration;

use antdt_collective::schedule::Choice;
use antdt_core::port::ACKS_MAX;
use antdt_core::registry::BuildError;
use antdt_core::text::format_duration;
use antdt_core::{Barrier, InvalidValue, Stall};
use antdt_job::evaluation::EvalEvery;
use antdt_job::head::CheckpointEvery;
use antdt_job::mode;
use antdt_model::optimizer;

use super::{JobSpec, has_buckets};
use crate::job::data_spec::DataSpec;
use crate::job::device::DeviceSpec;
use crate::job::streams::StreamsSpec;
use crate::{net, transport, workload};

/// Workers, or servers, that are started on one machine: beyond, a slip of the hand is likelier than a wish.
const PROCESSES_MAX: u32 = 1 << 12;

impl JobSpec {
    /// Checks that the settings are valid together.
    ///
    /// # Errors
    /// The first invalid setting; the error names the flag and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if self.sync.choice().is_none() {
            return self.validate_in_mode();
        }
        let choices = self.choices();
        if let Some(file) = &self.record {
            let expected = "left out with --sync auto: a recording is of a job in one mode";
            return Err(InvalidValue::new("--record", file.display(), expected));
        }
        if self.servers > 0 && !choices.iter().any(|mode| mode.capabilities().needs_servers()) {
            let expected = format!("0 with --sync {}, of which no mode has servers", self.sync);
            return Err(InvalidValue::new("--servers", self.servers, expected));
        }
        choices.into_iter().try_for_each(|mode| self.in_mode(mode).validate_in_mode())
    }

    /// Checks each setting by itself, and not against the others. Settings of parts are left out, but for those of the
    /// optimizer.
    ///
    /// # Errors
    /// The first invalid setting; the error names the flag and what would be accepted.
    pub fn check_each(&self) -> Result<(), InvalidValue> {
        for setting in Self::SETTINGS {
            setting.check_least(self)?;
        }
        self.check_names()?;
        // What the workload takes is known to be good.
        self.update_rule(optimizer::Sgd::NAME, 1.0, 0.0).map_err(|error| match error {
            BuildError::Setting(error) => error,
            other => InvalidValue::new(
                "--optimizer",
                self.optimizer.as_deref().unwrap_or_default(),
                other.to_string(),
            ),
        })?;
        for (flag, processes) in [("--nproc-per-node", self.workers), ("--servers", self.servers)] {
            if processes > PROCESSES_MAX {
                let expected = format!("at most {PROCESSES_MAX} processes of this machine");
                return Err(InvalidValue::new(flag, processes, expected));
            }
        }
        if let Some(data @ (DataSpec::Synthetic { rows: 0 } | DataSpec::Samples(0))) = &self.data {
            return Err(InvalidValue::new(
                "--data",
                data,
                "at least 1 row or sample, such as synthetic:100000",
            ));
        }
        if !(0.0..1.0).contains(&self.eval_fraction) {
            let expected = "at least 0 and below 1, such as 0.2";
            return Err(InvalidValue::new("--eval-fraction", self.eval_fraction, expected));
        }
        if let Some(speed) = self.emulate_speed
            && !(speed.is_finite() && speed > 0.0)
        {
            let expected = "above 0 samples per second; leave it out to run at the machine's speed";
            return Err(InvalidValue::new("--emulate-speed", speed, expected));
        }
        for (flag, duration) in [
            ("--control-tick", Some(self.control_tick)),
            ("--heartbeat", Some(self.heartbeat)),
            ("--collective-timeout", self.collective_timeout),
        ] {
            if let Some(duration) = duration
                && duration < Duration::from_millis(1)
            {
                return Err(InvalidValue::new(flag, format_duration(duration), "at least 1ms"));
            }
        }
        net::host("--bind", &self.bind)?;
        if let Some(advertise) = &self.advertise {
            net::host("--advertise", advertise)?;
        }
        if self.hang_limit < Stall::LEAST * 2 {
            let expected = "at least 1s; a week switches it off";
            return Err(InvalidValue::new("--hang-limit", format_duration(self.hang_limit), expected));
        }
        Ok(())
    }

    fn validate_in_mode(&self) -> Result<(), InvalidValue> {
        // A part that is not known has no settings.
        self.check_names()?;
        self.tables.validate()?;
        self.check_each()?;
        // A transport may be known and not built in.
        transport::fabric(&self.transport)?;
        self.validate_servers()?;
        self.validate_data()?;
        self.validate_logs()?;
        // Of several hosts, each has this number of workers, as far as one of them knows.
        let workers = self.workers.saturating_mul(self.nnodes.most);
        if self.min_workers > workers {
            let expected = format!("at most the {workers} workers of the job (--nproc-per-node)");
            return Err(InvalidValue::new("--min-workers", self.min_workers, expected));
        }
        if self.global_batch_size < self.workers {
            let expected =
                format!("at least {}, one sample for each worker (--nproc-per-node)", self.workers);
            return Err(InvalidValue::new("--global-batch-size", self.global_batch_size, expected));
        }
        if let Some(len) = self.shard_len {
            let least = u64::from(self.global_batch_size).div_ceil(ACKS_MAX as u64);
            if len < least {
                let expected = format!(
                    "at least {least}, so that a batch is of {ACKS_MAX} shards at most (--global-batch-size); leave it \
                     out to derive it"
                );
                return Err(InvalidValue::new("--shard-len", len, expected));
            }
        }
        for straggler in &self.stragglers {
            straggler.validate(self.workers, self.servers)?;
        }
        if let Some(network) = &self.emulate_network {
            if transport::library(&self.transport)?.is_some() {
                let expected =
                    "another transport with --emulate-network: what travels between GPUs cannot be paced";
                return Err(InvalidValue::new("--transport", &self.transport, expected));
            }
            network.validate(self.workers, self.servers)?;
        }
        self.validate_devices()?;
        if let Some(etcd) = &self.elect {
            let refused = |expected: &str| Err(InvalidValue::new("--elect", etcd, expected));
            if self.run_dir.is_none() && self.report_dir.is_none() {
                return refused("with --run-dir or --report-dir, a folder that all its masters share");
            }
            if self.program.is_some() || self.emulate_network.is_some() {
                return refused(
                    "left out: a program of your own and --emulate-network end with their master",
                );
            }
        }
        let beats = self.heartbeat.saturating_mul(2);
        for (flag, limit) in [("--master-grace", self.master_grace), ("--silence-limit", self.silence_limit)]
        {
            if let Some(limit) = limit.filter(|limit| *limit < beats) {
                let expected = format!("at least two heartbeats, {}", format_duration(beats));
                return Err(InvalidValue::new(flag, format_duration(limit), expected));
            }
        }
        Ok(())
    }

    fn validate_servers(&self) -> Result<(), InvalidValue> {
        match (self.sync.capabilities().needs_servers(), self.servers) {
            (true, 0) => {
                let expected =
                    format!("at least 1 with --sync {}, which keeps the model on servers", self.sync);
                Err(InvalidValue::new("--servers", 0, expected))
            }
            (false, servers) if servers > 0 => {
                let expected = format!(
                    "0 with --sync {}; choose --sync {} to use servers",
                    self.sync,
                    mode::with_servers()
                );
                Err(InvalidValue::new("--servers", servers, expected))
            }
            _ => Ok(()),
        }?;
        if let Barrier::AllBut(backups) = self.sync.capabilities().barrier
            && backups >= self.workers
        {
            let expected = format!(
                "a number of backups below that of the workers, {} (--nproc-per-node): a step needs at least one",
                self.workers
            );
            return Err(InvalidValue::new("--sync", &self.sync, expected));
        }
        if let Some(norm) = self.clip_norm
            && self.sync.capabilities().servers_sum_gradients()
            && self.servers > 1
        {
            let expected = format!(
                "left out with --sync {} and several servers, of which none has the whole gradient; take --servers 1",
                self.sync
            );
            return Err(InvalidValue::new("--clip-norm", norm, expected));
        }
        if self.sync.capabilities().needs_servers() && self.algorithm != Choice::default() {
            let expected = format!(
                "left out with --sync {}: workers send their gradients to servers, and nothing is all-reduced",
                self.sync
            );
            return Err(InvalidValue::new("--algorithm", self.algorithm, expected));
        }
        if !has_buckets(&self.sync) && self.bucket_bytes != Self::default().bucket_bytes {
            let expected = format!(
                "left out with --sync {}: only gradients that workers add up are cut into buckets",
                self.sync
            );
            return Err(InvalidValue::new("--bucket-bytes", self.bucket_bytes, expected));
        }
        if self.sync.capabilities().mixes() && self.workers < 2 {
            let expected = "another mode with 1 worker (--nproc-per-node), which has nobody to average with";
            return Err(InvalidValue::new("--sync", &self.sync, expected));
        }
        match self.compress {
            Some(form) if self.sync.capabilities().mixes() => {
                let expected = format!("left out with --sync {}: models are averaged whole", self.sync);
                Err(InvalidValue::new("--compress", form, expected))
            }
            Some(form) if self.sync.capabilities().needs_servers() => {
                let expected =
                    format!("left out with --sync {}: gradients travel to servers whole", self.sync);
                Err(InvalidValue::new("--compress", form, expected))
            }
            _ => Ok(()),
        }
    }

    /// Files of output need a folder.
    fn validate_logs(&self) -> Result<(), InvalidValue> {
        let none = StreamsSpec::default();
        let asked = [("--redirects", &self.redirects), ("--tee", &self.tee)];
        match asked.into_iter().find(|(_, streams)| **streams != none) {
            Some((flag, _)) if self.log_dir.is_none() && self.report_dir.is_none() => {
                let expected = format!("given with {flag}, or --report-dir, in which the files are then");
                Err(InvalidValue::new("--log-dir", "(nothing)", expected))
            }
            _ => Ok(()),
        }
    }

    fn validate_devices(&self) -> Result<(), InvalidValue> {
        let mut processors = self.processors();
        if let (Some(first), Some(second)) = (processors.next(), processors.next()) {
            let expected = format!("given once for all workers; `{first}` is given, too");
            return Err(InvalidValue::new("--device", second, expected));
        }
        if let (Some(processor), Some(_)) = (self.processors().next(), &self.program) {
            let expected = "left out with a program of your own, which chooses what it computes on";
            return Err(InvalidValue::new("--device", processor, expected));
        }
        let devices: Vec<&DeviceSpec> = self.device_specs().collect();
        for (at, device) in devices.iter().enumerate() {
            device.validate(self.workers)?;
            let overlaps = |other: &&&DeviceSpec| {
                other.workers.0 <= device.workers.1 && device.workers.0 <= other.workers.1
            };
            if let Some(other) = devices[..at].iter().find(overlaps) {
                let expected = format!("one device for each worker; `{other}` has some of the same workers");
                return Err(InvalidValue::new("--device", device, expected));
            }
        }
        Ok(())
    }

    fn validate_data(&self) -> Result<(), InvalidValue> {
        match &self.data {
            // A job that is taken over has its own; a caller that opens a workload without data asks for them.
            None if self.program.is_none()
                && self.resume.is_none()
                && workload::needs_data(&self.workload) =>
            {
                return Err(InvalidValue::new("--data", "(nothing)", workload::DATA_EXPECTED));
            }
            _ => {}
        }
        self.validate_columns()?;
        self.validate_evaluation()?;
        if self.program.is_some() && self.sync.capabilities().needs_servers() {
            let expected = "one that keeps the model in the workers, where a program of your own trains: servers must know the \
                            model's shape before it starts";
            return Err(InvalidValue::new("--sync", &self.sync, expected));
        }
        if let (Some(data), true, None) = (&self.data, self.has_own_model(), &self.program) {
            let expected = "with a program of your own, which has the samples: `antdt run … -- PROGRAM`";
            return Err(InvalidValue::new("--data", data, expected));
        }
        if self.is_foreign() && (self.resume.is_some() || self.checkpoint_dir.is_some()) {
            let (flag, path) = match &self.resume {
                Some(path) => ("--resume", path),
                None => ("--checkpoint-dir", self.checkpoint_dir.as_ref().expect("one of the two is set")),
            };
            let expected = "left out with a program that takes nothing from the job: what it has trained is not known here; \
                            let the program keep checkpoints of its own";
            return Err(InvalidValue::new(flag, path.display(), expected));
        }
        if self.program.as_ref().is_some_and(Vec::is_empty) {
            return Err(InvalidValue::new("--", "(nothing)", "followed by a program"));
        }
        Ok(())
    }

    fn validate_columns(&self) -> Result<(), InvalidValue> {
        let columns = [
            ("--label", &self.label),
            ("--categorical", &self.categorical),
            ("--numeric", &self.numeric),
            ("--ignore", &self.ignore),
            ("--task", &self.task),
        ];
        let is_stored = matches!(self.data, Some(DataSpec::Path(_))) || self.resume.is_some();
        let given = columns.into_iter().find_map(|(flag, names)| Some((flag, names.as_ref()?)));
        match given.filter(|_| !is_stored) {
            Some((flag, names)) => {
                let expected = "left out, or given with the file whose columns they are, --data FILE";
                Err(InvalidValue::new(flag, names, expected))
            }
            None => Ok(()),
        }
    }

    fn validate_evaluation(&self) -> Result<(), InvalidValue> {
        if self.checkpoint_every != CheckpointEvery::End && !self.keeps_checkpoints() {
            let expected =
                "given with --report-dir, --run-dir or --checkpoint-dir: without them no checkpoint is kept";
            return Err(InvalidValue::new("--checkpoint-every", self.checkpoint_every, expected));
        }
        if self.eval_every != EvalEvery::End {
            let refused = |expected: &str| Err(InvalidValue::new("--eval-every", self.eval_every, expected));
            if self.program.is_some() {
                return refused("end with a program of your own, which may evaluate when it likes");
            }
            if !self.keeps_checkpoints() {
                return refused(
                    "given with --report-dir, --run-dir or --checkpoint-dir: the job goes on from the checkpoint that was evaluated",
                );
            }
            if let Some(file) = &self.record {
                let expected =
                    "left out with --eval-every: a recording is of processes that are started once";
                return Err(InvalidValue::new("--record", file.display(), expected));
            }
        }
        if let Some(stopping) = &self.early_stopping {
            let refused = |expected: String| Err(InvalidValue::new("--early-stopping", stopping, expected));
            if self.eval_every == EvalEvery::End {
                return refused("given with --eval-every, such as --eval-every epoch".to_owned());
            }
            if self.eval_fraction <= 0.0 {
                return refused(
                    "given with --eval-fraction, such as 0.1: on what it was trained on a model goes on improving".to_owned(),
                );
            }
            if self.checkpoint_keep <= stopping.patience {
                return refused(format!(
                    "given with a larger --checkpoint-keep than {}: the best model would be deleted before the job ends",
                    self.checkpoint_keep
                ));
            }
        }
        Ok(())
    }
}
