//! [`DenseParams`]: a flat vector of parameters with what its optimizer keeps for each of them.

use std::ops::Range;

use antdt_core::{GroupKind, ParamLayout};

use crate::optimizer::{Optimizer, STATE_MAX, Update};

/// A piece of a flat vector whose values all change alike.
#[derive(Debug, Clone, PartialEq)]
struct Piece {
    range: Range<usize>,
    kind: GroupKind,
    decays: bool,
}

/// The pieces of `range` of the layout's flat vector, counted from its start. Neighbours that change alike are one piece.
fn pieces(layout: &ParamLayout, range: &Range<usize>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (place, group) in layout.ranges() {
        let Some(range) = cut(&place, range) else { continue };
        match pieces.last_mut() {
            Some(last) if (last.kind, last.decays) == (group.kind, group.decays) => {
                last.range.end = range.end;
            }
            _ => pieces.push(Piece { range, kind: group.kind, decays: group.decays }),
        }
    }
    pieces
}

/// What `range` has of a place of the flat vector, counted from its start.
fn cut(place: &Range<usize>, range: &Range<usize>) -> Option<Range<usize>> {
    let (start, end) = (place.start.max(range.start), place.end.min(range.end));
    (start < end).then(|| start - range.start..end - range.start)
}

/// How one step changes a flat vector.
pub(crate) struct Change<'a> {
    /// What the optimizer does, with weight decay.
    pub(crate) update: &'a Update<'a>,
    /// The same without weight decay.
    pub(crate) exempt: &'a Update<'a>,
    /// What makes a sum over samples their mean, for state groups.
    pub(crate) mean: f32,
    /// How far the values of state groups move towards that mean, up to 1.
    pub(crate) weight: f32,
}

/// A flat vector of parameters, or one server's piece of it, with the optimizer's state for each parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseParams {
    values: Vec<f32>,
    state: [Vec<f32>; STATE_MAX],
    pieces: Vec<Piece>,
    /// The groups that have a gradient, each apart: a norm is added up group by group, wherever they lie.
    trainable: Vec<Range<usize>>,
}

impl DenseParams {
    /// Returns parameters that no gradient has touched yet: `values` for the positions `range` of the
    /// layout's flat vector.
    ///
    /// # Panics
    /// If `values` and `range` differ in length.
    pub fn new(
        optimizer: &dyn Optimizer,
        layout: &ParamLayout,
        range: Range<usize>,
        values: Vec<f32>,
    ) -> Self {
        assert_eq!(values.len(), range.len(), "parameters and their place differ in length");
        let kept = |number| if optimizer.state_per_value() > number { values.len() } else { 0 };
        let trainable = layout.ranges().filter(|(_, group)| group.kind == GroupKind::Trainable);
        let trainable = trainable.filter_map(|(place, _)| cut(&place, &range)).collect();
        let state = [vec![0.0; kept(0)], vec![0.0; kept(1)]];
        Self { state, values, pieces: pieces(layout, &range), trainable }
    }

    /// The groups of a gradient that the optimizer follows: without state groups, of which sums are no gradients.
    pub(crate) fn trainable<'a>(&'a self, sums: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
        self.trainable.iter().map(move |range| &sums[range.clone()])
    }

    /// Returns the values of the parameters.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the optimizer's state: arrays as long as the parameters; arrays that the optimizer does not
    /// use are empty.
    pub fn state(&self) -> [&[f32]; STATE_MAX] {
        let [first, second] = &self.state;
        [first, second]
    }

    /// Returns the values of the parameters for overwriting; the optimizer's state stays.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// The parameters and what the optimizer keeps of them, for overwriting.
    pub(crate) fn arrays_mut(&mut self) -> [&mut [f32]; 1 + STATE_MAX] {
        let [first, second] = &mut self.state;
        [&mut self.values, first, second]
    }

    /// What the optimizer keeps, to be set to what was saved.
    pub(crate) fn state_mut(&mut self) -> [&mut [f32]; STATE_MAX] {
        let [first, second] = &mut self.state;
        [first, second]
    }

    /// One step with the sums of gradients of all parameters, or of the new values of state groups.
    ///
    /// # Panics
    /// If there are more or fewer than parameters.
    pub(crate) fn apply(&mut self, sums: &[f32], change: &Change<'_>) {
        assert_eq!(self.values.len(), sums.len(), "parameters and gradient differ in length");
        let Self { values, state: [first, second], pieces, trainable: _ } = self;
        for Piece { range, kind, decays } in pieces {
            let (values, sums) = (&mut values[range.clone()], &sums[range.clone()]);
            match kind {
                GroupKind::Trainable => {
                    let update = if *decays { change.update } else { change.exempt };
                    let kept = [first.get_mut(range.clone()), second.get_mut(range.clone())];
                    update(values, kept.map(Option::unwrap_or_default), sums);
                    if *decays {
                        drop_subnormal(values);
                    }
                }
                GroupKind::State if change.weight >= 1.0 => {
                    values.iter_mut().zip(sums).for_each(|(value, sum)| *value = sum * change.mean);
                }
                GroupKind::State => {
                    let step = |(value, sum): (&mut f32, &f32)| {
                        *value += change.weight * (sum * change.mean - *value);
                    };
                    values.iter_mut().zip(sums).for_each(step);
                }
            }
        }
    }
}

/// Decay takes parameters that no gradient moves ever closer to 0. Below the smallest normal number some processors compute a
/// hundred times slower with them, and a model has no use for them.
fn drop_subnormal(values: &mut [f32]) {
    for value in values {
        *value = if value.abs() < f32::MIN_POSITIVE { 0.0 } else { *value };
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::ParamGroup;

    use super::*;
    use crate::optimizer::{Adam, Sgd, UpdateStep};

    const STEP: UpdateStep = UpdateStep { number: 1, rate: 0.5, scale: 0.25, decay: 0.0 };

    fn layout() -> ParamLayout {
        let groups = vec![
            ParamGroup::trainable("w", 2),
            ParamGroup::trainable("v", 1),
            ParamGroup::trainable("bias", 1).without_decay(),
            ParamGroup::state("mean", 2),
        ];
        ParamLayout::new(groups, Vec::new()).unwrap()
    }

    #[test]
    fn an_optimizer_without_memory_costs_none() {
        let layout = ParamLayout::dense(2);
        let mut params = DenseParams::new(&Sgd, &layout, 0..2, vec![1.0, 2.0]);
        let update = &Sgd.begin(STEP);
        params.apply(&[4.0, -8.0], &Change { update, exempt: update, mean: 0.25, weight: 1.0 });
        assert_eq!(params.values(), [0.5, 3.0]);
        assert!(params.state().concat().is_empty());
        let kept = DenseParams::new(&Adam::default(), &layout, 0..2, vec![1.0, 2.0]);
        assert_eq!(kept.state(), [[0.0; 2]; 2]);
    }

    #[test]
    fn groups_that_change_alike_are_one_piece_and_a_part_of_a_vector_has_its_own() {
        let ranges = |range| {
            let pieces = pieces(&layout(), &range).into_iter();
            pieces.map(|piece| (piece.range.start, piece.range.end)).collect::<Vec<_>>()
        };
        assert_eq!(ranges(0..6), [(0, 3), (3, 4), (4, 6)]);
        assert_eq!(ranges(1..5), [(0, 2), (2, 3), (3, 4)]);
        assert_eq!(ranges(5..6), [(0, 1)]);
        assert_eq!(ranges(2..2), []);
    }

    #[test]
    fn decay_spares_exempt_groups_and_statistics_are_no_business_of_the_optimizer() {
        let sums = [0.0, 0.0, 0.0, 0.0, 12.0, 20.0];
        let step = |weight| {
            let mut params = DenseParams::new(&Adam::default(), &layout(), 0..6, vec![1.0; 6]);
            let decayed = Sgd.begin(UpdateStep { decay: 0.5, ..STEP });
            let change = Change { update: &decayed, exempt: &Sgd.begin(STEP), mean: 0.25, weight };
            params.apply(&sums, &change);
            assert_eq!(params.state(), [[0.0; 6]; 2]);
            params.values().to_vec()
        };
        assert_eq!(step(1.0), [0.75, 0.75, 0.75, 1.0, 3.0, 5.0], "the mean replaces the value");
        assert_eq!(step(0.5), [0.75, 0.75, 0.75, 1.0, 2.0, 3.0], "half the way to the mean");
    }

    #[test]
    fn the_norm_of_a_gradient_has_no_statistics_in_it() {
        let params = DenseParams::new(&Sgd, &layout(), 0..6, vec![0.0; 6]);
        let parts: Vec<&[f32]> = params.trainable(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).collect();
        assert_eq!(parts.concat(), [1.0, 2.0, 3.0, 4.0]);
        // Group by group, though neighbours change alike.
        assert_eq!(parts, [&[1.0, 2.0][..], &[3.0], &[4.0]]);
        let cut = DenseParams::new(&Sgd, &layout(), 1..3, vec![0.0; 2]);
        assert_eq!(cut.trainable(&[2.0, 3.0]).collect::<Vec<_>>(), [[2.0], [3.0]]);
    }

    #[test]
    fn weight_decay_leaves_exempt_groups_alone_wherever_a_piece_is_cut() {
        let groups = vec![
            ParamGroup::trainable("a", 2).without_decay(),
            ParamGroup::trainable("b", 3),
            ParamGroup::trainable("c", 2).without_decay(),
            ParamGroup::trainable("d", 1),
        ];
        let layout = ParamLayout::new(groups, Vec::new()).unwrap();
        let whole = [1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5];
        for optimizer in [&Sgd as &dyn Optimizer, &Adam::default()] {
            for (start, end) in (0..=8).flat_map(|end| (0..=end).map(move |start| (start, end))) {
                let mut params = DenseParams::new(optimizer, &layout, start..end, vec![1.0; end - start]);
                let step = UpdateStep { number: 1, rate: 0.5, scale: 1.0, decay: 1.0 };
                let exempt = &optimizer.begin(UpdateStep { decay: 0.0, ..step });
                let change = Change { update: &optimizer.begin(step), exempt, mean: 1.0, weight: 1.0 };
                params.apply(&vec![0.0; end - start], &change);
                let close = params.values().iter().zip(&whole[start..end]).all(|(a, b)| (a - b).abs() < 1e-6);
                assert!(close, "{start}..{end}: {:?}", params.values());
            }
        }
    }

    #[test]
    fn a_parameter_that_decays_becomes_zero_and_never_subnormal() {
        let groups = vec![ParamGroup::trainable("w", 3), ParamGroup::trainable("b", 1).without_decay()];
        let layout = ParamLayout::new(groups, Vec::new()).unwrap();
        let mut dense = DenseParams::new(&Sgd, &layout, 0..4, vec![1.0, -1e-30, f32::NAN, 1e-40]);
        let decayed = Sgd.begin(UpdateStep { decay: 1.0, ..STEP });
        let change = Change { update: &decayed, exempt: &Sgd.begin(STEP), mean: 0.25, weight: 1.0 };
        for _ in 0..200 {
            dense.apply(&[0.0; 4], &change);
            assert!(!dense.values()[..2].iter().any(|value| value.is_subnormal()), "{:?}", dense.values());
        }
        assert_eq!(dense.values()[..2], [0.0, 0.0]);
        assert!(dense.values()[2].is_nan(), "a model that diverged says so");
        assert_eq!(dense.values()[3], 1e-40, "nothing decays there");
    }
}
