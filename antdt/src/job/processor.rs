//! [`Processor`]: the CPU or GPU on which a worker computes.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;

/// Processor that workers compute on. Text form: `cpu`, `cuda`, `cuda:1` or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Processor {
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU with this index; without an index, the GPUs of the host are assigned to its workers in turn.
    Cuda(Option<u32>),
    /// The GPUs of the host, assigned to its workers in turn, or the CPU if there is none.
    Auto,
}

/// Processor on which one worker computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The CPU. The text says why no GPU is used, if the worker would have used one.
    Cpu(Option<String>),
    /// The GPU with this index.
    Gpu(u32),
}

impl Processor {
    /// The flag that says it.
    const FLAG: &str = "--device";

    /// Texts that it reads.
    pub(super) const FORM: &str = "cpu, cuda, cuda:N or auto";

    /// Chooses the processor for the worker with this index. `gpus` is the number of GPUs of its host, or the
    /// reason why it has none.
    ///
    /// ```
    /// use antdt::job::processor::{Place, Processor};
    /// assert_eq!(Processor::Cuda(None).place(5, &Ok(4))?, Place::Gpu(1));
    /// assert!(Processor::Cuda(Some(4)).place(0, &Ok(4)).is_err());
    /// # Ok::<(), antdt_core::InvalidValue>(())
    /// ```
    ///
    /// # Errors
    /// If the job requires a GPU that the host does not have.
    pub fn place(self, worker: u32, gpus: &Result<u32, String>) -> Result<Place, InvalidValue> {
        let refused = |expected: String| Err(InvalidValue::new(Self::FLAG, self, expected));
        match (self, gpus) {
            (Self::Cpu, _) => Ok(Place::Cpu(None)),
            (Self::Auto, Ok(0)) => Ok(Place::Cpu(Some("this host has no GPU".to_owned()))),
            (Self::Auto, Err(why)) => Ok(Place::Cpu(Some(why.clone()))),
            (Self::Cuda(_), Ok(0)) => refused("cpu or auto: this host has no GPU".to_owned()),
            (Self::Cuda(_), Err(why)) => refused(format!("cpu or auto: {why}")),
            (Self::Cuda(Some(index)), Ok(there)) if index >= *there => {
                refused(format!("cuda:N with N from 0 to {}: this host has {there} GPUs", there - 1))
            }
            (Self::Cuda(Some(index)), Ok(_)) => Ok(Place::Gpu(index)),
            (Self::Cuda(None) | Self::Auto, Ok(there)) => Ok(Place::Gpu(worker % there)),
        }
    }
}

impl From<&Place> for Processor {
    fn from(place: &Place) -> Self {
        match place {
            Place::Cpu(_) => Self::Cpu,
            Place::Gpu(index) => Self::Cuda(Some(*index)),
        }
    }
}

impl FromStr for Processor {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused = || InvalidValue::new(Self::FLAG, format!("`{text}`"), Self::FORM);
        match text.split_once(':') {
            None => match text {
                "cpu" => Ok(Self::Cpu),
                "cuda" => Ok(Self::Cuda(None)),
                "auto" => Ok(Self::Auto),
                _ => Err(refused()),
            },
            Some(("cuda", index)) => {
                index.parse().map(|index| Self::Cuda(Some(index))).map_err(|_| refused())
            }
            Some(_) => Err(refused()),
        }
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "the CUDA driver is not on this host";

    fn place(text: &str, worker: u32, gpus: Result<u32, &str>) -> Result<Place, String> {
        let processor: Processor = text.parse().unwrap();
        assert_eq!(processor.to_string(), text);
        processor.place(worker, &gpus.map_err(str::to_owned)).map_err(|error| error.to_string())
    }

    #[test]
    fn workers_take_the_gpus_of_their_host_in_turn_or_the_one_that_is_named() {
        for text in ["cuda", "auto"] {
            assert_eq!(
                [0, 1, 2].map(|worker| place(text, worker, Ok(2))),
                [0, 1, 0].map(|at| Ok(Place::Gpu(at)))
            );
        }
        assert_eq!([0, 1].map(|worker| place("cuda:1", worker, Ok(2))), [1, 1].map(|at| Ok(Place::Gpu(at))));
        assert_eq!(place("cpu", 0, Ok(2)), Ok(Place::Cpu(None)));
    }

    #[test]
    fn without_a_gpu_auto_says_why_it_takes_the_cpu_and_cuda_is_refused() {
        assert_eq!(place("auto", 0, Err(NONE)), Ok(Place::Cpu(Some(NONE.to_owned()))));
        assert_eq!(place("auto", 0, Ok(0)), Ok(Place::Cpu(Some("this host has no GPU".to_owned()))));
        assert_eq!(place("cpu", 0, Err(NONE)), Ok(Place::Cpu(None)));
        let refused = |text, gpus| place(text, 0, gpus).unwrap_err();
        assert_eq!(refused("cuda", Err(NONE)), format!("--device = cuda: must be cpu or auto: {NONE}"));
        assert_eq!(refused("cuda:0", Ok(0)), "--device = cuda:0: must be cpu or auto: this host has no GPU");
        assert_eq!(
            refused("cuda:2", Ok(2)),
            "--device = cuda:2: must be cuda:N with N from 0 to 1: this host has 2 GPUs"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["gpu", "cuda:", "cuda:x", "cuda:-1", "rocm:0", ""] {
            let error = text.parse::<Processor>().unwrap_err().to_string();
            assert_eq!(error, format!("--device = `{text}`: must be cpu, cuda, cuda:N or auto"));
        }
    }
}
