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
//! # With an outer optimizer
//!
//! The mean of all models is not what workers go on with, but what an [outer](LocalReplica::with_outer) optimizer makes of it: the
//! difference of the base to that mean is its gradient, and the base are its parameters. Its moments follow from means alone, so all
//! workers have the same; they are part of the model that all agree on, and go to checkpoints and to workers that come. A row has
//! a step of the outer optimizer when some worker touched it. Statistics, which no optimizer follows, are averaged as ever. Cost: the
//! base and the moments of the flat vector and of every row that was ever trained.
//!
//! # Where workers average with a few others
//!
//! Then models differ after an average, too, and there is no base that all have: each worker [gives](LocalReplica::give) its whole
//! model, and [goes on](LocalReplica::mix) with the uniform [mean](LocalReplica::mean) of those that it was given and its own.
//! Its base is what it went on with last, so that steps can be undone all the same.
//!
//! Source: local SGD (Stich, 2018; recalled) with weights by samples; the form as a weighted drift is ours. The outer optimizer is
//! that of DiLoCo (Douillard et al., 2023; recalled), whose mean is uniform.

use std::collections::BTreeMap;

use antdt_core::{GroupKind, InvalidValue, Seed};

use crate::given::Given;
use crate::gradient::{SparseGradient, mean_scale};
use crate::portion::Portion;
use crate::replica::Replica;
use crate::rule::{Trained, UpdateRule};
use crate::table::TableError;

/// A model that one worker trains by itself between two averages with other workers (local SGD).
#[derive(Debug, Clone)]
pub struct LocalReplica {
    model: Replica,
    /// The flat vector at the last average; empty if an outer optimizer has it.
    base: Vec<f32>,
    /// The rows that changed since, as they were at the last average.
    base_rows: BTreeMap<u64, Vec<f32>>,
    samples: u64,
    /// The base as the parameters of the outer optimizer, if there is one.
    outer: Option<Box<Replica>>,
}

impl LocalReplica {
    /// Returns a replica whose model is equal on all workers, as at the beginning of a job or after an
    /// average.
    pub fn new(model: Replica) -> Self {
        Self { base: model.dense().to_vec(), base_rows: BTreeMap::new(), samples: 0, model, outer: None }
    }

    /// Returns a replica whose averages are steps of an outer optimizer with the rule `outer`. `seed` is that
    /// of the model.
    ///
    /// # Errors
    /// If the outer rule is invalid.
    pub fn with_outer(model: Replica, outer: &UpdateRule, seed: Seed) -> Result<Self, InvalidValue> {
        let mut base = Replica::new(model.layout(), outer, seed, model.dense().to_vec())?;
        base.set(model.dense(), &model.changed_rows()).expect("a model has its own shape");
        Ok(Self { base: Vec::new(), outer: Some(Box::new(base)), ..Self::new(model) })
    }

    /// The flat vector at the last average.
    fn base(&self) -> &[f32] {
        self.outer.as_ref().map_or(&self.base, |outer| outer.dense())
    }

    /// Returns the worker's own model.
    pub const fn model(&self) -> &Replica {
        &self.model
    }

    /// Makes this worker's steps use a share of the learning rate, as [`Replica::set_rate_share`] does. Steps
    /// of the outer optimizer keep the whole rate.
    pub const fn set_rate_share(&mut self, share: f32) {
        self.model.set_rate_share(share);
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
        self.advance_part(dense_sum, rows, samples, None)
    }

    /// Takes the same step where this model is a part of a larger one, of whose gradient `norm` is the norm: gradients are clipped by
    /// that. `None` if it is the whole model.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub fn advance_part(
        &mut self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<(), TableError> {
        let mut before = Vec::new();
        self.model.gather(&rows.rows, &mut before)?;
        self.model.apply_alone(dense_sum, rows, samples, norm)?;
        if samples > 0 {
            for (row, values) in self.model.layout().by_row(&rows.rows, &before) {
                self.base_rows.entry(row).or_insert_with(|| values.to_vec());
            }
            self.samples += samples;
        }
        Ok(())
    }

    /// Undoes the steps of this worker since the last average; the state of its optimizer stays.
    pub fn revert(&mut self) {
        let rows = self.base_rows();
        let base = self.outer.as_ref().map_or(&self.base[..], |outer| outer.dense());
        self.model.set(base, &rows).expect("the base has the shape of the model");
        self.base_rows.clear();
        self.samples = 0;
    }

    fn base_rows(&self) -> SparseGradient {
        SparseGradient {
            rows: self.base_rows.keys().copied().collect(),
            values: self.base_rows.values().flatten().copied().collect(),
        }
    }

    /// Returns the model of the last average, which all workers agree on, with the state of the outer optimizer if there is one, else
    /// of this worker's.
    pub fn portion(&self) -> Portion {
        if let Some(outer) = &self.outer {
            return outer.portion();
        }
        if self.base_rows.is_empty() && self.samples == 0 {
            return self.model.portion();
        }
        let mut base = self.clone();
        base.revert();
        base.model.portion()
    }

    /// Overwrites the parameters that `portion` has; the model must have taken no step since the last
    /// average. With `with_state`, also overwrites the state of the outer optimizer if there is one,
    /// otherwise of this worker's. Returns how many values of the flat vector were set.
    ///
    /// # Errors
    /// If the portion does not fit the model or the optimizer's state. Nothing is changed then.
    pub fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        match &mut self.outer {
            Some(outer) => {
                outer.restore(portion, with_state)?;
                self.model.restore(portion, false)
            }
            None => {
                let set = self.model.restore(portion, with_state)?;
                self.base.copy_from_slice(self.model.dense());
                Ok(set)
            }
        }
    }

    /// Sets the numbers of steps and samples that the model was trained for, after its portions were
    /// restored.
    pub const fn set_trained(&mut self, trained: Trained) {
        self.model.set_trained(trained);
    }

    /// Returns this worker's contribution to the next average: the difference between its model and the model
    /// of the last average, times the samples that it trained since, for the flat vector, `[dense_len]`, and
    /// by row.
    pub fn drift(&self) -> (Vec<f32>, SparseGradient) {
        #[allow(clippy::cast_precision_loss, reason = "a weight")]
        let weight = self.samples as f32;
        let drift = |now: &f32, base: &f32| (now - base) * weight;
        let dense = self.model.dense().iter().zip(self.base()).map(|(now, base)| drift(now, base)).collect();
        let rows: Vec<u64> = self.base_rows.keys().copied().collect();
        let mut values = Vec::new();
        self.model.gather(&rows, &mut values).expect("rows of the base are rows of the model");
        let base = self.base_rows.values().flatten();
        values.iter_mut().zip(base).for_each(|(now, base)| *now = drift(now, base));
        (dense, SparseGradient { rows, values })
    }

    /// Replaces the model by the average, or by what the outer optimizer makes of it. The arguments are the sums of all workers'
    /// [drifts](Self::drift) and of their samples, this worker's included. With 0 samples nothing changes.
    ///
    /// Returns the [distance](Self::distance) of the model to the average.
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
        let mean = |(base, sum): (&f32, &f32)| base + sum * scale;
        let dense: Vec<f32> = self.base().iter().zip(dense_sum).map(mean).collect();
        let distance = self.distance(&dense);
        let (dense, values) = match &mut self.outer {
            Some(outer) => {
                let (sums, rows) = uphill(outer, dense_sum, rows, samples);
                outer.apply(&sums, &rows, samples)?;
                let mut values = Vec::new();
                outer.gather(&rows.rows, &mut values)?;
                (outer.dense().to_vec(), values)
            }
            None => {
                // A row that only others touched is still as at the last average.
                let mut values = Vec::new();
                self.model.gather(&rows.rows, &mut values)?;
                for (row, values) in self.model.layout().by_row_mut(&rows.rows, &mut values) {
                    if let Some(base) = self.base_rows.get(&row) {
                        values.copy_from_slice(base);
                    }
                }
                values.iter_mut().zip(&rows.values).for_each(|(value, sum)| *value += sum * scale);
                (dense, values)
            }
        };
        self.model.set(&dense, &SparseGradient { rows: rows.rows.clone(), values })?;
        self.model.count(samples);
        if self.outer.is_none() {
            self.base = dense;
        }
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

    /// Returns the uniform mean of these models, all of which fit this one, or of the same part of each. The
    /// same models in the same order give the same bits, in parts or as a whole.
    pub fn mean(&self, models: &[Given]) -> Given {
        #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
        let share = 1.0 / models.len().max(1) as f64;
        let mut dense = vec![0.0; models.first().map_or(0, |model| model.dense.len())];
        for model in models {
            add(&mut dense, &model.dense);
        }
        let layout = self.model.layout();
        let rows = models.iter().map(|Given { rows, .. }| layout.by_row(&rows.rows, &rows.values).peekable());
        let mut rest: Vec<_> = rows.collect();
        let mut rows = SparseGradient::default();
        let (mut initial, mut sum) = (Vec::new(), Vec::new());
        while let Some(row) = rest.iter_mut().filter_map(|rows| Some(rows.peek()?.0)).min() {
            // A row that a worker never changed is as it started.
            initial.clear();
            sum.clear();
            sum.resize(layout.row_len(row), 0.0);
            for rows in &mut rest {
                if let Some((_, values)) = rows.next_if(|(first, _)| *first == row) {
                    add(&mut sum, values);
                    continue;
                }
                if initial.is_empty() {
                    initial.resize(sum.len(), 0.0);
                    self.model.initial_row(row, &mut initial);
                }
                add(&mut sum, &initial);
            }
            rows.rows.push(row);
            rows.values.extend(scaled(&sum, share));
        }
        Given { dense: scaled(&dense, share).collect(), rows }
    }

    /// Replaces this worker's model by a mean of models. `samples` is the number of samples of the step that
    /// all workers took.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is changed
    /// then.
    pub fn mix(&mut self, mean: Given, samples: u64) -> Result<(), TableError> {
        self.model.set(&mean.dense, &mean.rows)?;
        self.model.count(samples);
        match &mut self.outer {
            Some(outer) => outer.set(&mean.dense, &mean.rows)?,
            None => self.base = mean.dense,
        }
        self.base_rows.clear();
        self.samples = 0;
        Ok(())
    }

    /// Returns what a worker that joins takes over: the model of the last average with this worker's optimizer state, and
    /// the model of the outer optimizer if there is one. [`of_shared`](Self::of_shared) makes a replica of them.
    pub fn shared(&self) -> (Replica, Option<&Replica>) {
        let mut base = self.model.clone();
        base.set(self.base(), &self.base_rows()).expect("the base has the shape of the model");
        (base, self.outer.as_deref())
    }

    /// Returns a replica of what another worker [shared](Self::shared).
    pub fn of_shared(model: Replica, outer: Option<Replica>) -> Self {
        match outer {
            Some(outer) => Self {
                base: Vec::new(),
                base_rows: BTreeMap::new(),
                samples: 0,
                model,
                outer: Some(Box::new(outer)),
            },
            None => Self::new(model),
        }
    }
}

/// What workers drifted, as sums of gradients of the base: the other way. Statistics have none; their sums are those of new values.
fn uphill(
    base: &Replica,
    dense_sum: &[f32],
    rows: &SparseGradient,
    samples: u64,
) -> (Vec<f32>, SparseGradient) {
    #[allow(clippy::cast_precision_loss, reason = "a weight")]
    let weight = samples as f32;
    let mut sums: Vec<f32> = dense_sum.iter().map(|sum| -sum).collect();
    let statistics = base.layout().ranges().filter(|(_, group)| group.kind == GroupKind::State);
    for (place, _) in statistics {
        let places = sums.get_mut(place.clone()).into_iter().flatten();
        let values = base.dense().get(place).into_iter().flatten();
        places.zip(values).for_each(|(sum, value)| *sum = value * weight - *sum);
    }
    (sums, SparseGradient { rows: rows.rows.clone(), values: rows.values.iter().map(|sum| -sum).collect() })
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
    use std::collections::BTreeSet;

    use antdt_core::{ParamLayout, Seed, TableSpec};
    use proptest::prelude::*;

    use super::*;
    use crate::optimizer::Momentum;
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
        fn all_workers_go_on_with_the_weighted_mean_of_all_models(
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
            // The mean of all is one model, whether one worker makes it or each a part of it.
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

    proptest! {
        /// I15: the average of a group is a symmetric, doubly stochastic projection. Numbers are multiples of 60, which groups of up to
        /// six divide without rounding.
        #[test]
        fn the_average_of_a_group_is_a_projection_that_keeps_the_sum_and_never_spreads(
            workers in 2_usize..7, members in any::<u8>(), values in prop::collection::vec(-1000_i32..1000, 36)
        ) {
            let sgd = &rule("sgd", 1.0);
            let layout = ParamLayout::dense(workers);
            let with = |dense: Vec<f32>| LocalReplica::new(Replica::new(&layout, sgd, Seed(3), dense).unwrap());
            let group: Vec<usize> = (0..workers).filter(|worker| members >> worker & 1 == 1).collect();
            let average = |workers: &mut [LocalReplica]| {
                let given: Vec<Given> = group.iter().map(|member| workers[*member].give()).collect();
                for member in &group {
                    let mean = workers[*member].mean(&given);
                    workers[*member].mix(mean, 1).unwrap();
                }
            };
            let rows = |workers: &[LocalReplica]| -> Vec<Vec<f64>> {
                workers.iter().map(|worker| worker.model().dense().iter().map(|value| f64::from(*value)).collect()).collect()
            };
            // Worker i has the i-th unit vector, so afterwards its model is the i-th row of the matrix.
            let unit = |at: usize| (0..workers).map(|index| if index == at { 60.0 } else { 0.0 }).collect();
            let mut units: Vec<LocalReplica> = (0..workers).map(|worker| with(unit(worker))).collect();
            average(&mut units);
            let matrix = rows(&units);
            for i in 0..workers {
                prop_assert_eq!(matrix[i].iter().sum::<f64>(), 60.0);
                prop_assert_eq!(matrix.iter().map(|row| row[i]).sum::<f64>(), 60.0);
                for (j, row) in matrix.iter().enumerate() {
                    prop_assert_eq!(matrix[i][j], row[i]);
                    prop_assert!(row[i] >= 0.0);
                }
            }
            average(&mut units);
            prop_assert_eq!(rows(&units), matrix, "averaged once more, nothing changes");

            let of = |worker: usize| (0..workers).map(|at| 60.0 * values[worker * 6 + at] as f32).collect();
            let mut models: Vec<LocalReplica> = (0..workers).map(|worker| with(of(worker))).collect();
            let sums = |models: &[LocalReplica]| -> Vec<f64> {
                let rows = rows(models);
                (0..workers).map(|at| rows.iter().map(|row| row[at]).sum()).collect()
            };
            let apart = |models: &[LocalReplica]| -> f64 {
                let sums = sums(models);
                let from_mean = |(value, sum): (&f64, &f64)| (value - sum / workers as f64).powi(2);
                rows(models).iter().flat_map(|row| row.iter().zip(&sums).map(from_mean).collect::<Vec<_>>()).sum()
            };
            let (sum, spread) = (sums(&models), apart(&models));
            average(&mut models);
            prop_assert_eq!(sums(&models), sum);
            prop_assert!(apart(&models) <= spread * (1.0 + 1e-12), "{} {}", apart(&models), spread);
        }
    }

    proptest! {
        /// As workers do that average in pairs while they compute: a pair leaves the sum of all models, and a gradient that was begun
        /// before it moves the sum by a step, once.
        #[test]
        fn pairs_beside_gradients_keep_the_mean_and_each_gradient_moves_it_once(
            seed in any::<u32>(),
            events in prop::collection::vec((0_usize..4, 0_usize..4, any::<bool>()), 1..40),
        ) {
            let sgd = &rule("sgd", 0.5);
            let mut workers = vec![LocalReplica::new(replica(sgd)); 4];
            let mut begun: [Option<(Vec<f32>, SparseGradient, u64)>; 4] = Default::default();
            let sum = |workers: &[LocalReplica]| -> Vec<f64> {
                let models: Vec<Vec<f32>> = workers.iter().map(|worker| all(worker.model())).collect();
                (0..models[0].len()).map(|at| models.iter().map(|model| f64::from(model[at])).sum()).collect()
            };
            let near = |found: &[f64], expected: &[f64]| {
                let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|value| value * value).sum::<f64>().sqrt();
                let off = norm(&mut found.iter().zip(expected).map(|(found, expected)| found - expected));
                off <= 1e-6 * norm(&mut expected.iter().copied()).max(1.0)
            };
            for (number, (one, other, pair)) in (0_u64..).zip(events) {
                let before = sum(&workers);
                if pair && one != other {
                    let given = [workers[one].give(), workers[other].give()];
                    for worker in [one, other] {
                        let mean = workers[worker].mean(&given);
                        workers[worker].mix(mean, 1).unwrap();
                    }
                    prop_assert_eq!(all(workers[one].model()), all(workers[other].model()));
                    prop_assert!(near(&sum(&workers), &before), "{:?} {:?}", sum(&workers), before);
                } else if let Some((dense, rows, samples)) = begun[one].take() {
                    let mut expected = before;
                    let step = |sum: &f32| 0.5 * f64::from(*sum) / samples as f64;
                    expected.iter_mut().zip(&dense).for_each(|(value, sum)| *value -= step(sum));
                    for (row, sums) in rows.rows.iter().zip(rows.values.chunks(DIM)) {
                        let place = 3 + *row as usize * DIM;
                        expected[place..].iter_mut().zip(sums).for_each(|(value, sum)| *value -= step(sum));
                    }
                    workers[one].advance(&dense, &rows, samples).unwrap();
                    prop_assert!(near(&sum(&workers), &expected), "{:?} {:?}", sum(&workers), expected);
                } else {
                    begun[one] = Some(gradient(u64::from(seed) + number));
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
        let given = worker.shared().0;
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

    const OUTER_RATE: f32 = 0.7;
    const OUTER_MOMENTUM: f32 = 0.9;

    fn outer(rate: f32, momentum: f32) -> UpdateRule {
        UpdateRule { rate, ..UpdateRule::new(Box::new(Momentum::nesterov(momentum))) }
    }

    /// Trains with an outer optimizer in groups of three, of which the last worker is replaced in each round, by what another shares.
    fn replaced(seed: u64, rounds: u64, rule: &UpdateRule, outer: &UpdateRule) -> Vec<LocalReplica> {
        let worker = LocalReplica::with_outer(replica(rule), outer, Seed(3)).unwrap();
        let mut workers = vec![worker; 3];
        for round in 0..rounds {
            for (index, worker) in workers.iter_mut().enumerate() {
                for step in 0..=index as u64 {
                    let (dense, rows, samples) = gradient(seed + round * 100 + index as u64 * 10 + step);
                    worker.advance(&dense, &rows, samples).unwrap();
                }
            }
            average(&mut workers);
            let (model, outer) = workers[0].shared();
            workers[2] = LocalReplica::of_shared(model, outer.cloned());
        }
        workers
    }

    proptest! {
        #[test]
        fn an_outer_optimizer_follows_a_plain_double_precision_model_and_is_the_same_in_all_workers(
            seed in any::<u32>(), rounds in 1_u64..6
        ) {
            let (sgd, outer) = (&rule("sgd", 0.1), &outer(OUTER_RATE, OUTER_MOMENTUM));
            let mut workers = vec![LocalReplica::with_outer(replica(sgd), outer, Seed(3)).unwrap(); 3];
            let mut base: Vec<f64> = all(workers[0].model()).iter().map(|value| f64::from(*value)).collect();
            let mut momentum = vec![0.0_f64; base.len()];
            for round in 0..rounds {
                let mut touched = BTreeSet::new();
                for (index, worker) in workers.iter_mut().enumerate() {
                    let (dense, rows, samples) = gradient(u64::from(seed) + round * 10 + index as u64);
                    touched.extend(rows.rows.iter().copied());
                    worker.advance(&dense, &rows, samples).unwrap();
                }
                let total: u64 = workers.iter().map(LocalReplica::samples).sum();
                let mut mean = vec![0.0_f64; base.len()];
                for worker in &workers {
                    let weight = worker.samples() as f64 / total as f64;
                    for (mean, value) in mean.iter_mut().zip(all(worker.model())) {
                        *mean += weight * f64::from(value);
                    }
                }
                average(&mut workers);
                for (index, value) in base.iter_mut().enumerate() {
                    // Only rows that a worker touched take part.
                    let row = (index.checked_sub(3)).map(|index| (index / DIM) as u64);
                    if row.is_none_or(|row| touched.contains(&row)) {
                        let gradient = *value - mean[index];
                        momentum[index] = f64::from(OUTER_MOMENTUM) * momentum[index] + gradient;
                        *value -= f64::from(OUTER_RATE) * (gradient + f64::from(OUTER_MOMENTUM) * momentum[index]);
                    }
                }
                for worker in &workers {
                    prop_assert_eq!(all(worker.model()), all(workers[0].model()));
                    for (value, expected) in all(worker.model()).iter().zip(&base) {
                        let near = (f64::from(*value) - expected).abs() < 1e-4 * expected.abs().max(1.0);
                        prop_assert!(near, "{} {}", value, expected);
                    }
                }
            }
        }

        #[test]
        fn a_worker_that_comes_has_the_moments_of_the_outer_optimizer(seed in 0_u64..1 << 40, rounds in 1_u64..5) {
            let (adagrad, outer) = (&rule("adagrad", 0.1), &outer(OUTER_RATE, OUTER_MOMENTUM));
            let workers = replaced(seed, rounds, adagrad, outer);
            for worker in &workers {
                prop_assert_eq!(all(worker.model()), all(workers[0].model()));
                prop_assert_eq!(worker.portion(), workers[0].portion());
            }
        }

        #[test]
        fn an_outer_step_of_one_without_momentum_is_the_mean(seed in any::<u32>(), rounds in 1_u64..5) {
            let adagrad = &rule("adagrad", 0.1);
            let with_outer = LocalReplica::with_outer(replica(adagrad), &outer(1.0, 0.0), Seed(3)).unwrap();
            let mut with_outer = vec![with_outer; 3];
            let mut without = vec![LocalReplica::new(replica(adagrad)); 3];
            for round in 0..rounds {
                for index in 0..3 {
                    let (dense, rows, samples) = gradient(u64::from(seed) + round * 10 + index as u64);
                    with_outer[index].advance(&dense, &rows, samples).unwrap();
                    without[index].advance(&dense, &rows, samples).unwrap();
                }
                average(&mut with_outer);
                average(&mut without);
                for (value, expected) in all(with_outer[0].model()).iter().zip(all(without[0].model())) {
                    prop_assert!((value - expected).abs() < 1e-5, "{} {}", value, expected);
                }
            }
        }
    }

    #[test]
    fn a_checkpoint_has_the_moments_of_the_outer_optimizer_and_nothing_of_the_workers() {
        let (adam, outer) = (&rule("adam", 0.1), &outer(OUTER_RATE, OUTER_MOMENTUM));
        let mut before = replaced(7, 3, adam, outer);
        let (dense, rows, samples) = gradient(1);
        // Its steps since the average are not part of it.
        before[1].advance(&dense, &rows, samples).unwrap();
        let portion = before[1].portion();
        assert_eq!(portion.dense_state.len(), 1, "one number for each value");
        assert_eq!(portion, before[0].portion());
        let mut after = LocalReplica::with_outer(replica(adam), outer, Seed(3)).unwrap();
        assert_eq!(after.restore(&portion, true).unwrap(), 3);
        assert_eq!(after.portion(), portion);
        assert_eq!(all(after.model()), all(before[0].model()));
        after.advance(&dense, &rows, samples).unwrap();
        after.revert();
        assert_eq!(all(after.model()), all(before[0].model()));
        // Without the state the outer optimizer begins anew, from the same parameters.
        let mut anew = LocalReplica::with_outer(replica(adam), outer, Seed(3)).unwrap();
        anew.restore(&portion, false).unwrap();
        assert_eq!(all(anew.model()), all(before[0].model()));
        assert!(anew.portion().dense_state[0].iter().all(|sum| *sum == 0.0));
        // A mode without an outer optimizer goes on from it too.
        let mut other = LocalReplica::new(replica(adam));
        assert!(other.restore(&portion, true).is_err(), "Adam keeps two numbers");
        other.restore(&portion, false).unwrap();
        assert_eq!(all(other.model()), all(before[0].model()));
        other.advance(&dense, &rows, samples).unwrap();
        other.revert();
        assert_eq!(all(other.model()), all(before[0].model()));
    }

    #[test]
    fn the_outer_optimizer_leaves_statistics_to_the_mean() {
        use antdt_core::ParamGroup;
        let groups = vec![ParamGroup::trainable("w", 1), ParamGroup::state("mean", 2)];
        let layout = ParamLayout::new(groups, Vec::new()).unwrap();
        let model = Replica::new(&layout, &rule("sgd", 1.0), Seed(3), vec![1.0, 10.0, -4.0]).unwrap();
        let outer = &outer(0.5, 0.0);
        let mut worker = LocalReplica::with_outer(model, outer, Seed(3)).unwrap();
        let none = SparseGradient::default();
        for _ in 0..2 {
            // Gradient 1, and statistics (3, 2).
            worker.advance(&[2.0, 6.0, 4.0], &none, 2).unwrap();
            let drift = worker.drift().0;
            worker.average(&drift, &none, 2).unwrap();
        }
        assert_eq!(worker.model().dense(), [0.0, 3.0, 2.0]);
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
            let given = worker.shared().0;
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
        let given = worker.shared().0;
        assert_eq!(all(&given), before);
        worker.revert();
        assert_eq!((all(worker.model()), worker.samples()), (before, 0), "the steps since then are undone");
    }
}
