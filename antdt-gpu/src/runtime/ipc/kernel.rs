//! The kernels by name, and how they are started.

use antdt_collective::element::ElementType;
use antdt_collective::op::ReduceOp;

use crate::runtime::cuda::kernels::Compiled;
use crate::runtime::cuda::nvrtc::Source;

/// The text of all kernels.
pub(super) const TEXT: &str = include_str!("kernels.cu");

/// The most ranks whose memory a kernel reads (`RANKS_MAX`).
pub(super) const RANKS_MAX: usize = 64;

/// Bytes that a thread reads of an operand at once.
pub(super) const VECTOR: usize = 16;

/// A kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kernel {
    /// Of elements that all count alike.
    Reduce(ReduceOp, ElementType),
    /// The mean of floats of unequal weight.
    WeightedMean(ElementType),
}

impl Kernel {
    /// All of them: integers have no mean.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let element = |code| ElementType::from_code(code).expect("a type");
        let pairs = (1..=7).flat_map(|code| ReduceOp::ALL.map(|op| (op, element(code))));
        let whole = |element| matches!(element, ElementType::I32 | ElementType::I64 | ElementType::U8);
        let reductions = pairs
            .filter(|(op, element)| *op != ReduceOp::Mean || !whole(*element))
            .map(|(op, element)| Self::Reduce(op, element));
        let floats = [ElementType::F32, ElementType::F64, ElementType::F16, ElementType::Bf16];
        reductions.chain(floats.map(Self::WeightedMean)).collect()
    }

    /// The type of the elements.
    pub(super) const fn element(self) -> ElementType {
        match self {
            Self::Reduce(_, element) | Self::WeightedMean(element) => element,
        }
    }

    /// Name of its function.
    pub(super) fn name(self) -> String {
        match self {
            Self::Reduce(op, element) => format!("{op}_{element}"),
            Self::WeightedMean(element) => format!("weighted_mean_{element}"),
        }
    }

    /// The options of the compiler that choose it.
    fn options(self) -> Vec<String> {
        let of_type =
            |what, element: ElementType| format!("-D{what}_TYPE={}", element.to_string().to_uppercase());
        let (op, element) = match self {
            Self::Reduce(op, element) => (op, element),
            Self::WeightedMean(element) => {
                return vec![format!("-DWEIGHTED_NAME={}", self.name()), of_type("WEIGHTED", element)];
            }
        };
        let whole = matches!(element, ElementType::I32 | ElementType::I64 | ElementType::U8);
        let op = match op {
            ReduceOp::Sum if whole => "WrappingSum",
            ReduceOp::Prod if whole => "WrappingProd",
            ReduceOp::Sum => "Sum",
            ReduceOp::Prod => "Prod",
            ReduceOp::Min => "Min",
            ReduceOp::Max => "Max",
            ReduceOp::Mean => "Mean",
        };
        vec![
            format!("-DREDUCTION_NAME={}", self.name()),
            of_type("REDUCTION", element),
            format!("-DREDUCTION_OP={op}"),
        ]
    }
}

impl Compiled for Kernel {
    fn source(self) -> Source {
        Source { file: c"kernels.cu", text: TEXT, name: self.name(), options: self.options() }
    }
}

/// Arguments of a kernel: `Places` in its text.
#[repr(C)]
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) from: [u64; RANKS_MAX],
    pub(super) into: [u64; RANKS_MAX],
    pub(super) weights: [f64; RANKS_MAX],
}

/// What a kernel is to do: elements `start..start + len` of all operands, in order of rank, into the same place of all
/// targets. Operands and targets are addresses on the GPU.
#[derive(Debug, Clone)]
pub(super) struct Work<'a> {
    pub(super) kernel: Kernel,
    pub(super) from: &'a [u64],
    pub(super) into: &'a [u64],
    /// Of the ranks, for a weighted mean, and their sum.
    pub(super) weights: &'a [f64],
    pub(super) total: f64,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Work<'_> {
    /// Where a kernel reads and writes; at most [`RANKS_MAX`] ranks.
    pub(super) fn places(&self) -> Places {
        let mut places = Places { from: [0; RANKS_MAX], into: [0; RANKS_MAX], weights: [0.0; RANKS_MAX] };
        places.from[..self.from.len()].copy_from_slice(self.from);
        places.into[..self.into.len()].copy_from_slice(self.into);
        places.weights[..self.weights.len()].copy_from_slice(self.weights);
        places
    }

    /// Vectors that the range is cut into, from its start on; none if it begins within one somewhere.
    pub(super) fn vectors(&self, element_bytes: usize) -> usize {
        let start = (self.start * element_bytes) as u64;
        let aligned = |place: &u64| (place + start).is_multiple_of(VECTOR as u64);
        let all = self.from.iter().chain(self.into).all(aligned);
        // The kernel counts vectors from a start that is a multiple of them.
        if all && start.is_multiple_of(VECTOR as u64) { self.len * element_bytes / VECTOR } else { 0 }
    }
}
