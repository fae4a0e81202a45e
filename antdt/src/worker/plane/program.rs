//! [`ProgramReplica`]: the parameters are the program's own. It has all of them, and takes the steps that all workers combined.

use antdt_agent::MicroBatch;
use antdt_agent::runtime::Pulse;
use antdt_core::{CheckpointId, Work};
use antdt_model::Trained;
use serde::{Deserialize, Serialize};

use super::sums::{Sums, SumsMemory};
use super::{
    BatchGradient, DensePlane, GradientPass, GroupStep, Home, JointPlane, ModelCopy, ModelSource,
    ParamValues, PeerGroup, RowsPlane, SharedModel, StepUpdate, WorkerSite, unfit,
};
use crate::worker::WorkerError;
use crate::worker::program::{CombinedStep, Line, ModelParts, StepShare};

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

    /// Takes memory back that the step before had.
    fn recycle(&mut self) {
        if let Some(sums) = self.sums.take() {
            self.memory.keep(sums);
        }
    }
}

/// What is said of a model before its arrays: how far it is trained, their lengths, and the program's own outline.
#[derive(Serialize, Deserialize)]
struct Outline {
    steps: u64,
    samples: u64,
    lens: Vec<u64>,
    of_program: Vec<u8>,
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
    /// There is none to evaluate or to write down: the program does that.
    fn is_here(&self) -> bool {
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

    fn set_trained(&mut self, trained: Trained) {
        self.trained = trained;
    }

    fn give(&mut self) -> Result<Vec<Box<dyn SharedModel + '_>>, WorkerError> {
        let ModelParts { outline: of_program, arrays } = {
            let _at_work = self.pulse.begin(Work::Training);
            self.line.give()?
        };
        let Trained { steps, samples } = self.trained;
        let lens = arrays.iter().map(|array| array.len() as u64).collect();
        Ok(vec![Box::new(Given(Outline { steps, samples, lens, of_program }, arrays))])
    }

    fn take(&mut self, from: &mut ModelSource<'_>) -> Result<(), WorkerError> {
        let Outline { steps, samples, lens, of_program } =
            postcard::from_bytes(&from.outline()?).map_err(unfit)?;
        let mut arrays = Vec::new();
        for len in lens {
            let mut array = Vec::new();
            let len = usize::try_from(len).map_err(unfit)?;
            array.try_reserve_exact(len).map_err(unfit)?;
            array.resize(len, 0);
            from.fill(&mut array)?;
            arrays.push(array);
        }
        let _at_work = self.pulse.begin(Work::Training);
        self.line.take(ModelParts { outline: of_program, arrays })?;
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
        Err(WorkerError::Loop("a model of the program's own is in no checkpoint".to_owned()))
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
