//! A reducer whose buckets lie on the emulated GPU.

use std::time::{Duration, Instant};

use antdt_collective::bucket::Buckets;
use antdt_collective::runtime::testing::{at_once, mem_members};
use antdt_collective::runtime::{
    BucketMemory, CommunicatorConfig, LayerMemory, Reducer, ReducerParts, ScheduledCommunicator,
};
use antdt_core::Seed;

use super::kernels;
use crate::runtime::flat::FlatShape;
use crate::runtime::flat::testing::EmulatedGpu;

const LAYERS: usize = 8;

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn layer_len(layer: usize) -> usize {
    [5, 0, 3, 100, 1, 7, 64, 2][layer]
}

fn gradient(rank: u32, step: u64, layer: usize) -> Vec<f32> {
    let mut rng = Seed(u64::from(rank)).derive_number(step).derive_number(layer as u64).rng();
    (0..layer_len(layer)).map(|_| (rng.normal() * 100.0).round() as f32).collect()
}

/// Buckets on a device that stands in for a GPU, over transports that do not reach it: staged, to the same sums.
#[test]
fn buckets_on_a_device_take_gradients_and_hold_sums_there() {
    let Some(kernels) = kernels() else { return };
    let lens: Vec<usize> = (0..LAYERS).map(layer_len).collect();
    let plan = Buckets::plan(&lens, 40, 8);
    let (transports, aborts) = mem_members(2);
    let members: Vec<_> = (0..).zip(transports.into_iter().zip(aborts)).collect();
    at_once(members, |(me, (transport, abort))| {
        let gpu = EmulatedGpu::start(&kernels, false).unwrap();
        let flat = gpu.flat(FlatShape { len: 1, state_per_value: 0 }).unwrap();
        let memory = BucketMemory::on_device(&plan, |len_bytes| flat.region(len_bytes)).unwrap();
        let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        let mut parts = ReducerParts { communicator, compressors: Vec::new(), memory };
        for step in 0..3 {
            let mut reducer = Reducer::resume(parts, plan.clone(), abort.clone()).unwrap();
            for layer in (0..LAYERS).rev() {
                let values = gradient(me, step, layer);
                let put = |place: LayerMemory<'_>| match place {
                    LayerMemory::Device(place) => {
                        flat.put(&values, place.address).unwrap();
                        Ok(())
                    }
                    LayerMemory::Host(place) => {
                        assert!(place.is_empty() && values.is_empty(), "layer {layer} is not on the device");
                        Ok(())
                    }
                    _ => panic!("layer {layer} lies in memory of another kind"),
                };
                reducer.submit_by(layer, values.len(), put).unwrap();
            }
            reducer.finish(later()).unwrap();
            let error = reducer.wait(0, later()).unwrap_err().to_string();
            assert!(error.contains("layer 0 lies on a device"), "{error}");
            parts = reducer.into_parts().unwrap();
            let places = parts.memory.places(&plan).unwrap();
            for (layer, place) in places.into_iter().enumerate() {
                let Some(place) = place else {
                    assert_eq!(layer_len(layer), 0);
                    continue;
                };
                let sums = gpu.tensor(layer_len(layer)).unwrap();
                flat.copy(place.address, sums.address(), layer_len(layer)).unwrap();
                let both = [gradient(0, step, layer), gradient(1, step, layer)];
                let expected: Vec<f32> = both[0].iter().zip(&both[1]).map(|(a, b)| a + b).collect();
                assert_eq!(sums.computed().unwrap(), expected, "step {step}, layer {layer}");
            }
        }
        // Each bucket went to the host, once in each step.
        assert_eq!(gpu.gradients_copied(), 3 * plan.buckets().len() as u64);
        assert!(parts.memory.places(&Buckets::plan(&lens, 0, 0)).is_none(), "another plan's");
        assert!(BucketMemory::default().places(&plan).is_none());
    });
}
