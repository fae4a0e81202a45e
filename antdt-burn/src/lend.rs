//! [`hand_over`]: a gradient goes to its sink as values in the memory of the device on which burn computed it.

use std::fmt;
use std::ops::Range;

use antdt_agent::{Buffer, DeviceValues, GradientSink, TrainError};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::flat;

/// Returns whether all values are finite, which a device says of its own ones: one number goes to the host.
///
/// # Errors
/// If the device fails.
pub(crate) fn is_finite<B: Backend>(values: &Tensor<B, 1>) -> Result<bool, TrainError> {
    let all = values.clone().is_finite().all().try_into_data();
    let all = all.map_err(|error| TrainError::Device(error.to_string()))?;
    Ok(all.iter::<bool>().all(|all| all))
}

/// Hands the groups of a gradient over, the last one first, as in a backward pass. `gradient` holds all groups one after another,
/// of these lengths, and begins at this address.
///
/// # Errors
/// If the sink refuses a group.
pub(crate) fn hand_over<B: Backend>(
    gradient: &Tensor<B, 1>,
    address: u64,
    lens: impl Iterator<Item = usize>,
    sink: &mut dyn GradientSink,
) -> Result<(), TrainError> {
    let mut begin = 0;
    let places: Vec<Range<usize>> = lens
        .map(|len| {
            begin += len;
            begin - len..begin
        })
        .collect();
    for (group, place) in places.into_iter().enumerate().rev() {
        sink.group(group, Buffer::Device(&Lent { gradient, address, place }))?;
    }
    Ok(())
}

/// A piece of a gradient.
struct Lent<'a, B: Backend> {
    gradient: &'a Tensor<B, 1>,
    /// Address of the gradient in the device's memory.
    address: u64,
    place: Range<usize>,
}

impl<B: Backend> DeviceValues for Lent<'_, B> {
    fn len(&self) -> usize {
        self.place.len()
    }

    fn read(&self, into: &mut Vec<f32>) -> Result<(), TrainError> {
        into.extend(flat::values(self.gradient.clone().slice(self.place.clone()))?);
        Ok(())
    }

    fn copy_to(&self, _: u64) -> Result<(), TrainError> {
        Err(TrainError::Device("burn copies to tensors of its own only; copy from this address".to_owned()))
    }

    fn address(&self) -> Result<u64, TrainError> {
        Ok(self.address + (size_of::<f32>() * self.place.start) as u64)
    }
}

impl<B: Backend> fmt::Debug for Lent<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("address", &self.address).field("place", &self.place).finish()
    }
}

#[cfg(test)]
mod tests {
    use burn_flex::Flex;

    use super::*;

    /// Takes values on a device.
    #[derive(Default)]
    struct Taken(Vec<(usize, u64, Vec<f32>)>);

    impl GradientSink for Taken {
        fn group(&mut self, group: usize, sums: Buffer<'_>) -> Result<(), TrainError> {
            let Buffer::Device(values) = sums else { panic!("group {group} is on the host") };
            let mut read = Vec::new();
            values.read(&mut read)?;
            assert_eq!(read.len(), values.len());
            self.0.push((group, values.address()?, read));
            Ok(())
        }

        fn rows(&mut self, _: Buffer<'_>) -> Result<(), TrainError> {
            Ok(())
        }
    }

    #[test]
    fn groups_lie_one_after_another_and_the_last_one_goes_first() {
        let gradient = Tensor::<Flex, 1>::from_floats([1.0, 2.0, 3.0, 4.0], &Default::default());
        let mut taken = Taken::default();
        hand_over(&gradient, 1000, [1, 3].into_iter(), &mut taken).unwrap();
        assert_eq!(taken.0, [(1, 1004, vec![2.0, 3.0, 4.0]), (0, 1000, vec![1.0])]);
    }

    #[test]
    fn one_value_that_is_not_finite_is_found() {
        for (bad, expected) in
            [(f32::NAN, false), (f32::INFINITY, false), (f32::NEG_INFINITY, false), (f32::MAX, true)]
        {
            let values = Tensor::<Flex, 1>::from_floats([1.0, bad, -0.0], &Default::default());
            assert_eq!(is_finite(&values).unwrap(), expected, "{bad}");
        }
    }
}
