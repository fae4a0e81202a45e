//! The compiler of kernels, a library that is loaded at run time.
#![allow(unsafe_code, reason = "declares functions of a library, and calls them")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::device::Target;
use crate::runtime::library::{LoadError, functions};

/// Names of the library, newest first.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

/// Options of the compiler for all kernels: results are those of the host, to the bit.
const OPTIONS: [&str; 5] =
    ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

/// Reason why GPU kernels cannot be compiled at run time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompilerError {
    /// The library of the compiler (NVRTC) is not installed.
    #[error(
        "libnvrtc.so cannot be loaded ({why}); install CUDA's NVRTC, or name its folder in LD_LIBRARY_PATH"
    )]
    NoCompiler {
        /// Error of the operating system, in words.
        why: String,
    },
    /// The library of the compiler lacks the function of this name.
    #[error("the library of NVRTC has no {0}; install that of CUDA 11.2 or later")]
    Function(&'static str),
    /// The compiler does not support the GPU's architecture.
    #[error("NVRTC compiles for no GPU as old as this one (sm_{gpu}); install an older one, or do without")]
    Unknown {
        /// Architecture of the GPU: its compute capability times ten, such as 60.
        gpu: u32,
    },
    /// A call of the compiler failed, with this message.
    #[error("{0}")]
    Refused(String),
}

/// A kernel as the compiler gets it.
pub(in crate::runtime) struct Source {
    /// Name of the file that its text is in.
    pub(in crate::runtime) file: &'static CStr,
    pub(in crate::runtime) text: &'static str,
    /// Name of its function.
    pub(in crate::runtime) name: String,
    /// Options that choose it.
    pub(in crate::runtime) options: Vec<String>,
}

/// A program of the compiler.
type Program = *mut c_void;

// As in the header of CUDA 12.9, and in all since CUDA 11.2.
functions! {
    Nvrtc -> c_int, "nvrtcGetErrorString";
    needed {
        count_known = "nvrtcGetNumSupportedArchs": (*mut c_int);
        list_known = "nvrtcGetSupportedArchs": (*mut c_int);
        create = "nvrtcCreateProgram":
            (*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        destroy = "nvrtcDestroyProgram": (*mut Program);
        compile = "nvrtcCompileProgram": (Program, c_int, *const *const c_char);
        log_len = "nvrtcGetProgramLogSize": (Program, *mut usize);
        log = "nvrtcGetProgramLog": (Program, *mut c_char);
        ptx_len = "nvrtcGetPTXSize": (Program, *mut usize);
        ptx = "nvrtcGetPTX": (Program, *mut c_char);
        cubin_len = "nvrtcGetCUBINSize": (Program, *mut usize);
        cubin = "nvrtcGetCUBIN": (Program, *mut c_char);
    }
    optional {}
}

impl Nvrtc {
    /// Loads the compiler.
    ///
    /// # Errors
    /// If it is not there, or lacks a function.
    pub(in crate::runtime) fn load() -> Result<Self, CompilerError> {
        Self::open(&NAMES).map_err(|error| match error {
            LoadError::Absent(why) => CompilerError::NoCompiler { why },
            LoadError::Function(name) => CompilerError::Function(name),
        })
    }

    /// The architectures of GPUs that it knows, such as 90.
    pub(in crate::runtime) fn known(&self) -> Result<Vec<u32>, CompilerError> {
        let mut count = 0;
        // SAFETY: it writes one number.
        self.done("nvrtcGetNumSupportedArchs", unsafe { (self.count_known)(&raw mut count) })?;
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: it writes so many numbers as it has just said.
        self.done("nvrtcGetSupportedArchs", unsafe { (self.list_known)(known.as_mut_ptr()) })?;
        Ok(known.into_iter().map(c_int::unsigned_abs).collect())
    }

    /// Compiles a kernel.
    ///
    /// # Errors
    /// If the compiler refuses, with its first words.
    pub(in crate::runtime) fn compile(
        &self,
        source: &Source,
        target: Target,
    ) -> Result<Vec<u8>, CompilerError> {
        let text = CString::new(source.text)
            .map_err(|_| CompilerError::Refused("a kernel with a zero".to_owned()))?;
        let mut program: Program = std::ptr::null_mut();
        let none = std::ptr::null();
        let name = source.file.as_ptr();
        // SAFETY: the texts live through the call, which copies them, and there are no headers.
        let status = unsafe { (self.create)(&raw mut program, text.as_ptr(), name, 0, none, none) };
        self.done("nvrtcCreateProgram", status)?;
        let compiled = self.compile_program(program, source, target);
        // SAFETY: it was created above and is used no more. There is nothing to be done about an error.
        let _ = unsafe { (self.destroy)(&raw mut program) };
        compiled
    }

    fn compile_program(
        &self,
        program: Program,
        source: &Source,
        target: Target,
    ) -> Result<Vec<u8>, CompilerError> {
        let own = OPTIONS.iter().map(|option| (*option).to_owned());
        let options: Vec<CString> = own
            .chain([target.option()])
            .chain(source.options.iter().cloned())
            .filter_map(|option| CString::new(option).ok())
            .collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).unwrap_or(0);
        // SAFETY: the program lives, and so many texts do through the call.
        let status = unsafe { (self.compile)(program, count, pointers.as_ptr()) };
        if let Err(error) = self.done("nvrtcCompileProgram", status) {
            let said = self.bytes(program, self.log_len, self.log).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let first = said.lines().find(|line| line.contains("error")).unwrap_or_default();
            return Err(CompilerError::Refused(format!("{}: {error}: {first}", source.name)));
        }
        match target {
            Target::Code(_) => self.bytes(program, self.cubin_len, self.cubin),
            Target::Portable(_) => self.bytes(program, self.ptx_len, self.ptx),
        }
    }

    // What the one function says the length of, and the other writes.
    fn bytes(
        &self,
        program: Program,
        len: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        write: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, CompilerError> {
        let mut count = 0;
        // SAFETY: the program lives, and one number is written.
        self.done("the length of a program", unsafe { len(program, &raw mut count) })?;
        let mut bytes = vec![0_u8; count];
        // SAFETY: as above, and so many bytes are written.
        self.done("a program", unsafe { write(program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    fn done(&self, call: &str, status: c_int) -> Result<(), CompilerError> {
        if status == 0 {
            return Ok(());
        }
        Err(CompilerError::Refused(format!("{call}: {}", self.text_of(status))))
    }
}
