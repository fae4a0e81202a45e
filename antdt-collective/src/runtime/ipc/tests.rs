//! The kernels, compiled for this machine's processor and by the compiler for GPUs; the protocol over streams of threads; and
//! what this host has of a GPU.

mod kernels;
mod processes;
mod streams;

use super::*;
use crate::runtime::TransportBackend;
use crate::runtime::cuda::CompilerError;
use crate::runtime::transport::REGISTRY;

#[test]
fn a_host_without_a_gpu_or_without_the_compiler_gets_a_typed_error_and_no_panic() {
    match check(0) {
        Ok(()) => println!("a GPU is here, with the compiler for it"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            match error {
                IpcError::Cuda(_) => assert!(text.contains("CUDA driver"), "{text}"),
                IpcError::Compiler(CompilerError::NoCompiler { .. }) => {
                    assert!(text.contains("LD_LIBRARY_PATH"), "{text}");
                }
                other => panic!("{other}"),
            }
        }
    }
    let below = || Box::new(TransportBackend::new(REGISTRY.by_name("tcp").unwrap()));
    assert!(format!("{:?}", over(None, below())).contains("computes on no GPU"));
}
