//! The GPUs of this host. A program that is built without feature `cuda` has none, and says so.

use antdt_core::{DeviceClass, InvalidValue};

use crate::job::processor::{Place, Processor};

/// A GPU of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostGpu {
    /// Class of the device, by its name, such as `nvidia-h100-80gb-hbm3`.
    pub class: DeviceClass,
    /// Memory of the GPU, in bytes.
    pub memory_bytes: u64,
}

/// Returns the GPUs of this host; at least one.
///
/// # Errors
/// The reason, in words, why this process can use no GPU.
#[cfg(feature = "cuda")]
pub fn all() -> Result<Vec<HostGpu>, String> {
    let gpus = antdt_gpu::cuda::gpus().map_err(|error| error.to_string())?;
    Ok(gpus
        .into_iter()
        .map(|gpu| HostGpu { class: class(&gpu.name), memory_bytes: gpu.memory_bytes })
        .collect())
}

/// Returns the GPUs of this host.
///
/// # Errors
/// Always: this program is built without feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub fn all() -> Result<Vec<HostGpu>, String> {
    Err("this program is built without feature `cuda`".to_owned())
}

/// Checks that the built-in models can compute on GPUs of this host: their framework compiles its kernels when it first uses
/// them, and ends in a panic where it finds no compiler.
///
/// # Errors
/// What this host lacks, in words, with the remedy.
#[cfg(feature = "cuda")]
pub fn compiler() -> Result<(), String> {
    antdt_gpu::cuda::compiler().map_err(|error| error.to_string())
}

/// Checks that the built-in models can compute on GPUs of this host.
///
/// # Errors
/// Always: this program is built without feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub fn compiler() -> Result<(), String> {
    all().map(drop)
}

/// Returns the number of GPUs of this host; at least 1.
///
/// # Errors
/// As [`all`].
pub fn count() -> Result<u32, String> {
    Ok(u32::try_from(all()?.len()).unwrap_or(u32::MAX))
}

/// Returns how many of a job's workers share one GPU of this host at most, if all of them compute here.
pub fn sharers(processor: Processor, workers: u32) -> u32 {
    match processor {
        // Those of the CPU look for no GPU.
        Processor::Cuda(Some(_)) | Processor::Cpu => workers,
        Processor::Cuda(None) | Processor::Auto => share(workers, count().unwrap_or(1)),
    }
}

/// The most of `workers` that are on one of `gpus`; all if there is none.
const fn share(workers: u32, gpus: u32) -> u32 {
    if gpus == 0 { workers } else { workers.div_ceil(gpus) }
}

/// Chooses the processor on which a worker of this host computes, and looks for GPUs only if the job may use
/// one. Also returns the GPU, if it is one.
///
/// # Errors
/// If the job requires a GPU that this host does not have.
pub fn place(processor: Processor, worker: u32) -> Result<(Place, Option<HostGpu>), InvalidValue> {
    if processor == Processor::Cpu {
        return Ok((Place::Cpu(None), None));
    }
    let mut gpus = all();
    let count = gpus.as_ref().map(|gpus| u32::try_from(gpus.len()).unwrap_or(u32::MAX)).map_err(Clone::clone);
    let place = processor.place(worker, &count)?;
    let gpu = match (&place, &mut gpus) {
        (Place::Gpu(index), Ok(gpus)) => Some(gpus.swap_remove(*index as usize)),
        _ => None,
    };
    Ok((place, gpu))
}

/// The class of a device of this name: in lower case, with `-` for what is neither letter nor digit.
#[cfg(any(test, feature = "cuda"))]
fn class(name: &str) -> DeviceClass {
    let lower = name.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    DeviceClass(words.collect::<Vec<_>>().join("-").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_name_of_the_device_as_one_word() {
        assert_eq!(class("NVIDIA H100 80GB HBM3").to_string(), "nvidia-h100-80gb-hbm3");
        assert_eq!(class(" Tesla V100-SXM2 (32 GB)").to_string(), "tesla-v100-sxm2-32-gb");
    }

    #[test]
    fn workers_share_the_gpu_that_all_are_sent_to_or_all_gpus() {
        assert_eq!(sharers(Processor::Cuda(Some(1)), 5), 5);
        assert_eq!(sharers(Processor::Cpu, 5), 5);
        assert_eq!([(5, 1), (5, 2), (4, 2), (5, 8), (5, 0)].map(|(w, g)| share(w, g)), [5, 3, 2, 1, 5]);
    }

    #[test]
    fn a_worker_computes_on_a_device_of_this_host() {
        assert_eq!(place(Processor::Cpu, 0), Ok((Place::Cpu(None), None)));
        match all() {
            Ok(gpus) => {
                assert_eq!(place(Processor::Auto, 0), Ok((Place::Gpu(0), Some(gpus[0].clone()))));
            }
            Err(why) => {
                assert!(!why.is_empty() && !why.contains('\n'), "{why}");
                assert_eq!(place(Processor::Auto, 0), Ok((Place::Cpu(Some(why.clone())), None)));
                let refused = place(Processor::Cuda(None), 0).unwrap_err().to_string();
                assert_eq!(refused, format!("--device = cuda: must be cpu or auto: {why}"));
                assert_eq!(count(), Err(why));
            }
        }
    }
}
