//! A GPU that this process uses.
#![allow(unsafe_code, reason = "calls the driver of the GPU")]

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{DriverError, result, sys};

use super::CudaError;
use crate::runtime::device::bulk::BulkError;

/// A GPU with the context that all users in this process share.
pub(in crate::runtime) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(in crate::runtime) identity: u128,
    pub(in crate::runtime) multiprocessors: u32,
}

// SAFETY: a context may be made current on any thread.
unsafe impl Send for Context {}
// SAFETY: as above, also on several at once.
unsafe impl Sync for Context {}

impl Context {
    pub(in crate::runtime) fn open(index: u32) -> Result<Self, CudaError> {
        let count = super::gpus()?.len();
        if index as usize >= count {
            let why = format!("there are {count}, and none with the index {index}");
            return Err(CudaError::Driver { call: "a GPU", why });
        }
        let failed =
            |call| move |DriverError(code): DriverError| CudaError::Driver { call, why: format!("{code:?}") };
        let device = result::device::get(index.cast_signed()).map_err(failed("a GPU"))?;
        let uuid = result::device::get_uuid(device).map_err(failed("the identity of a GPU"))?;
        let identity = u128::from_le_bytes(uuid.bytes.map(|byte| byte.to_le_bytes()[0]));
        let multiprocessors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(failed("the number of multiprocessors"))?;
        // SAFETY: the device is one that the driver has just given.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("a context"))?;
        Ok(Self { device, context, identity, multiprocessors })
    }

    /// Its architecture, such as 90.
    pub(in crate::runtime) fn architecture(&self) -> Result<u32, BulkError> {
        let part = |which| attribute(self.device, which).map_err(refused("its architecture"));
        let major = part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok(10 * major + part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
    }

    /// Whether the address is in the memory of this GPU, allocated by any part of this process.
    pub(in crate::runtime) fn holds(&self, address: u64) -> Result<bool, BulkError> {
        self.make_current()?;
        let ask = |which: sys::CUpointer_attribute| {
            let mut answer = 0_u32;
            // SAFETY: both attributes that are asked for are numbers of 32 bits, and any address may be asked about.
            match unsafe { sys::cuPointerGetAttribute((&raw mut answer).cast(), which, address) } {
                sys::CUresult::CUDA_SUCCESS => Ok(Some(answer)),
                // Memory that the driver does not know.
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
                code => Err(refused("where an address is")(DriverError(code))),
            }
        };
        let kind = ask(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
        let gpu = ask(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
        let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
        Ok((kind, gpu) == (Some(device), Some(self.device.cast_unsigned())))
    }

    pub(in crate::runtime) fn make_current(&self) -> Result<(), BulkError> {
        // SAFETY: the context is retained as long as this lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(refused("a context"))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, when it was opened. Nothing can be done about an error.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Result<u32, DriverError> {
    // SAFETY: the device is one that the driver has given.
    unsafe { result::device::get_attribute(device, which) }.map(i32::unsigned_abs)
}

/// A call of the driver that failed.
pub(in crate::runtime) fn refused(call: &'static str) -> impl Fn(DriverError) -> BulkError {
    move |DriverError(code)| BulkError::Failed(format!("the CUDA driver refused {call}: {code:?}"))
}
