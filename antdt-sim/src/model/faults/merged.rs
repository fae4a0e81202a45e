//! Faults of several origins.

use antdt_core::{DetRng, JobTime};

use crate::model::{Fault, Faults};

/// A fault model with all faults of several models, in order of time. Faults of the same time happen in the
/// order of the models.
#[derive(Debug)]
pub struct Merged {
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    faults: Box<dyn Faults>,
    // `None` before it was asked.
    next: Option<Option<(JobTime, Fault)>>,
}

impl Merged {
    /// Returns a model with the faults of all of these models.
    pub fn new(models: impl IntoIterator<Item = Box<dyn Faults>>) -> Self {
        Self { sources: models.into_iter().map(|faults| Source { faults, next: None }).collect() }
    }
}

impl Faults for Merged {
    fn next(&mut self, rng: &mut DetRng) -> Option<(JobTime, Fault)> {
        for source in &mut self.sources {
            if source.next.is_none() {
                source.next = Some(source.faults.next(rng));
            }
        }
        let with_one = self.sources.iter_mut().filter(|source| matches!(source.next, Some(Some(_))));
        let first = with_one.min_by_key(|source| source.next.flatten().map(|(at, _)| at))?;
        first.next.take().flatten()
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{NodeId, Seed};

    use super::*;
    use crate::model::faults::Listed;

    #[test]
    fn faults_of_all_models_come_in_order_of_time() {
        let fault = |at, index| (JobTime(at), Fault::Crash(NodeId::worker(index)));
        let lists = [vec![fault(1, 0), fault(5, 0)], vec![], vec![fault(0, 1), fault(1, 1), fault(9, 1)]];
        let boxed = |list: Vec<_>| Box::new(Listed::new(list)) as Box<dyn Faults>;
        let mut merged = Merged::new(lists.map(boxed));
        let mut rng = Seed(0).rng();
        let order: Vec<_> = std::iter::from_fn(|| merged.next(&mut rng)).collect();
        assert_eq!(order, [fault(0, 1), fault(1, 0), fault(1, 1), fault(5, 0), fault(9, 1)]);
    }
}
