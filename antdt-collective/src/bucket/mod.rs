//! Gradient buckets: which layers' gradients are reduced together, while the backward pass still computes
//! others.
//!
//! The backward pass computes the last layer's gradient first, so buckets are filled from the last layer to
//! the first. A bucket must be long enough that its latency does not count and short enough that there is
//! something left to overlap it with; the first one is shorter, so that the network starts early. Buckets are
//! sent in the order of the plan, whatever order the gradients arrive in: all members must make the same
//! calls in the same order.
//!
//! Rejected: one call per layer, which pays a latency for each bias; buckets in the order in which they fill,
//! which differs between members; a plan from the order in which gradients arrived in the first step, which a
//! later step need not follow.
//!
//! Source: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", 2020
//! (recalled).

use crate::schedule::Span;

/// Default size of a bucket in bytes: 25 MiB, as in PyTorch (recalled).
pub const BUCKET_BYTES: usize = 25 << 20;

/// Default size of the first bucket in bytes: 1 MiB, as in PyTorch (recalled).
pub const FIRST_BUCKET_BYTES: usize = 1 << 20;

/// Layers whose gradients are reduced together in one all-reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Indices of the layers, the last layer first, each with the span of its gradient in the bucket.
    pub layers: Vec<(usize, Span)>,
    /// Length of the bucket in values.
    pub len: usize,
}

/// The plan that assigns each layer's gradient to a bucket. All members of the group must use the same plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets {
    layer_lens: Vec<usize>,
    buckets: Vec<Bucket>,
    // The bucket of each layer.
    bucket_of: Vec<usize>,
}

impl Buckets {
    /// Assigns layers to buckets, from the last layer to the first. `layer_lens` are the lengths of their
    /// `f32` gradients. The layer that fills a bucket to its size still belongs to it, so the bucket may be
    /// longer by that layer. With a size of 0 bytes each layer has a bucket of its own.
    pub fn plan(layer_lens: &[usize], bucket_bytes: usize, first_bucket_bytes: usize) -> Self {
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut bucket_of = vec![0; layer_lens.len()];
        let mut open = false;
        for (layer, len) in layer_lens.iter().copied().enumerate().rev() {
            if !open {
                buckets.push(Bucket { layers: Vec::new(), len: 0 });
            }
            let index = buckets.len() - 1;
            let bucket = &mut buckets[index];
            bucket.layers.push((layer, Span { start: bucket.len, len }));
            bucket.len += len;
            bucket_of[layer] = index;
            let limit = if index == 0 { first_bucket_bytes } else { bucket_bytes };
            open = bucket.len.saturating_mul(size_of::<f32>()) < limit;
        }
        Self { layer_lens: layer_lens.to_vec(), buckets, bucket_of }
    }

    /// Returns the length of each layer's gradient, in values.
    pub fn layer_lens(&self) -> &[usize] {
        &self.layer_lens
    }

    /// Returns the buckets in the order in which they are reduced.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns the index of the bucket that a layer is in.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn bucket_of(&self, layer: usize) -> usize {
        self.bucket_of[layer]
    }
}

/// Reason why a gradient does not fit the bucket plan. The step goes on without the gradient.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// The plan has no layer of this index.
    #[error("layer {layer} does not exist, the plan has {layers}")]
    Unknown {
        /// Index of the layer that was submitted.
        layer: usize,
        /// Number of layers in the plan.
        layers: usize,
    },
    /// The caller submitted the gradient of a layer twice in one step.
    #[error("layer {layer} came twice in one step; finish the step first")]
    Twice {
        /// Index of the layer.
        layer: usize,
    },
    /// A gradient does not have the planned length.
    #[error("layer {layer} came with {got} values, the plan has {expected}")]
    Length {
        /// Index of the layer.
        layer: usize,
        /// Number of values that the caller submitted.
        got: usize,
        /// Number of values that the plan expects.
        expected: usize,
    },
    /// The step ended before the caller had submitted the gradients of all layers.
    #[error(
        "layers {layers:?} never came; every layer must be handed over in every step, zeros if it has no gradient"
    )]
    Missing {
        /// Indices of the missing layers, ascending.
        layers: Vec<usize>,
    },
}

/// Progress of one step: which layers' gradients have arrived, and which buckets may be reduced now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filling {
    // Whether each layer came.
    came: Vec<bool>,
    // Layers still missing in each bucket.
    missing: Vec<usize>,
    // The bucket that goes out next.
    next: usize,
}

impl Filling {
    /// Returns the state of a step in which no gradient has arrived yet.
    pub fn new(buckets: &Buckets) -> Self {
        let missing = buckets.buckets.iter().map(|bucket| bucket.layers.len()).collect();
        Self { came: vec![false; buckets.layer_lens.len()], missing, next: 0 }
    }

    /// Records the arrival of a layer's gradient of `len` values, and returns the indices of the buckets that
    /// may now be reduced: full ones whose predecessors are all full. `buckets` must be the same plan in
    /// every call.
    ///
    /// # Errors
    /// If the gradient does not fit the plan; nothing is changed then.
    pub fn arrive(
        &mut self,
        buckets: &Buckets,
        layer: usize,
        len: usize,
    ) -> Result<std::ops::Range<usize>, BucketError> {
        let layers = buckets.layer_lens.len();
        let expected = *buckets.layer_lens.get(layer).ok_or(BucketError::Unknown { layer, layers })?;
        if len != expected {
            return Err(BucketError::Length { layer, got: len, expected });
        }
        if std::mem::replace(&mut self.came[layer], true) {
            return Err(BucketError::Twice { layer });
        }
        self.missing[buckets.bucket_of[layer]] -= 1;
        let first = self.next;
        while self.missing.get(self.next) == Some(&0) {
            self.next += 1;
        }
        Ok(first..self.next)
    }

    /// Checks that the gradients of all layers of a bucket and of those before it have arrived, so that the
    /// bucket was returned by [`arrive`](Self::arrive).
    ///
    /// # Errors
    /// If gradients are missing; the error names their layers.
    pub fn check(&self, buckets: &Buckets, bucket: usize) -> Result<(), BucketError> {
        self.missing(|layer| buckets.bucket_of(layer) <= bucket)
    }

    /// Returns whether a gradient has arrived whose bucket may not be reduced yet.
    pub fn has_begun(&self, buckets: &Buckets) -> bool {
        (0..self.came.len()).any(|layer| self.came[layer] && buckets.bucket_of(layer) >= self.next)
    }

    /// Checks that the gradients of all layers have arrived.
    ///
    /// # Errors
    /// If gradients are missing; the error names their layers.
    pub fn finish(&self) -> Result<(), BucketError> {
        self.missing(|_| true)
    }

    fn missing(&self, counts: impl Fn(usize) -> bool) -> Result<(), BucketError> {
        let layers: Vec<usize> =
            (0..self.came.len()).filter(|layer| !self.came[*layer] && counts(*layer)).collect();
        if layers.is_empty() { Ok(()) } else { Err(BucketError::Missing { layers }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layers(plan: &Buckets) -> Vec<Vec<usize>> {
        plan.buckets().iter().map(|bucket| bucket.layers.iter().map(|(layer, _)| *layer).collect()).collect()
    }

    #[test]
    fn buckets_are_filled_from_the_last_layer_and_closed_by_the_one_that_fills_them() {
        let plan = |bucket_bytes, first| layers(&Buckets::plan(&[10, 1, 4, 5, 2], bucket_bytes, first));
        assert_eq!(plan(40, 8), [vec![4], vec![3, 2, 1], vec![0]]);
        assert_eq!(plan(36, 9), [vec![4, 3], vec![2, 1, 0]]);
        assert_eq!(plan(0, 0), [[4], [3], [2], [1], [0]]);
        assert_eq!(plan(1000, 1000), [[4, 3, 2, 1, 0]]);
        assert!(Buckets::plan(&[], 10, 10).buckets().is_empty());
    }

    #[test]
    fn a_gradient_that_does_not_fit_changes_nothing() {
        let plan = Buckets::plan(&[3, 4], 100, 100);
        let mut filling = Filling::new(&plan);
        assert_eq!(filling.arrive(&plan, 2, 4), Err(BucketError::Unknown { layer: 2, layers: 2 }));
        assert_eq!(filling.arrive(&plan, 1, 5), Err(BucketError::Length { layer: 1, got: 5, expected: 4 }));
        assert_eq!(filling.arrive(&plan, 1, 4), Ok(0..0));
        assert_eq!(filling.arrive(&plan, 1, 4), Err(BucketError::Twice { layer: 1 }));
        assert_eq!(filling.finish(), Err(BucketError::Missing { layers: vec![0] }));
        assert!(filling.has_begun(&plan));
        assert_eq!(filling.arrive(&plan, 0, 3), Ok(0..1));
        assert!(!filling.has_begun(&plan));
        assert_eq!(filling.finish(), Ok(()));
    }

    proptest! {
        #[test]
        fn every_layer_lies_in_one_bucket_and_buckets_go_out_in_order_once_in_any_order_of_arrival(
            lens in prop::collection::vec(0_usize..20, 0..12),
            bucket_bytes in 0_usize..150,
            first in 0_usize..80,
            keys in prop::collection::vec(any::<u32>(), 12),
        ) {
            let plan = Buckets::plan(&lens, bucket_bytes, first);
            let order: Vec<usize> = layers(&plan).concat();
            prop_assert_eq!(order, (0..lens.len()).rev().collect::<Vec<_>>());
            for (index, bucket) in plan.buckets().iter().enumerate() {
                let mut start = 0;
                for (layer, span) in &bucket.layers {
                    prop_assert_eq!((plan.bucket_of(*layer), *span), (index, Span { start, len: lens[*layer] }));
                    start += span.len;
                }
                prop_assert_eq!(start, bucket.len);
            }
            let mut arrivals: Vec<usize> = (0..lens.len()).collect();
            arrivals.sort_by_key(|layer| keys[*layer]);
            let (mut filling, mut went) = (Filling::new(&plan), Vec::new());
            for (count, layer) in arrivals.iter().enumerate() {
                prop_assert!(filling.finish().is_err());
                for bucket in 0..plan.buckets().len() {
                    prop_assert_eq!(filling.check(&plan, bucket).is_ok(), went.contains(&bucket));
                }
                let out = filling.arrive(&plan, *layer, lens[*layer]).unwrap();
                for bucket in out {
                    let layers = &plan.buckets()[bucket].layers;
                    prop_assert!(layers.iter().all(|(layer, _)| arrivals[..=count].contains(layer)));
                    went.push(bucket);
                }
            }
            prop_assert_eq!(went, (0..plan.buckets().len()).collect::<Vec<_>>());
            prop_assert_eq!(filling.finish(), Ok(()));
        }
    }
}
