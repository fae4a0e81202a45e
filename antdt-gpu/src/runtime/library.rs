//! Libraries that are loaded at run time, with their functions.
//!
//! The look-up is our own: that of cudarc does not know the names under which most systems have the libraries, and panics where
//! a function is missing, as those are that only a newer library has.
#![allow(unsafe_code, reason = "loads libraries, and looks up functions in them")]

use std::error::Error as _;
use std::ffi::{CStr, c_char};

use libloading::Library;

/// Reason why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::runtime) enum LoadError {
    /// It is under none of its names; the system's words for the last one.
    Absent(String),
    /// It lacks this function.
    Function(&'static str),
}

/// Opens a library under the first of these names that there is.
///
/// # Safety
/// The library's initialisers have no requirements.
pub(in crate::runtime) unsafe fn open(names: &[&str]) -> Result<Library, LoadError> {
    let mut why = String::new();
    for name in names {
        // SAFETY: the caller's promise.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok(library),
            Err(error) => why = error.source().map_or_else(|| error.to_string(), ToString::to_string),
        }
    }
    Err(LoadError::Absent(why))
}

/// Returns the function of this name, if the library has it.
///
/// # Safety
/// It must be of type `F`, and not be called when the library is gone.
pub(in crate::runtime) unsafe fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller knows the type.
    unsafe { library.get::<F>(name) }.ok().map(|function| *function)
}

/// Returns a constant text of a library.
///
/// # Safety
/// It ends with a zero and is never freed, or is no text at all.
pub(in crate::runtime) unsafe fn constant(text: *const c_char) -> String {
    if text.is_null() {
        return "an unknown error".to_owned();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Declares a library as a type: `$status` is what its functions return, and `$text` the function that has a constant text for
/// each of these numbers. The arguments must be those of the library's header. A library that lacks one of the functions under
/// `needed` is refused.
macro_rules! functions {
    (
        $library:ident -> $status:ty, $text:literal;
        needed { $( $field:ident = $name:literal: ($($argument:ty),*); )+ }
        optional { $( $other:ident = $other_name:literal: ($($other_argument:ty),*); )* }
    ) => {
        /// The library, with its functions.
        pub(in crate::runtime) struct $library {
            $( $field: unsafe extern "C" fn($($argument),*) -> $status, )+
            $( $other: Option<unsafe extern "C" fn($($other_argument),*) -> $status>, )*
            text: unsafe extern "C" fn($status) -> *const std::ffi::c_char,
            // Last, so that no function outlives it.
            _library: libloading::Library,
        }

        impl $library {
            /// Loads the library under the first of these names that there is.
            fn open(names: &[&str]) -> Result<Self, $crate::runtime::library::LoadError> {
                use $crate::runtime::library::{LoadError, find, open};
                // SAFETY: neither NCCL nor NVRTC has requirements for its initialisers.
                let library = unsafe { open(names) }?;
                $(
                    let $field: unsafe extern "C" fn($($argument),*) -> $status =
                        // SAFETY: the arguments and the result are those of the header, in all versions that are used.
                        unsafe { find(&library, $name) }.ok_or(LoadError::Function($name))?;
                )+
                $(
                    let $other: Option<unsafe extern "C" fn($($other_argument),*) -> $status> =
                        // SAFETY: as above.
                        unsafe { find(&library, $other_name) };
                )*
                let text: unsafe extern "C" fn($status) -> *const std::ffi::c_char =
                    // SAFETY: as above.
                    unsafe { find(&library, $text) }.ok_or(LoadError::Function($text))?;
                Ok(Self { $( $field, )+ $( $other, )* text, _library: library })
            }

            /// Returns the library's text for a status.
            fn text_of(&self, status: $status) -> String {
                // SAFETY: the library returns a constant text for any number.
                unsafe { $crate::runtime::library::constant((self.text)(status)) }
            }
        }
    };
}

pub(in crate::runtime) use functions;
