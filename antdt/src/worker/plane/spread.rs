//! [`Spread`]: at which averages it is measured how far models are apart.

/// Where models mix, all are averaged with all now and then only, and then a few times in a row at the end of the data. What is of
/// interest is how far they were apart before the first of these. See the [module](self).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spread {
    /// Averages with some of the others were made, ever and of new samples since the last one of all.
    mixed: bool,
    mixed_since: bool,
}

impl Spread {
    /// An average is made, with all workers or some of them, of this many new samples. Returns whether it is measured.
    pub(super) const fn averages(&mut self, of_all: bool, samples: u64) -> bool {
        if !of_all {
            self.mixed = true;
            // Models that have not trained since they were all made equal are equal still.
            self.mixed_since |= samples > 0;
            return false;
        }
        let measured = if self.mixed { self.mixed_since } else { samples > 0 };
        self.mixed_since = false;
        measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_average_of_all_after_those_of_a_few_is_measured() {
        let mut spread = Spread::default();
        let averages = [(false, 5), (true, 0), (true, 7), (false, 5), (false, 5), (true, 3), (true, 0)];
        let measured = averages.map(|(of_all, samples)| spread.averages(of_all, samples));
        assert_eq!(measured, [false, true, false, false, false, true, false]);
    }

    #[test]
    fn averages_of_a_few_at_the_end_of_the_data_do_not_hide_how_far_models_were_apart() {
        let mut spread = Spread::default();
        let averages = [(false, 5), (true, 5), (false, 0), (true, 0)];
        assert_eq!(
            averages.map(|(of_all, samples)| spread.averages(of_all, samples)),
            [false, true, false, false]
        );
    }

    #[test]
    fn where_every_average_is_of_all_each_one_with_samples_is_measured() {
        let mut spread = Spread::default();
        assert_eq!([5, 0, 3].map(|samples| spread.averages(true, samples)), [true, false, true]);
    }
}
