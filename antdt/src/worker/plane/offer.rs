//! [`Offer`]: what a worker says of the model that it has, before it gives it to one that lacks it.

use std::hash::Hasher as _;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::SharedModel;

/// The models of a worker that others may take from it, without the models themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// Of every byte of the models.
    digest: u64,
    /// Length of each model's [outline](SharedModel::outline).
    pub(super) outlines: Vec<u64>,
}

impl Offer {
    /// Of these models, whose outlines are at hand.
    pub(super) fn of(models: &[Box<dyn SharedModel + '_>], outlines: &[Vec<u8>]) -> Self {
        let mut digest = XxHash3_64::new();
        for (model, outline) in models.iter().zip(outlines) {
            digest.write(outline);
            model.arrays().into_iter().for_each(|array| digest.write(array));
        }
        Self { digest: digest.finish(), outlines: outlines.iter().map(|it| it.len() as u64).collect() }
    }

    /// For the other members of a group. Equal offers have equal bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("an offer has a form as bytes")
    }

    /// What a member said, unless it said nothing.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use antdt_core::{ParamGroup, ParamLayout, Seed};
    use antdt_model::optimizer::Momentum;
    use antdt_model::{Replica, UpdateRule};

    use super::*;

    #[test]
    fn models_that_differ_in_one_bit_make_offers_that_differ() {
        let layout = ParamLayout::new(vec![ParamGroup::trainable("w", 3)], Vec::new()).unwrap();
        let rule = UpdateRule::new(Box::new(Momentum::nesterov(0.9)));
        let mut model = Replica::new(&layout, &rule, Seed(1), vec![1.0, 2.0, 3.0]).unwrap();
        let of = |model: &Replica| Offer::of(&[Box::new(Cow::Borrowed(model))], &[model.outline()]);
        let before = of(&model);
        assert_eq!(of(&model), before);
        assert_eq!(Offer::read(&before.to_bytes()), Some(before.clone()));
        assert_eq!(Offer::read(&[]), None, "a worker without a model");
        model.arrays_mut()[0][11] ^= 1;
        assert_ne!(of(&model), before);
    }
}
