//! The kernels of a GPU, each compiled and loaded when it is first used.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::CompilerError;
use super::context::{Context, refused};
use super::nvrtc::{Nvrtc, Source};
use crate::device::Target;
use crate::runtime::device::bulk::BulkError;

/// Threads of a block (`BLOCK` in the texts).
pub(in crate::runtime) const BLOCK: u32 = 512;

/// Blocks of threads for so many pieces of work on a GPU that runs `multiprocessors` of them at once: as many as it has
/// room for, and no more than there is work for.
pub(in crate::runtime) fn blocks(pieces: usize, multiprocessors: u32) -> u32 {
    // Four blocks of 512 threads are all that a multiprocessor holds.
    let most = multiprocessors.saturating_mul(4).max(1);
    u32::try_from(pieces.div_ceil(BLOCK as usize)).unwrap_or(u32::MAX).clamp(1, most)
}

/// Names a kernel that the compiler can be asked for.
pub(in crate::runtime) trait Compiled: Copy + Ord {
    /// The kernel as the compiler gets it.
    fn source(self) -> Source;
}

/// The kernels of one text on one GPU.
pub(in crate::runtime) struct Kernels<K: Compiled> {
    context: Arc<Context>,
    compiler: Nvrtc,
    target: Target,
    loaded: BTreeMap<K, (sys::CUmodule, sys::CUfunction)>,
}

// SAFETY: modules and functions are bound to the context, not to a thread.
unsafe impl<K: Compiled + Send> Send for Kernels<K> {}

impl<K: Compiled> Kernels<K> {
    /// Loads the compiler; no kernel is compiled yet.
    ///
    /// # Errors
    /// If this host lacks the compiler, or the compiler does not know the GPU.
    pub(in crate::runtime) fn open(context: &Arc<Context>) -> Result<Self, CompilerError> {
        let compiler = Nvrtc::load()?;
        let gpu = context.architecture().map_err(|error| CompilerError::Refused(error.to_string()))?;
        let target = Target::of(gpu, &compiler.known()?).ok_or(CompilerError::Unknown { gpu })?;
        Ok(Self { context: Arc::clone(context), compiler, target, loaded: BTreeMap::new() })
    }

    /// A kernel, compiled and loaded.
    pub(in crate::runtime) fn function(&mut self, kernel: K) -> Result<sys::CUfunction, BulkError> {
        if let Some((_, function)) = self.loaded.get(&kernel) {
            return Ok(*function);
        }
        let source = kernel.source();
        let failed = |error: CompilerError| BulkError::Failed(error.to_string());
        let mut image = self.compiler.compile(&source, self.target).map_err(failed)?;
        // The portable form is a text, and ends with a zero already; one more does no harm.
        image.push(0);
        self.context.make_current()?;
        // SAFETY: the image is one that the compiler has made, and lives through the call, which copies it.
        let module =
            unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(refused("a kernel"))?;
        let name = CString::new(source.name).map_err(|error| BulkError::Failed(error.to_string()))?;
        // SAFETY: the module has just been loaded.
        let function =
            unsafe { result::module::get_function(module, name) }.map_err(refused("the name of a kernel"))?;
        self.loaded.insert(kernel, (module, function));
        Ok(function)
    }
}

impl<K: Compiled> Drop for Kernels<K> {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            for (module, _) in self.loaded.values() {
                // SAFETY: what starts kernels holds this: none is under way. Nothing can be done about an error.
                let _ = unsafe { result::module::unload(*module) };
            }
        }
    }
}
