//! Element types that collectives can reduce: seven number types.

use std::fmt;

pub use half::{bf16, f16};

// Buffers travel as their own bytes; both ends of the wire are little-endian.
const _: () =
    assert!(cfg!(target_endian = "little"), "the wire format is little-endian, as the host must be");

/// Type of a buffer's elements, as a number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ElementType {
    /// 32-bit float.
    F32 = 1,
    /// 64-bit float.
    F64 = 2,
    /// 32-bit integer.
    I32 = 3,
    /// 64-bit integer.
    I64 = 4,
    /// 8-bit unsigned integer.
    U8 = 5,
    /// IEEE half float.
    F16 = 6,
    /// Brain float: the upper half of an `f32`.
    Bf16 = 7,
}

impl ElementType {
    /// Returns the type with this number on the wire; `None` if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::F32,
            2 => Self::F64,
            3 => Self::I32,
            4 => Self::I64,
            5 => Self::U8,
            6 => Self::F16,
            7 => Self::Bf16,
            _ => return None,
        })
    }

    /// Returns the type's number on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A number that collectives reduce. Sealed: the wire format knows each type by its number.
///
/// Integers wrap around. A NaN among the operands of a float makes every result of it NaN, minimum and
/// maximum included, so that it reaches all members alike. Half types are widened to `f32`, combined, and
/// rounded once per combination, ties to even. A NaN result of a half type always has the same bits, on every
/// processor.
pub trait Element: sealed::Sealed + bytemuck::Pod + Default + PartialEq + fmt::Debug + Send + Sync {
    /// Type of the element at run time.
    const TYPE: ElementType;
    /// Returns `self + other`.
    #[must_use]
    fn sum(self, other: Self) -> Self;
    /// Returns the smaller operand.
    #[must_use]
    fn least(self, other: Self) -> Self;
    /// Returns the larger operand.
    #[must_use]
    fn most(self, other: Self) -> Self;
    /// Returns `self * other`.
    #[must_use]
    fn product(self, other: Self) -> Self;
    /// Whether means can be computed: `true` for floats, `false` for integers.
    const DIVIDES: bool;
    /// Returns `self / count`, rounded once; an integer is returned unchanged.
    #[must_use]
    fn divided(self, count: u32) -> Self;
}

macro_rules! float {
    ($type:ty, $tag:ident) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: ElementType = ElementType::$tag;
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                // `f32::min` would lose a NaN.
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn most(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }
            const DIVIDES: bool = true;
            #[inline(always)]
            fn divided(self, count: u32) -> Self {
                // A count of members is far below 2^24.
                #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "exact")]
                let count = count as Self;
                self / count
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $tag:ident) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: ElementType = ElementType::$tag;
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn most(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            const DIVIDES: bool = false;
            #[inline(always)]
            fn divided(self, _count: u32) -> Self {
                self
            }
        }
    };
}

macro_rules! half_float {
    ($type:ident, $tag:ident) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: ElementType = ElementType::$tag;
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                $type::narrow($type::widen(self) + $type::widen(other))
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                $type::narrow($type::widen(self).least($type::widen(other)))
            }
            #[inline(always)]
            fn most(self, other: Self) -> Self {
                $type::narrow($type::widen(self).most($type::widen(other)))
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                $type::narrow($type::widen(self) * $type::widen(other))
            }
            const DIVIDES: bool = true;
            #[inline(always)]
            fn divided(self, count: u32) -> Self {
                #[allow(clippy::cast_precision_loss, reason = "a count of members is far below 2^24")]
                let count = count as f32;
                $type::narrow($type::widen(self) / count)
            }
        }
    };
}

// How a half type becomes an `f32` and back.
pub(crate) trait Half: Copy {
    fn widen(self) -> f32;
    fn narrow(wide: f32) -> Self;
}

impl Half for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        if wide.is_nan() { Self::NAN } else { Self::from_f32(wide) }
    }
}

// Without a branch, so that the compiler makes vectors of it.
impl Half for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        // Half a unit of what stays, less one where what stays is even: ties round to even.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        #[allow(clippy::cast_possible_truncation, reason = "16 bits are left")]
        let rounded = Self::from_bits(rounded as u16);
        if wide.is_nan() { Self::NAN } else { rounded }
    }
}

float!(f32, F32);
float!(f64, F64);
integer!(i32, I32);
integer!(i64, I64);
integer!(u8, U8);
half_float!(f16, F16);
half_float!(bf16, Bf16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_reads_back_from_its_code() {
        for code in 0..=u8::MAX {
            if let Some(found) = ElementType::from_code(code) {
                assert_eq!(found.code(), code);
            }
        }
        let codes = [f32::TYPE, f64::TYPE, i32::TYPE, i64::TYPE, u8::TYPE, f16::TYPE, bf16::TYPE]
            .map(ElementType::code);
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_nan_survives_minimum_and_maximum_on_either_side() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(a.least(b).is_nan() && a.most(b).is_nan());
        }
        assert!(f16::NAN.least(f16::ONE).is_nan() && bf16::ONE.most(bf16::NAN).is_nan());
    }

    #[test]
    fn half_types_widen_and_narrow_as_their_definition_says() {
        // Every value, and the wide values at, just below and just above the middle between neighbours.
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            if b.is_nan() {
                assert!(Half::widen(b).is_nan());
            } else {
                assert_eq!(Half::widen(b).to_bits(), b.to_f32_const().to_bits());
                for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                    let wide = f32::from_bits(u32::from(bits) << 16 | low);
                    let expected = if wide.is_nan() { bf16::NAN } else { bf16::from_f32_const(wide) };
                    assert_eq!(<bf16 as Half>::narrow(wide).to_bits(), expected.to_bits(), "{wide}");
                }
            }
            if h.is_nan() {
                assert!(Half::widen(h).is_nan());
            } else {
                let wide = h.to_f32_const();
                assert_eq!(Half::widen(h).to_bits(), wide.to_bits());
                for low in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff] {
                    let wide = f32::from_bits(wide.to_bits() | low);
                    let expected = if wide.is_nan() { f16::NAN } else { f16::from_f32_const(wide) };
                    assert_eq!(<f16 as Half>::narrow(wide).to_bits(), expected.to_bits(), "{wide}");
                }
            }
        }
        assert_eq!(<f16 as Half>::narrow(-f32::NAN).to_bits(), f16::NAN.to_bits());
        assert_eq!(<bf16 as Half>::narrow(-f32::NAN).to_bits(), bf16::NAN.to_bits());
    }

    #[test]
    fn integers_wrap_and_do_not_panic() {
        assert_eq!(i32::MAX.sum(1), i32::MIN);
        assert_eq!(255_u8.product(2), 254);
    }
}
