//! Reductions: the operations by which the operands of all ranks are combined.

use std::fmt;

/// A reduction, which combines the operands of all ranks element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum of the operands.
    Sum = 1,
    /// The smallest operand.
    Min = 2,
    /// The largest operand.
    Max = 3,
    /// The product of the operands.
    Prod = 4,
    /// The sum of the operands, divided once by the number of members; floats only. For operands of unequal
    /// weight see [`weighted`](crate::weighted).
    Mean = 5,
}

impl ReduceOp {
    /// All reductions.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Min, Self::Max, Self::Prod, Self::Mean];

    /// Returns the reduction with this number on the wire; `None` if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Sum,
            2 => Self::Min,
            3 => Self::Max,
            4 => Self::Prod,
            5 => Self::Mean,
            _ => return None,
        })
    }

    /// Returns the reduction's number on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
            Self::Mean => "mean",
        })
    }
}
