//! The device that a model computes on.

use antdt_core::InvalidValue;

/// Device that a model computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// One thread of the CPU.
    #[default]
    Cpu,
    /// The first CUDA device.
    #[cfg(feature = "cuda")]
    Cuda,
}

impl Device {
    /// Picks the device for `cpu`, `cuda`, or `auto` (CUDA if available). If CUDA was asked for and is not
    /// available, it picks the CPU, and the second value is a message for the user that says why.
    ///
    /// ```
    /// use antdt_burn::Device;
    /// assert_eq!(Device::pick("cpu")?, (Device::Cpu, None));
    /// # Ok::<(), antdt_core::InvalidValue>(())
    /// ```
    ///
    /// # Errors
    /// If `choice` is none of the three.
    pub fn pick(choice: &str) -> Result<(Self, Option<String>), InvalidValue> {
        match (choice, cuda()) {
            ("cpu", _) => Ok((Self::Cpu, None)),
            ("cuda" | "auto", Ok(device)) => Ok((device, None)),
            ("cuda", Err(why)) => Ok((Self::Cpu, Some(format!("computing on the CPU: {why}")))),
            ("auto", Err(_)) => Ok((Self::Cpu, None)),
            _ => Err(InvalidValue::new("device", choice, "cpu, cuda or auto")),
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Device, String> {
    Err("this program was built without feature cuda".into())
}

/// Looks before it leaps: the CUDA loader panics where the driver is missing, so the driver's device files are asked
/// for first, and a first computation is tried under `catch_unwind`.
#[cfg(feature = "cuda")]
fn cuda() -> Result<Device, String> {
    use burn::tensor::Tensor;

    if !std::path::Path::new("/dev/nvidiactl").exists() {
        return Err("no NVIDIA driver is loaded (/dev/nvidiactl is missing)".into());
    }
    let sum = std::panic::catch_unwind(|| {
        let ones = Tensor::<burn::backend::Cuda, 1>::ones([2], &Default::default());
        ones.sum().try_into_data().ok().and_then(|data| data.as_slice::<f32>().ok().map(|sum| sum[0]))
    });
    match sum {
        Ok(Some(sum)) if (sum - 2.0).abs() < f32::EPSILON => Ok(Device::Cuda),
        _ => Err("CUDA is present but a first computation failed; see the message above".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_can_always_be_picked_and_unknown_devices_are_refused() {
        assert_eq!(Device::pick("cpu"), Ok((Device::Cpu, None)));
        assert!(Device::pick("tpu").unwrap_err().to_string().contains("cpu, cuda or auto"));
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_the_feature_cuda_falls_back_to_the_cpu_with_a_reason() {
        let (device, why) = Device::pick("cuda").unwrap();
        assert_eq!(device, Device::Cpu);
        assert!(why.unwrap().contains("feature cuda"));
        assert_eq!(Device::pick("auto"), Ok((Device::Cpu, None)));
    }
}
