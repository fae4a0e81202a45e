//! [`ProgramReplica`]: the parameters are the program's own. It has all of them, and takes the steps that all workers combined.

use antdt_agent::MicroBatch;
use antdt_agent::runtime::Pulse;
use antdt_checkpoint::{ModelState, StateTensor, TensorSpec};
use antdt_core::{CheckpointId, Work};
use antdt_model::Trained;
use serde::{Deserialize, Serialize};

use super::sums::{Sums, SumsMemory};
use super::{
    BatchGradient, CopiedNumbers, DensePlane, GradientPass, GroupStep, Home, JointPlane, ModelCopy,
    ModelSource, ParamValues, PeerGroup, RowsPlane, SharedModel, StepUpdate, WorkerSite, unfit,
};
use crate::worker::WorkerError;
use crate::worker::program::{CombinedStep, Line, StepShare};

/// See the [module](self).
pub(in crate::worker) struct ProgramReplica {
    line: Line,
    /// A program that does not answer hangs: nobody else ends that wait.
    pulse: Pulse,
    parameters: usize,
    rate_share: f32,
    memory: SumsMemory,
    /// The step that was combined.
    sums: Option<Sums>,
    shares: Vec<StepShare>,
    /// Memory of the step before.
    spare: CombinedStep,
    trained: Trained,
}

impl ProgramReplica {
    pub(in crate::worker) fn new(line: Line, parameters: usize, pulse: Pulse) -> Self {
        Self {
            line,
            pulse,
            parameters,
            rate_share: 1.0,
            memory: SumsMemory::default(),
            sums: None,
            shares: Vec::new(),
            spare: CombinedStep::default(),
            trained: Trained::default(),
        }
    }

    /// The model as the program gives it.
    fn state(&mut self) -> Result<ModelState, WorkerError> {
        let _at_work = self.pulse.begin(Work::Training);
        Ok(self.line.give()?)
    }

    /// Takes memory back that the step before had.
    fn recycle(&mut self) {
        if let Some(sums) = self.sums.take() {
            self.memory.keep(sums);
        }
    }
}

/// What is said of a model before its arrays: how far it is trained, what they are, and the program's own outline.
#[derive(Serialize, Deserialize)]
struct Outline {
    steps: u64,
    samples: u64,
    tensors: Vec<TensorSpec>,
    of_program: String,
}

struct Given(Outline, Vec<Vec<u8>>);

impl SharedModel for Given {
    fn outline(&self) -> Vec<u8> {
        postcard::to_stdvec(&self.0).expect("plain values")
    }

    fn arrays(&self) -> Vec<&[u8]> {
        self.1.iter().map(Vec::as_slice).collect()
    }
}

impl Home for ProgramReplica {
    fn is_evaluated(&self) -> bool {
        false
    }

    fn begins_apart(&self) -> bool {
        true
    }

    fn begin_plan(&mut self, rate_share: Option<f32>) {
        self.rate_share = rate_share.unwrap_or(1.0);
    }

    fn restart(&mut self, _: &WorkerSite<'_>) -> Result<(), WorkerError> {
        if self.trained == Trained::default() {
            return Ok(());
        }
        // The program cannot undo its steps. Another life begins without any.
        Err(WorkerError::Address(
            "the job went back to its beginning, and this worker's model is of later".to_owned(),
        ))
    }

    fn forget_step(&mut self) {
        self.recycle();
    }

    fn restore_state(&mut self, model: ModelState) -> Result<(), WorkerError> {
        let _at_work = self.pulse.begin(Work::Training);
        Ok(self.line.take(model)?)
    }

    fn set_trained(&mut self, trained: Trained) {
        self.trained = trained;
    }

    fn give(&mut self) -> Result<Vec<Box<dyn SharedModel + '_>>, WorkerError> {
        let ModelState { outline: of_program, tensors } = self.state()?;
        let Trained { steps, samples } = self.trained;
        let (tensors, arrays) = tensors.into_iter().map(|tensor| (tensor.spec, tensor.bytes)).unzip();
        Ok(vec![Box::new(Given(Outline { steps, samples, tensors, of_program }, arrays))])
    }

    fn take(&mut self, from: &mut ModelSource<'_>) -> Result<(), WorkerError> {
        let Outline { steps, samples, tensors: specs, of_program } =
            postcard::from_bytes(&from.outline()?).map_err(unfit)?;
        let mut tensors = Vec::new();
        for spec in specs {
            let len = spec.bytes().ok_or_else(|| unfit("a tensor is larger than any memory"))?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(len).map_err(unfit)?;
            bytes.resize(len, 0);
            from.fill(&mut bytes)?;
            tensors.push(StateTensor { spec, bytes });
        }
        self.restore_state(ModelState { outline: of_program, tensors })?;
        self.trained = Trained { steps, samples };
        Ok(())
    }

    fn apply(&mut self, update: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        let sums = self.sums.as_ref().and_then(Sums::host);
        let sums = sums.ok_or_else(|| WorkerError::Loop("no step was combined to apply".to_owned()))?;
        let mut step = std::mem::take(&mut self.spare);
        step.sums.clear();
        step.sums.extend_from_slice(sums);
        step.shares = std::mem::take(&mut self.shares);
        step.rate_share = self.rate_share;
        let at_work = self.pulse.begin(Work::Training);
        self.spare = self.line.step(step)?;
        drop(at_work);
        self.trained.steps += 1;
        self.trained.samples += update.samples;
        self.recycle();
        Ok(None)
    }

    fn copy(&mut self, _: CheckpointId) -> Result<ModelCopy, WorkerError> {
        let numbers = Some(CopiedNumbers::State(self.state()?));
        Ok(ModelCopy { trained: self.trained, numbers })
    }
}

impl DensePlane for ProgramReplica {
    fn pass(&mut self) -> Result<GradientPass<'_>, WorkerError> {
        Ok(self.pass_with_rows()?.0)
    }

    fn host(&mut self) -> Result<&[f32], WorkerError> {
        Ok(&[])
    }

    fn reduce(
        &mut self,
        peers: &mut PeerGroup<'_>,
        step: &GroupStep<'_>,
        gradient: &mut BatchGradient<'_>,
    ) -> Result<(), WorkerError> {
        self.recycle();
        let dense = step.take_dense(gradient, self.parameters);
        self.sums = Some(self.memory.reduce(peers.group()?, None, dense)?);
        Ok(())
    }
}

impl RowsPlane for ProgramReplica {
    fn load(&mut self, _: &[u64], _: MicroBatch) -> Result<(), WorkerError> {
        Ok(())
    }

    fn values(&mut self) -> Result<ParamValues<'_>, WorkerError> {
        Ok(ParamValues::Host(&[]))
    }

    fn announce(&mut self, step: &GroupStep<'_>, _: &mut BatchGradient<'_>) -> Result<Vec<u64>, WorkerError> {
        Ok(std::iter::once(step.samples).chain(self.line.marks()).collect())
    }

    fn exchange(
        &mut self,
        _: &mut PeerGroup<'_>,
        _: &GroupStep<'_>,
        announced: &[Vec<u64>],
    ) -> Result<(), WorkerError> {
        let share = |numbers: &Vec<u64>| {
            let (samples, marks) = numbers.split_first()?;
            Some(StepShare { samples: *samples, marks: marks.to_vec() })
        };
        let shares: Option<_> = announced.iter().map(share).collect();
        self.shares = shares.ok_or_else(|| unfit("a member announced nothing"))?;
        Ok(())
    }

    fn gather(&mut self, _: &[u64], _: &mut Vec<f32>) -> Result<(), WorkerError> {
        Ok(())
    }
}

impl JointPlane for ProgramReplica {
    fn pass_with_rows(&mut self) -> Result<(GradientPass<'_>, ParamValues<'_>), WorkerError> {
        Ok((GradientPass { dense: ParamValues::Host(&[]), sink: None }, ParamValues::Host(&[])))
    }
}
