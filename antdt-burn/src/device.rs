//! [`Device`]: the device that a model computes on.

use antdt_core::InvalidValue;

/// The CUDA back end. Named by its parts: burn's own name for it is another type where some crate asks for burn's feature `fusion`,
/// one whose tensors do not say where they lie.
#[cfg(feature = "cuda")]
pub(crate) type Cuda = burn_cubecl::CubeBackend<burn_cubecl::cubecl::cuda::CudaRuntime, f32, i32, u8>;

/// Device that a model computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// One thread of the CPU.
    #[default]
    Cpu,
    /// The CUDA device with this index.
    #[cfg(feature = "cuda")]
    Cuda(usize),
}

impl Device {
    /// Returns the device that the text names: `cpu`, `cuda` (the first CUDA device) or `cuda:N`. A CUDA
    /// device must exist and be able to compute.
    ///
    /// ```
    /// use antdt_burn::Device;
    /// assert_eq!(Device::pick("cpu")?, Device::Cpu);
    /// # Ok::<(), antdt_core::InvalidValue>(())
    /// ```
    ///
    /// # Errors
    /// If `choice` is none of these, or the device cannot be used; the error says why.
    pub fn pick(choice: &str) -> Result<Self, InvalidValue> {
        let index = match choice.split_once(':') {
            None if choice == "cpu" => return Ok(Self::Cpu),
            None if choice == "cuda" => Some(0),
            Some(("cuda", index)) => index.parse().ok(),
            _ => None,
        };
        let index = index.ok_or_else(|| InvalidValue::new("device", choice, "cpu, cuda or cuda:N"))?;
        cuda(index).map_err(|why| InvalidValue::new("device", choice, format!("cpu: {why}")))
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda(_index: usize) -> Result<Device, String> {
    Err("this program was built without feature cuda".into())
}

/// Looks before it leaps: the CUDA loader panics where the driver is missing, so the driver's device files are asked
/// for first, and a first computation is tried under `catch_unwind`.
#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device, String> {
    use burn::tensor::Tensor;
    use burn_cuda::CudaDevice;

    if !std::path::Path::new("/dev/nvidiactl").exists() {
        return Err("no NVIDIA driver is loaded (/dev/nvidiactl is missing)".into());
    }
    let sum = std::panic::catch_unwind(|| {
        let ones = Tensor::<Cuda, 1>::ones([2], &CudaDevice::new(index));
        ones.sum().try_into_data().ok().and_then(|data| data.as_slice::<f32>().ok().map(|sum| sum[0]))
    });
    match sum {
        Ok(Some(sum)) if (sum - 2.0).abs() < f32::EPSILON => Ok(Device::Cuda(index)),
        _ => Err("CUDA is present but a first computation failed; see the message above".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_can_always_be_picked_and_unknown_devices_are_refused() {
        assert_eq!(Device::pick("cpu"), Ok(Device::Cpu));
        for unknown in ["tpu", "cuda:x", "cuda:", "cpu:0"] {
            let error = Device::pick(unknown).unwrap_err().to_string();
            assert_eq!(error, format!("device = {unknown}: must be cpu, cuda or cuda:N"));
        }
    }

    #[test]
    fn a_cuda_device_that_cannot_be_had_is_refused_with_the_reason() {
        match Device::pick("cuda:0") {
            Ok(device) => assert_ne!(device, Device::Cpu),
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("device = cuda:0: must be cpu: ") && !text.contains('\n'), "{text}");
                let why = if cfg!(feature = "cuda") { "CUDA" } else { "feature cuda" };
                assert!(text.contains(why) || text.contains("no NVIDIA driver"), "{text}");
            }
        }
    }
}
