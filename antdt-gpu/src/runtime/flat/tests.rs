//! The store over the kernels that are built for this machine; `antdt-model` compares it with its optimizers.

use std::net::SocketAddr;

use antdt_collective::RowStep;
use antdt_collective::element::ElementType;
use antdt_collective::group::{Group, Member};
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::process_group::{Backend, TransportBackend};
use antdt_collective::runtime::testing::{PATIENT, abort_handles, at_once, holder, loopback_listener};
use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::runtime::{CommunicatorConfig, Halves};
use antdt_core::MembershipVersion;

use super::testing::EmulatedGpu;
use super::*;
use crate::runtime::rows::testing::HostKernels;

mod buckets;

/// Kernels for this machine, or why there are none.
fn kernels() -> Option<HostKernels> {
    HostKernels::build().map_err(|why| println!("skipped, not here: {why}")).ok()
}

const SGD: RowStep = RowStep::Sgd { rate: 0.5, scale: 2.0, decay: 0.0 };

#[test]
fn a_step_changes_a_piece_and_its_state_and_nothing_else() {
    let Some(kernels) = kernels() else { return };
    let gpu = EmulatedGpu::start(&kernels, true).unwrap();
    let flat = gpu.flat(FlatShape { len: 5, state_per_value: 1 }).unwrap();
    flat.write(&[1.0, 2.0, 3.0, 4.0, 1e-38], [&[10.0, 20.0, 30.0, 40.0, 0.0], &[]]).unwrap();
    let sums = gpu.tensor(3).unwrap();
    sums.compute(&[1.0, -2.0, 0.0]).unwrap();
    let momentum = RowStep::Momentum {
        rate: 0.5,
        scale: 2.0,
        decay: 0.0,
        momentum: 0.5,
        along_gradient: 0.0,
        along_sum: 1.0,
    };
    flat.step(1..3, sums.address(), &momentum, 0.0).unwrap();
    let state = |flat: &dyn FlatMemory| {
        let mut kept = [0.0; 5];
        flat.read_state([&mut kept, &mut []]).unwrap();
        kept
    };
    let values = |flat: &dyn FlatMemory| {
        let mut values = [0.0; 5];
        flat.read(&mut values).unwrap();
        values
    };
    // 0.5 * 20 + 2, and 0.5 * 30 - 4.
    assert_eq!(state(&*flat), [10.0, 12.0, 11.0, 40.0, 0.0]);
    assert_eq!(values(&*flat), [1.0, 2.0 - 6.0, 3.0 - 5.5, 4.0, 1e-38]);
    // Sums of 0 leave a value alone, but what is close to 0 is dropped where it is asked for.
    flat.step(4..5, sums.address() + 8, &momentum, 0.0).unwrap();
    assert_eq!(values(&*flat)[4], 1e-38);
    flat.step(4..5, sums.address() + 8, &momentum, f32::MIN_POSITIVE).unwrap();
    assert_eq!(values(&*flat)[4], 0.0);
    // Statistics.
    flat.set(0..2, sums.address(), 0.25).unwrap();
    assert_eq!(values(&*flat)[..3], [0.25, -0.5, -2.5]);
    let tensor = gpu.tensor(5).unwrap();
    flat.copy_to(tensor.address()).unwrap();
    assert_eq!(tensor.computed().unwrap(), values(&*flat));
    assert_eq!(gpu.gradients_copied(), 0);
}

#[test]
fn gradients_are_copied_and_added_up_without_the_host() {
    let Some(kernels) = kernels() else { return };
    let gpu = EmulatedGpu::start(&kernels, true).unwrap();
    let flat = gpu.flat(FlatShape { len: 300, state_per_value: 0 }).unwrap();
    let (first, sums) = (gpu.tensor(300).unwrap(), gpu.tensor(300).unwrap());
    let numbers: Vec<f32> = (0..300_u16).map(f32::from).collect();
    first.compute(&numbers).unwrap();
    flat.copy(first.address(), sums.address(), 300).unwrap();
    flat.add(first.address() + 4, sums.address() + 4, 299).unwrap();
    let mut expected: Vec<f32> = numbers.iter().map(|number| 2.0 * number).collect();
    assert_eq!(sums.computed().unwrap(), expected);
    flat.put(&[7.0, 8.0], sums.address()).unwrap();
    expected[..2].copy_from_slice(&[7.0, 8.0]);
    assert_eq!(sums.computed().unwrap(), expected);
    for nothing in [flat.copy(0, 0, 0), flat.add(0, 0, 0), flat.put(&[], 0), flat.set(2..2, 0, 1.0)] {
        nothing.unwrap();
    }
    assert_eq!(flat.square_sum(0, 0), Ok(0.0));
    // 4² + 6² + … + 598², and the two that were put there.
    let squares: f64 = numbers[2..].iter().map(|number| 4.0 * f64::from(*number).powi(2)).sum();
    assert_eq!(flat.square_sum(sums.address(), 300), Ok(squares + 49.0 + 64.0));
    assert_eq!(gpu.gradients_copied(), 0);
    let error = sums.gradient().unwrap_err().to_string();
    assert!(error.contains("a gradient was to be copied to the host"), "{error}");
    assert_eq!(gpu.gradients_copied(), 1);
    // It has failed for good.
    assert!(matches!(flat.copy(first.address(), sums.address(), 300), Err(FlatError::Device(_))));
    assert!(matches!(flat.read(&mut [0.0; 300]), Err(FlatError::Device(_))));
}

#[test]
fn values_that_do_not_fit_are_refused_and_change_nothing() {
    let Some(kernels) = kernels() else { return };
    let gpu = EmulatedGpu::start(&kernels, true).unwrap();
    let flat = gpu.flat(FlatShape { len: 3, state_per_value: 1 }).unwrap();
    flat.write(&[1.0, 2.0, 3.0], [&[0.0; 3], &[]]).unwrap();
    let sums = gpu.tensor(3).unwrap();
    sums.compute(&[1.0; 3]).unwrap();
    let at = sums.address();
    let adagrad = RowStep::Adagrad { rate: 1.0, scale: 1.0, decay: 0.0, epsilon: 1.0 };
    let length = |got, due| Err(FlatError::Length { got, due });
    assert_eq!(flat.write(&[0.0; 2], [&[0.0; 3], &[]]), length(2, 3));
    assert_eq!(flat.write(&[0.0; 3], [&[], &[]]), length(0, 3));
    assert_eq!(flat.write(&[0.0; 3], [&[0.0; 3], &[0.0; 3]]), length(3, 0));
    assert_eq!(flat.read(&mut [0.0; 4]), length(4, 3));
    assert_eq!(flat.read_state([&mut [0.0; 4], &mut []]), length(4, 3));
    assert_eq!(flat.step(2..4, at, &adagrad, 0.0), length(4, 3));
    assert_eq!(flat.add(at, at, 4), length(4, 3));
    assert_eq!(flat.square_sum(at, 4).map(drop), length(4, 3));
    assert_eq!(flat.step(0..3, at, &SGD, 0.0), Err(FlatError::State { kept: 1, due: 0 }));
    for address in [0, at + 4, u64::MAX - 3] {
        let elsewhere = Err(FlatError::Elsewhere { address });
        assert_eq!(flat.step(0..3, address, &adagrad, 0.0), elsewhere);
        assert_eq!(flat.set(0..3, address, 1.0), elsewhere);
        assert_eq!(flat.copy(at, address, 3), elsewhere);
        assert_eq!(flat.copy(address, at, 3), elsewhere);
        assert_eq!(flat.add(at, address, 3), elsewhere);
        assert_eq!(flat.square_sum(address, 3).map(drop), elsewhere);
        assert_eq!(flat.put(&[0.0; 3], address), elsewhere);
        assert_eq!(flat.copy_to(address), elsewhere);
    }
    let mut values = [0.0; 3];
    flat.read(&mut values).unwrap();
    assert_eq!(values, [1.0, 2.0, 3.0]);
    for shape in [
        FlatShape { len: 0, state_per_value: 0 },
        FlatShape { len: (1 << 30) + 1, state_per_value: 0 },
        FlatShape { len: 1, state_per_value: 3 },
    ] {
        let refused = gpu.flat(shape).unwrap_err().to_string();
        assert!(refused.starts_with("parameters cannot lie on a GPU: "), "{refused}");
    }
}

/// Three processes, as threads, each with a GPU, of which the first `able` have a library between them: all reduce halves of each of
/// these lengths. Returns how often each copied one to the host.
fn reduced(kernels: &HostKernels, able: usize, lens: &[usize]) -> Vec<u64> {
    let listeners: Vec<_> = (0..3).map(|_| loopback_listener()).collect();
    let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_address()).collect();
    let member = |(me, address): (u32, &SocketAddr)| Member { holder: holder(me), address: *address };
    let members: Vec<Member> = (0_u32..).zip(&addresses).map(member).collect();
    at_once((0_u32..).zip(listeners), |(me, listener)| {
        let gpu = EmulatedGpu::start(kernels, false).unwrap();
        let flat = gpu.flat(FlatShape { len: 1, state_per_value: 0 }).unwrap();
        let below = Box::new(TransportBackend::new(REGISTRY.by_name("auto").unwrap()));
        let mut backend: Box<dyn Backend> = if (me as usize) < able {
            gpu.backend(below)
        } else {
            crate::runtime::device::tests::without(below)
        };
        let group = Group::new(MembershipVersion(1), members.clone(), antdt_core::Rank(me)).unwrap();
        let abort = abort_handles(1).remove(0);
        let config = CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() };
        let (mut group, _) = backend.join(&listener, &group, config, &abort).unwrap();
        for len in lens {
            let mut halves = Halves::new(flat.region(4 * len).unwrap(), flat.region(4 * len).unwrap());
            for step in 1..3_u16 {
                let mine = vec![f32::from(step) * (me as f32 + 1.0); *len];
                let address = halves.device_parts().unwrap().0.place().address;
                flat.put(&mine, address).unwrap();
                group.all_reduce_halves(&mut halves, ElementType::F32, ReduceOp::Sum).unwrap();
                let sums = gpu.tensor(*len).unwrap();
                let address = halves.device_parts().unwrap().0.place().address;
                flat.copy(address, sums.address(), *len).unwrap();
                assert_eq!(sums.computed().unwrap(), vec![6.0 * f32::from(step); *len]);
            }
        }
        group.leave();
        gpu.gradients_copied()
    })
}

#[test]
fn halves_on_gpus_of_all_members_are_reduced_there_however_short_and_else_copied() {
    let Some(kernels) = kernels() else { return };
    // The shortest ones, and one that goes over a library in any case.
    let lens = [1, 70, 100_000];
    assert_eq!(reduced(&kernels, 3, &lens), [0; 3]);
    // Two steps of each.
    assert_eq!(reduced(&kernels, 2, &lens), [6; 3]);
}
