//! [`LocalReplica`]: a model that one worker trains by itself between two averages with others.
//!
//! At an average every worker has the same parameters, the *base*. Then each takes steps of its own with its own optimizer, and
//! remembers the base of what it changes: a copy of the flat vector, and of the rows that its batches touch. At the next
//! average it gives its *drift*, the difference to the base weighted by its samples. The sum of all drifts over the sum of all
//! samples, added to the base, is the weighted mean of all models:
//!
//! ```text
//! Σ nᵢ wᵢ / Σ nᵢ  =  base + Σ nᵢ (wᵢ - base) / Σ nᵢ
//! ```
//!
//! So only rows that some worker touched travel, and a worker without samples has no weight. The optimizer's state stays the
//! worker's own, and so does its number of steps; the learning rate goes by the samples behind the last average, of which all
//! know. Cost: one copy of the flat vector and of the touched rows.
//!
//! # Where workers average with a few others
//!
//! Then models differ after an average, too, and there is no base that all have: each worker [gives](LocalReplica::give) its whole
//! model, and [goes on](LocalReplica::mix) with the uniform [mean](LocalReplica::mean) of those that it was given and its own.
//! Its base is what it went on with last, so that steps can be undone all the same.
//!
//! Source: local SGD (Stich, 2018; recalled) with weights by samples; the form as a weighted drift is ours.

use std::collections::{BTreeMap, BTreeSet};

use crate::given::Given;
use crate::gradient::{SparseGradient, mean_scale};
use crate::portion::Portion;
use crate::replica::Replica;
use crate::table::TableError;

/// A model that one worker trains by itself between two averages with other workers (local SGD).
#[derive(Debug, Clone)]
pub struct LocalReplica {
    model: Replica,
    /// Parameters at the last average: all of the flat vector, and the rows that changed since.
    base: Vec<f32>,
    base_rows: BTreeMap<u64, Vec<f32>>,
    samples: u64,
}

impl LocalReplica {
    /// Returns a replica of a model that is equal on all workers, as at the beginning of a job or after an
    /// average.
    pub fn new(model: Replica) -> Self {
        Self { base: model.dense().to_vec(), base_rows: BTreeMap::new(), samples: 0, model }
    }

    /// Returns the worker's own model.
    pub const fn model(&self) -> &Replica {
        &self.model
    }

    /// Returns the number of samples trained since the last average.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Takes one step of this worker's optimizer with the mean of the gradients, which are sums over
    /// `samples`.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is then changed.
    pub fn advance(
        &mut self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
    ) -> Result<(), TableError> {
        let mut before = Vec::new();
        self.model.gather(&rows.rows, &mut before)?;
        self.model.apply_alone(dense_sum, rows, samples)?;
        if samples > 0 {
            for (row, values) in self.model.layout().by_row(&rows.rows, &before) {
                self.base_rows.entry(row).or_insert_with(|| values.to_vec());
            }
            self.samples += samples;
        }
        Ok(())
    }

    /// Undoes the steps of this worker since the last average; its optimizer's state stays.
    pub fn revert(&mut self) {
        let rows = self.base_rows();
        self.model.set(&self.base, &rows).expect("the base has the shape of the model");
        self.base_rows.clear();
        self.samples = 0;
    }

    fn base_rows(&self) -> SparseGradient {
        SparseGradient {
            rows: self.base_rows.keys().copied().collect(),
            values: self.base_rows.values().flatten().copied().collect(),
        }
    }

    /// Returns the model of the last average, which all workers agree on.
    pub fn portion(&self) -> Portion {
        if self.base_rows.is_empty() && self.samples == 0 {
            return self.model.portion();
        }
        let mut base = self.clone();
        base.revert();
        base.model.portion()
    }

    /// Returns this worker's contribution to the average: the difference of its model to the base, times its
    /// samples, as `[dense_len]` and by row.
    pub fn drift(&self) -> (Vec<f32>, SparseGradient) {
        #[allow(clippy::cast_precision_loss, reason = "a weight")]
        let weight = self.samples as f32;
        let drift = |now: &f32, base: &f32| (now - base) * weight;
        let dense = self.model.dense().iter().zip(&self.base).map(|(now, base)| drift(now, base)).collect();
        let rows: Vec<u64> = self.base_rows.keys().copied().collect();
        let mut values = Vec::new();
        self.model.gather(&rows, &mut values).expect("rows of the base are rows of the model");
        let base = self.base_rows.values().flatten();
        values.iter_mut().zip(base).for_each(|(now, base)| *now = drift(now, base));
        (dense, SparseGradient { rows, values })
    }

    /// Replaces the model by the average. The arguments are the sums of all workers' [drifts](Self::drift)
    /// and of their samples, this worker's included. With 0 samples nothing changes.
    ///
    /// Returns the [distance](Self::distance) that the model was at.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is then changed.
    pub fn average(
        &mut self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
    ) -> Result<Option<f64>, TableError> {
        if samples == 0 {
            return Ok(None);
        }
        let scale = mean_scale(samples);
        // A row that only others touched is still as at the last average.
        let mut values = Vec::new();
        self.model.gather(&rows.rows, &mut values)?;
        for (row, values) in self.model.layout().by_row_mut(&rows.rows, &mut values) {
            if let Some(base) = self.base_rows.get(&row) {
                values.copy_from_slice(base);
            }
        }
        values.iter_mut().zip(&rows.values).for_each(|(value, sum)| *value += sum * scale);
        let dense: Vec<f32> = self.base.iter().zip(dense_sum).map(|(base, sum)| base + sum * scale).collect();
        let distance = self.distance(&dense);
        self.model.set(&dense, &SparseGradient { rows: rows.rows.clone(), values })?;
        self.model.count(samples);
        self.base = dense;
        self.base_rows.clear();
        self.samples = 0;
        Ok(distance)
    }

    /// Returns how far this worker's flat parameters are from those of an average: the Euclidean distance, divided by the norm of
    /// the average. `None` if that is zero.
    pub fn distance(&self, average: &[f32]) -> Option<f64> {
        let norm = average.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let apart = |(own, mean): (&f32, &f32)| (f64::from(*own) - f64::from(*mean)).powi(2);
        let distance = self.model.dense().iter().zip(average).map(apart).sum::<f64>().sqrt();
        let relative = distance / norm;
        relative.is_finite().then_some(relative)
    }

    /// Returns the worker's own model, for the workers that average with it.
    pub fn give(&self) -> Given {
        Given { dense: self.model.dense().to_vec(), rows: self.model.changed_rows() }
    }

    /// Returns the uniform mean of these models, which fit this one, or of one part of each. The same models in the same order give the
    /// same bits, in parts or as a whole.
    pub fn mean(&self, models: &[Given]) -> Given {
        #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
        let share = 1.0 / models.len().max(1) as f64;
        let mut dense = vec![0.0; models.first().map_or(0, |model| model.dense.len())];
        for model in models {
            add(&mut dense, &model.dense);
        }
        let layout = self.model.layout();
        let of_rows = |model: &'_ Given| -> BTreeMap<u64, Vec<f32>> {
            let rows = layout.by_row(&model.rows.rows, &model.rows.values);
            rows.map(|(row, values)| (row, values.to_vec())).collect()
        };
        let by_row: Vec<BTreeMap<u64, Vec<f32>>> = models.iter().map(of_rows).collect();
        let all: BTreeSet<u64> = by_row.iter().flat_map(BTreeMap::keys).copied().collect();
        let mut rows = SparseGradient::default();
        let mut initial = Vec::new();
        for row in all {
            initial.resize(layout.row_len(row), 0.0);
            self.model.initial_row(row, &mut initial);
            let mut sum = vec![0.0; initial.len()];
            for model in &by_row {
                // A row that a worker never changed is as it started.
                add(&mut sum, model.get(&row).unwrap_or(&initial));
            }
            rows.rows.push(row);
            rows.values.extend(scaled(&sum, share));
        }
        Given { dense: scaled(&dense, share).collect(), rows }
    }

    /// Goes on with a mean of models. `samples` are those of the step that all workers took.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is then changed.
    pub fn mix(&mut self, mean: Given, samples: u64) -> Result<(), TableError> {
        self.model.set(&mean.dense, &mean.rows)?;
        self.model.count(samples);
        self.base = mean.dense;
        self.base_rows.clear();
        self.samples = 0;
        Ok(())
    }

    /// Returns the model of the last average in the form that [`Replica::import`] reads, with this worker's
    /// optimizer state.
    pub fn export(&self) -> Vec<u8> {
        let mut base = self.model.clone();
        base.set(&self.base, &self.base_rows()).expect("the base has the shape of the model");
        base.export()
    }
}

/// In double precision, so that only the mean is rounded.
fn add(sum: &mut [f64], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
}

#[allow(clippy::cast_possible_truncation, reason = "rounded once")]
fn scaled(sum: &[f64], share: f64) -> impl Iterator<Item = f32> {
    sum.iter().map(move |sum| (sum * share) as f32)
}

#[cfg(test)]
mod tests {
    use antdt_core::{ParamLayout, Seed, TableSpec};
    use proptest::prelude::*;

    use super::*;
    use crate::{Trained, UpdateRule};

    const DIM: usize = 2;

    fn layout() -> ParamLayout {
        ParamLayout::dense(3).with_table(TableSpec::new("table", 8, DIM, 0.5)).unwrap()
    }

    fn rule(optimizer: &str, rate: f32) -> UpdateRule {
        UpdateRule::named(optimizer, rate).unwrap()
    }

    fn replica(rule: &UpdateRule) -> Replica {
        Replica::new(&layout(), rule, Seed(3), vec![0.25, -1.0, 2.0]).unwrap()
    }

    fn gradient(seed: u64) -> (Vec<f32>, SparseGradient, u64) {
        let mut rng = Seed(seed).rng();
        let rows: Vec<u64> = (0..8).filter(|_| rng.below(2) == 0).collect();
        let mut number = || rng.normal() as f32;
        let dense = (0..3).map(|_| number()).collect();
        let values = rows.iter().flat_map(|_| [0; DIM]).map(|_| number()).collect();
        let samples = 1 + Seed(seed + 1).rng().below(9);
        (dense, SparseGradient { rows, values }, samples)
    }

    fn all(model: &Replica) -> Vec<f32> {
        let mut values = model.dense().to_vec();
        model.gather(&(0..8).collect::<Vec<_>>(), &mut values).unwrap();
        values
    }

    /// Averages by all-reduce: sums of drifts, in order.
    fn average(workers: &mut [LocalReplica]) {
        let drifts: Vec<_> = workers.iter().map(LocalReplica::drift).collect();
        let mut dense = vec![0.0; 3];
        for (drift, _) in &drifts {
            dense.iter_mut().zip(drift).for_each(|(sum, value)| *sum += value);
        }
        let rows =
            SparseGradient::merge(drifts.iter().map(|(_, rows)| (&rows.rows[..], &rows.values[..])), DIM);
        let samples = workers.iter().map(LocalReplica::samples).sum();
        for worker in workers.iter_mut() {
            worker.average(&dense, &rows, samples).unwrap();
        }
    }

    proptest! {
        #[test]
        fn the_weighted_mean_of_all_models_is_what_all_go_on_with(
            seed in any::<u32>(), workers in 1_usize..5, steps in 0_usize..4, rounds in 1_u64..4
        ) {
            let adagrad = &rule("adagrad", 0.1);
            let mut all_workers = vec![LocalReplica::new(replica(adagrad)); workers];
            for round in 0..rounds {
                for (index, worker) in all_workers.iter_mut().enumerate() {
                    // Some take fewer steps, some none.
                    for step in 0..steps.saturating_sub(index) {
                        let (dense, rows, samples) =
                            gradient(u64::from(seed) + round * 100 + (index * 10 + step) as u64);
                        worker.advance(&dense, &rows, samples).unwrap();
                    }
                }
                let total: u64 = all_workers.iter().map(LocalReplica::samples).sum();
                let mut mean = vec![0.0_f64; 3 + 8 * DIM];
                for worker in &all_workers {
                    let weight = if total == 0 { 0.0 } else { worker.samples() as f64 / total as f64 };
                    for (mean, value) in mean.iter_mut().zip(all(worker.model())) {
                        *mean += weight * f64::from(value);
                    }
                }
                average(&mut all_workers);
                for worker in &all_workers {
                    prop_assert_eq!(worker.samples(), 0);
                    prop_assert_eq!(all(worker.model()), all(all_workers[0].model()), "all are the same");
                    for (value, mean) in all(worker.model()).iter().zip(&mean) {
                        prop_assert!(total == 0 || (f64::from(*value) - mean).abs() < 1e-5, "{} {}", value, mean);
                    }
                }
            }
        }
    }

    proptest! {
        /// On a ring, where the neighbours of each worker are others.
        #[test]
        fn the_mean_of_all_models_is_the_same_before_and_after_they_mix(
            seed in any::<u32>(), workers in 1_usize..7, steps in 1_u64..6
        ) {
            let adagrad = &rule("adagrad", 0.1);
            let mut all_workers = vec![LocalReplica::new(replica(adagrad)); workers];
            let mean = |workers: &[LocalReplica]| -> Vec<f64> {
                let mut mean = vec![0.0_f64; 3 + 8 * DIM];
                for worker in workers {
                    for (mean, value) in mean.iter_mut().zip(all(worker.model())) {
                        *mean += f64::from(value) / workers.len() as f64;
                    }
                }
                mean
            };
            for step in 0..steps {
                for (index, worker) in all_workers.iter_mut().enumerate() {
                    let (dense, rows, samples) = gradient(u64::from(seed) + step * 100 + index as u64);
                    worker.advance(&dense, &rows, samples).unwrap();
                }
                let (before, given) = (mean(&all_workers), all_workers.iter().map(LocalReplica::give));
                let given: Vec<Given> = given.map(|given| Given::decode(&given.encode(), &layout()).unwrap()).collect();
                for (index, worker) in all_workers.iter_mut().enumerate() {
                    let mut near = vec![(index + workers - 1) % workers, index, (index + 1) % workers];
                    near.sort_unstable();
                    near.dedup();
                    let near: Vec<Given> = near.into_iter().map(|index| given[index].clone()).collect();
                    worker.mix(worker.mean(&near), 5).unwrap();
                }
                for (after, before) in mean(&all_workers).iter().zip(&before) {
                    prop_assert!((after - before).abs() < 1e-6, "{} {}", after, before);
                }
            }
            // The mean of all is one model, whoever makes it, as a whole or each a part of it.
            let given: Vec<Given> = all_workers.iter().map(LocalReplica::give).collect();
            let cut: Vec<Vec<Given>> = given.iter().map(|given| given.cut(&layout(), workers)).collect();
            let parts: Vec<Given> = (0..workers)
                .map(|part| {
                    let models: Vec<Given> = cut.iter().map(|cut| cut[part].clone()).collect();
                    all_workers[part].mean(&models)
                })
                .collect();
            prop_assert_eq!(Given::join(&parts, &layout()), all_workers[0].mean(&given));
            let expected = mean(&all_workers);
            for worker in &mut all_workers {
                worker.mix(worker.mean(&given), 5).unwrap();
                prop_assert_eq!(worker.model().trained(), Trained { steps, samples: 5 * (steps + 1) });
            }
            for worker in &all_workers {
                prop_assert_eq!(all(worker.model()), all(all_workers[0].model()));
                for (value, expected) in all(worker.model()).iter().zip(&expected) {
                    prop_assert!((f64::from(*value) - expected).abs() < 1e-6);
                }
            }
        }
    }

    /// Models (1, 5, 2) and (-1, 3, 2): from their mean, (0, 4, 2), each is as far as (1, 1, 0).
    #[test]
    fn the_distance_to_an_average_is_in_units_of_its_norm() {
        let sgd = &rule("sgd", 1.0);
        let at =
            |dense: [f32; 3]| LocalReplica::new(Replica::new(&layout(), sgd, Seed(3), dense.into()).unwrap());
        let (one, other) = (at([1.0, 5.0, 2.0]), at([-1.0, 3.0, 2.0]));
        let mean = one.mean(&[one.give(), other.give()]);
        assert_eq!(mean.dense, [0.0, 4.0, 2.0]);
        let expected = (2.0_f64 / 20.0).sqrt();
        for worker in [&one, &other] {
            let distance = worker.distance(&mean.dense).unwrap();
            assert!((distance - expected).abs() < 1e-12, "{distance}");
        }
        assert_eq!(one.distance(one.model().dense()), Some(0.0));
        assert_eq!(one.distance(&[0.0; 3]), None, "of nothing");
        // From (0, 4, 2), one worker goes to (3, 4, 2) with one sample, the other stays: the mean by samples is that of the first.
        let mut workers = [at([0.0, 4.0, 2.0]), at([0.0, 4.0, 2.0])];
        workers[0].advance(&[-3.0, 0.0, 0.0], &SparseGradient::default(), 1).unwrap();
        let drift = workers[0].drift().0;
        let none = SparseGradient::default();
        let distances = workers.each_mut().map(|worker| worker.average(&drift, &none, 1).unwrap().unwrap());
        assert_eq!(distances[0], 0.0);
        assert!((distances[1] - 3.0 / 29.0_f64.sqrt()).abs() < 1e-7, "{distances:?}");
        assert_eq!(workers[0].average(&drift, &none, 0).unwrap(), None, "no average was made");
    }

    #[test]
    fn a_step_after_a_mean_is_undone_to_the_mean() {
        let sgd = &rule("sgd", 0.5);
        let mut worker = LocalReplica::new(replica(sgd));
        let (dense, rows, samples) = gradient(1);
        worker.advance(&dense, &rows, samples).unwrap();
        let other = LocalReplica::new(replica(sgd)).give();
        worker.mix(worker.mean(&[worker.give(), other]), 2 * samples).unwrap();
        let mean = all(worker.model());
        let (dense, rows, samples) = gradient(2);
        worker.advance(&dense, &rows, samples).unwrap();
        assert_ne!(all(worker.model()), mean);
        let given = Replica::import(&worker.export(), &layout(), sgd, Seed(3)).unwrap();
        worker.revert();
        assert_eq!((all(worker.model()), all(&given)), (mean.clone(), mean));
    }

    #[test]
    fn one_step_of_sgd_between_averages_is_a_step_with_the_sum_of_all_gradients() {
        let sgd = &rule("sgd", 0.5);
        let mut workers = vec![LocalReplica::new(replica(sgd)); 3];
        let mut together = replica(sgd);
        for round in 0..5 {
            let gradients: Vec<_> = (0..3).map(|index| gradient(round * 10 + index)).collect();
            let mut dense = vec![0.0; 3];
            for (worker, (sum, rows, samples)) in workers.iter_mut().zip(&gradients) {
                worker.advance(sum, rows, *samples).unwrap();
                dense.iter_mut().zip(sum).for_each(|(total, value)| *total += value);
            }
            let parts = gradients.iter().map(|(_, rows, _)| (&rows.rows[..], &rows.values[..]));
            let rows = SparseGradient::merge(parts, DIM);
            together.apply(&dense, &rows, gradients.iter().map(|(.., samples)| samples).sum()).unwrap();
            average(&mut workers);
            for (value, expected) in all(workers[0].model()).iter().zip(all(&together)) {
                assert!((value - expected).abs() < 1e-5, "{value} {expected}");
            }
        }
    }

    #[test]
    fn the_learning_rate_goes_by_the_samples_of_the_last_average_and_the_steps_are_the_workers_own() {
        let schedule = "step:every=1,factor=0.5".parse().unwrap();
        let rule = &UpdateRule { schedule, ..rule("adam", 0.5) };
        let mut workers = vec![LocalReplica::new(replica(rule)); 2];
        let (dense, rows, _) = gradient(1);
        for (worker, steps) in workers.iter_mut().zip([3_u64, 1]) {
            for _ in 0..steps {
                worker.advance(&dense, &rows, 2).unwrap();
            }
            assert_eq!(worker.model().trained(), Trained { steps, samples: 0 });
        }
        average(&mut workers);
        for (worker, steps) in workers.iter_mut().zip([3, 1]) {
            worker.advance(&dense, &rows, 2).unwrap();
            assert_eq!(worker.model().trained(), Trained { steps: steps + 1, samples: 8 });
            let given = Replica::import(&worker.export(), &layout(), rule, Seed(3)).unwrap();
            assert_eq!(given.trained(), worker.model().trained());
        }
    }

    #[test]
    fn a_worker_that_comes_gets_the_model_of_the_last_average() {
        let sgd = &rule("sgd", 0.5);
        let mut worker = LocalReplica::new(replica(sgd));
        let before = all(worker.model());
        let (dense, rows, samples) = gradient(1);
        worker.advance(&dense, &rows, samples).unwrap();
        assert_ne!(all(worker.model()), before);
        let given = Replica::import(&worker.export(), &layout(), sgd, Seed(3)).unwrap();
        assert_eq!(all(&given), before);
        worker.revert();
        assert_eq!((all(worker.model()), worker.samples()), (before, 0), "the steps since then are undone");
    }
}
