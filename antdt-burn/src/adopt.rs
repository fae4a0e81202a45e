//! [`Adopt`]: values in the memory of a device become a tensor of a back end.

use antdt_agent::{DeviceValues, TrainError};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

/// A back end whose tensors can have the values of a device.
pub(crate) trait Adopt: Backend {
    /// Returns the values as a tensor, `[len]`.
    ///
    /// # Errors
    /// If the device fails.
    fn adopt(values: &dyn DeviceValues, device: &Self::Device) -> Result<Tensor<Self, 1>, TrainError>;
}

/// Computes on the host, whatever device has the values.
impl Adopt for burn::backend::Flex {
    fn adopt(values: &dyn DeviceValues, device: &Self::Device) -> Result<Tensor<Self, 1>, TrainError> {
        let mut host = Vec::with_capacity(values.len());
        values.read(&mut host)?;
        let len = host.len();
        Ok(Tensor::from_data(TensorData::new(host, [len]), device))
    }
}

/// burn makes no tensor of memory that another has allocated: its storage takes memory from its own pools only. So the values are copied
/// within the GPU to an empty tensor, of one dimension because burn pads the rows of others.
#[cfg(feature = "cuda")]
impl Adopt for crate::device::Cuda {
    fn adopt(values: &dyn DeviceValues, device: &Self::Device) -> Result<Tensor<Self, 1>, TrainError> {
        let failed = |error: &dyn std::fmt::Display| TrainError::Device(error.to_string());
        let tensor = Tensor::<Self, 1>::empty([values.len()], device);
        let empty = tensor.clone().into_primitive().tensor();
        let memory = empty.client.get_resource(empty.handle.clone()).map_err(|error| failed(&error))?;
        let place = memory.resource();
        let due = size_of::<f32>() * values.len();
        if place.size < due as u64 {
            return Err(failed(&format!("burn gives {} bytes for {due}", place.size)));
        }
        // The memory was another tensor's before, which kernels on burn's stream may still read. That stream has nothing else to do
        // here: the step before ended with its gradients on the host.
        Self::sync(device).map_err(|error| failed(&error))?;
        values.copy_to(place.ptr)?;
        Ok(tensor)
    }
}
