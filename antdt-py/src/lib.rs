//! The extension module `antdt._antdt`: a worker of a job whose training loop, model and optimizer are a Python program's.
//!
//! The package `antdt` beside it says what to do when; this module carries questions and answers between Python and
//! [`ProgramSession`](antdt::worker::ProgramSession), and arrays between their memories. Every wait lets other Python threads run and hears Ctrl-C.

#![deny(unsafe_code)]

mod memory;
mod session;

use antdt::worker::WorkerError as Failure;
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(
    _antdt,
    WorkerError,
    PyRuntimeError,
    "A worker that cannot go on. `exit_code` tells `antdt run` whether starting the program again can help."
);

/// The error as Python has it.
pub(crate) fn raised(error: &Failure) -> PyErr {
    let raised = WorkerError::new_err(error.to_string());
    Python::attach(|py| {
        // An error without the attribute still says what is wrong.
        let _ = raised.value(py).setattr("exit_code", error.exit_code());
    });
    raised
}

#[pymodule]
fn _antdt(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("RETRY", antdt::core::Exit::CODE_RETRY)?;
    module.add("NEVER", antdt::core::Exit::CODE_NEVER)?;
    module.add("WorkerError", module.py().get_type::<WorkerError>())?;
    module.add_class::<session::Session>()?;
    module.add_function(wrap_pyfunction!(session::job, module)?)
}
