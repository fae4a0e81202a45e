//! What a trainer is promised: every sample is part of the model exactly once.

use std::collections::BTreeMap;

/// How often each sample is part of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Oracle {
    applied: BTreeMap<u64, u32>,
}

impl Oracle {
    /// Records that these samples, by their index in the data set, became part of the model once more.
    pub fn apply(&mut self, samples: impl IntoIterator<Item = u64>) {
        for sample in samples {
            *self.applied.entry(sample).or_default() += 1;
        }
    }

    /// Checks that each of the samples `0..samples` is in it `epochs` times.
    ///
    /// # Panics
    /// Names the first samples that are not.
    pub fn assert_exact(&self, samples: u64, epochs: u32) {
        let wrong: Vec<(u64, u32)> = (0..samples)
            .map(|sample| (sample, self.applied.get(&sample).copied().unwrap_or(0)))
            .filter(|(_, count)| *count != epochs)
            .take(10)
            .collect();
        assert!(wrong.is_empty(), "(sample, times in the model instead of {epochs}): {wrong:?}");
        let foreign = self.applied.keys().find(|sample| **sample >= samples);
        assert!(foreign.is_none(), "{foreign:?} is no sample of the data set");
    }
}
