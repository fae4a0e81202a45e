//! Slices whose element type is known at run time, for object-safe communicators.

use crate::element::{Element, ElementType};

/// A slice of elements as bytes, together with their element type, for calls that take elements of any type.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    element: ElementType,
    // Aligned for the type: they come from a slice of it.
    bytes: &'a [u8],
}

/// A mutable slice of elements as bytes, together with their element type, for calls that take elements of
/// any type.
#[derive(Debug)]
pub struct ElementsMut<'a> {
    element: ElementType,
    // As above.
    bytes: &'a mut [u8],
}

impl<'a> Elements<'a> {
    /// Wraps a slice of typed elements.
    pub fn of<E: Element>(slice: &'a [E]) -> Self {
        Self { element: E::TYPE, bytes: bytemuck::cast_slice(slice) }
    }

    /// Returns the type of the elements.
    pub const fn element(self) -> ElementType {
        self.element
    }

    /// Returns the bytes of the elements.
    pub const fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the typed slice.
    ///
    /// # Panics
    /// If the elements are of another type.
    pub fn slice<E: Element>(self) -> &'a [E] {
        assert_eq!(self.element, E::TYPE, "the type of these elements");
        bytemuck::cast_slice(self.bytes)
    }
}

impl<'a> ElementsMut<'a> {
    /// Wraps a mutable slice of typed elements.
    pub fn of<E: Element>(slice: &'a mut [E]) -> Self {
        Self { element: E::TYPE, bytes: bytemuck::cast_slice_mut(slice) }
    }

    /// Returns the type of the elements.
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the bytes of the elements.
    pub const fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Returns the typed slice.
    ///
    /// # Panics
    /// If the elements are of another type.
    pub fn slice<E: Element>(self) -> &'a mut [E] {
        assert_eq!(self.element, E::TYPE, "the type of these elements");
        bytemuck::cast_slice_mut(self.bytes)
    }
}

/// Evaluates an expression with `$E` as the element type that `$element`, an [`ElementType`], names.
#[macro_export]
macro_rules! with_type {
    ($element:expr, $E:ident => $with:expr) => {{
        use $crate::element::ElementType;
        macro_rules! with {
            ($type:ty) => {{
                type $E = $type;
                $with
            }};
        }
        match $element {
            ElementType::F32 => with!(f32),
            ElementType::F64 => with!(f64),
            ElementType::I32 => with!(i32),
            ElementType::I64 => with!(i64),
            ElementType::U8 => with!(u8),
            ElementType::F16 => with!($crate::element::f16),
            ElementType::Bf16 => with!($crate::element::bf16),
        }
    }};
}

#[doc(inline)]
pub use with_type;

/// Evaluates an expression with `$E` as the float that `$element` names, and another one for what is no float.
#[macro_export]
macro_rules! with_float {
    ($element:expr, $E:ident => $with:expr, else => $without:expr) => {{
        use $crate::element::ElementType;
        macro_rules! with {
            ($type:ty) => {{
                type $E = $type;
                $with
            }};
        }
        match $element {
            ElementType::F32 => with!(f32),
            ElementType::F64 => with!(f64),
            ElementType::F16 => with!($crate::element::f16),
            ElementType::Bf16 => with!($crate::element::bf16),
            ElementType::I32 | ElementType::I64 | ElementType::U8 => $without,
        }
    }};
}

#[doc(inline)]
pub use with_float;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_comes_back_unchanged() {
        let mut values = [1.5_f64, -2.0];
        assert_eq!(Elements::of(&values).slice::<f64>(), [1.5, -2.0]);
        assert_eq!(Elements::of(&values).bytes().len(), 16);
        let mut elements = ElementsMut::of(&mut values);
        assert_eq!((elements.element(), elements.bytes().len()), (ElementType::F64, 16));
        elements.slice::<f64>()[0] = 3.0;
        assert_eq!(values, [3.0, -2.0]);
        assert!(Elements::of::<i64>(&[]).slice::<i64>().is_empty());
    }

    #[test]
    #[should_panic = "the type of these elements"]
    fn another_type_of_the_same_length_is_refused() {
        Elements::of(&[1.0_f32]).slice::<i32>();
    }
}
