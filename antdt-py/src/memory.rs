//! Memory that belongs to Python objects, by its address: what `Tensor.data_ptr()` returns.

#![allow(unsafe_code, reason = "the only place where an address that Python names is read or written")]

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;

/// Checks that `address` can be that of `len` values of `T`.
fn check<T>(address: usize, len: usize) -> PyResult<()> {
    let fits = len.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if !fits || !address.is_multiple_of(align_of::<T>()) || (address == 0 && len > 0) {
        let message =
            format!("address {address:#x} is none of {len} values of {} bytes each", size_of::<T>());
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}

/// Calls `with` with the values at `address`.
///
/// The package passes addresses of contiguous tensors in the host's memory that it holds during the call.
pub(crate) fn read<T: Plain, R>(address: usize, len: usize, with: impl FnOnce(&[T]) -> R) -> PyResult<R> {
    check::<T>(address, len)?;
    if len == 0 {
        return Ok(with(&[]));
    }
    // SAFETY: aligned and not null, as checked; the caller holds the array, whose bits are any values of a plain type.
    Ok(with(unsafe { std::slice::from_raw_parts(address as *const T, len) }))
}

/// Copies `values` to `address`.
pub(crate) fn write<T: Plain>(values: &[T], address: usize) -> PyResult<()> {
    check::<T>(address, values.len())?;
    if !values.is_empty() {
        // SAFETY: aligned and not null, as checked; the caller holds the array, which nobody else writes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), address as *mut T, values.len()) };
    }
    Ok(())
}

/// Numbers, of which all bits are values.
pub(crate) trait Plain: Copy {}

impl Plain for f32 {}
impl Plain for u8 {}
