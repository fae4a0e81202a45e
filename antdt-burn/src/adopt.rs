//! [`Adopt`]: values in the memory of a device become a tensor of a back end, and a tensor says where its own lie.

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

    /// Whether its tensors lie in the memory of a device, where others can read them.
    const LENDS: bool;

    /// Returns the address of the first value of a tensor, once the device has computed it. The values lie there one after
    /// another as long as the tensor lives. `None` if the back end [lends](Self::LENDS) none.
    ///
    /// # Errors
    /// If the device fails.
    fn address(tensor: &Tensor<Self, 1>, device: &Self::Device) -> Result<Option<u64>, TrainError>;
}

/// Computes on the host, whatever device has the values.
impl Adopt for burn_flex::Flex {
    fn adopt(values: &dyn DeviceValues, device: &Self::Device) -> Result<Tensor<Self, 1>, TrainError> {
        let mut host = Vec::with_capacity(values.len());
        values.read(&mut host)?;
        let len = host.len();
        Ok(Tensor::from_data(TensorData::new(host, [len]), device))
    }

    const LENDS: bool = false;

    fn address(_: &Tensor<Self, 1>, _: &Self::Device) -> Result<Option<u64>, TrainError> {
        Ok(None)
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
        // here: the step before ended with a wait for its gradients.
        Self::sync(device).map_err(|error| failed(&error))?;
        values.copy_to(place.ptr)?;
        Ok(tensor)
    }

    const LENDS: bool = true;

    fn address(tensor: &Tensor<Self, 1>, device: &Self::Device) -> Result<Option<u64>, TrainError> {
        let failed = |error: &dyn std::fmt::Display| TrainError::Device(error.to_string());
        let computed = tensor.clone().into_primitive().tensor();
        if !computed.is_contiguous() {
            return Err(failed(&"burn gives values with gaps between them"));
        }
        // The copier does so on a stream of its own.
        Self::sync(device).map_err(|error| failed(&error))?;
        let memory = computed.client.get_resource(computed.handle.clone()).map_err(|error| failed(&error))?;
        let place = memory.resource();
        let due = size_of::<f32>() * tensor.dims()[0];
        if place.size < due as u64 {
            return Err(failed(&format!("burn has {} bytes for {due}", place.size)));
        }
        Ok(Some(place.ptr))
    }
}
