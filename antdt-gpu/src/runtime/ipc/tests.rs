//! The kernels, compiled for this machine's processor and by the compiler for GPUs; the protocol over streams of threads; and
//! what this host has of a GPU.

mod kernels;
mod processes;
mod streams;

use antdt_collective::element::Element;
use antdt_collective::kernel;
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::TransportBackend;
use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::weighted::{self, Weighed};

use super::*;
use crate::runtime::cuda::CompilerError;

/// What a reduction of all ranks' operands is on the host.
fn reduced<E: Element>(op: ReduceOp, operands: &[&[E]]) -> Vec<E> {
    let mut result = operands[0].to_vec();
    for operand in &operands[1..] {
        kernel::reduce(op, &mut result, operand);
    }
    if op == ReduceOp::Mean {
        kernel::divide(&mut result, operands.len() as u32);
    }
    result
}

/// The same of a weighted mean.
fn weighted_mean<E: Weighed>(operands: &[&[E]], weights: &[f64], total: f64) -> Vec<E> {
    let products: Vec<Vec<E::Sum>> = operands
        .iter()
        .zip(weights)
        .map(|(operand, weight)| {
            let mut products = vec![E::Sum::default(); operand.len()];
            weighted::weigh(operand, *weight, &mut products);
            products
        })
        .collect();
    let products: Vec<&[E::Sum]> = products.iter().map(Vec::as_slice).collect();
    let mut means = vec![E::default(); operands[0].len()];
    weighted::unweigh(&reduced(ReduceOp::Sum, &products), total, &mut means);
    means
}

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
