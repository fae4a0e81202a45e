//! The command with a device that is none: workers keep hot rows in the memory of a process that runs the kernels of GPUs on the
//! processor of this machine. Needs `g++`. The tests run it:
//! `cargo run -p antdt --example emulated_rows -- run --data synthetic:2000 --hot-rows 300 --report-dir report`
//!
//! With `EMULATED_ROWS_FAIL_FROM=N` in the environment the device of each worker fails after `N` operations.

use antdt::JobBuilder;
use antdt::worker::plane::{Devices, Standard};
use antdt_collective::runtime::rows::{RowMemory, RowShape, RowsError};
use antdt_gpu::runtime::rows::testing::{FailingRows, HostKernels};

fn memory(shape: RowShape, slots: u32) -> Result<Box<dyn RowMemory>, RowsError> {
    // The process goes on without the folder that it was built in.
    let rows = HostKernels::build().map_err(RowsError::None)?.rows(shape, slots)?;
    Ok(match std::env::var("EMULATED_ROWS_FAIL_FROM").ok().and_then(|from| from.parse().ok()) {
        Some(from) => Box::new(FailingRows::new(rows, from..u64::MAX)),
        None => rows,
    })
}

fn main() -> std::process::ExitCode {
    let devices = Devices { rows: Some(memory), ..Devices::default() };
    JobBuilder::new().data_plane(Standard { devices }).main()
}
