//! The command with a device that is none: workers keep hot rows in the memory of a process that runs the kernels of GPUs on the
//! processor of this machine. Needs `g++`. The tests run it:
//! `cargo run -p antdt --features cli --example emulated_rows -- run --data synthetic:2000 --hot-rows 300 --report-dir report`

use antdt::JobBuilder;
use antdt_collective::runtime::rows::testing::HostKernels;
use antdt_collective::runtime::rows::{RowMemory, RowShape, RowsError};

fn memory(shape: RowShape, slots: u32) -> Result<Box<dyn RowMemory>, RowsError> {
    // The process goes on without the folder that it was built in.
    HostKernels::build().map_err(RowsError::None)?.rows(shape, slots)
}

fn main() -> std::process::ExitCode {
    JobBuilder::new().row_memory(memory).main()
}
