//! [`GpuMeter`]: measures the load of the GPU that this process computes on, as NVIDIA's management library (NVML) reports it.
//!
//! The library is loaded at run time; without it, or without a GPU, nothing is known. It may take seconds to initialise, and its calls
//! go through the driver, so that a thread of its own asks once a second, and no heartbeat waits for it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use antdt_core::GpuLoad;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// The newest load; `None` if it is not known.
type Newest = Arc<Mutex<Option<GpuLoad>>>;

/// Measures the load of the GPU that this process computes on. The measurement ends with the meter.
#[derive(Debug)]
pub(super) struct GpuMeter {
    newest: Newest,
    /// Dropped with the meter, which ends the thread.
    _over: Sender<()>,
}

impl GpuMeter {
    /// Starts to measure; `None` if no thread can be started.
    pub(super) fn start() -> Option<Self> {
        let (over, ended) = channel();
        let newest = Newest::default();
        let told = Arc::clone(&newest);
        let thread = thread::Builder::new().name("antdt-gpu".to_owned());
        thread.spawn(move || watch(Nvml::init(), &told, &ended)).ok()?;
        Some(Self { newest, _over: over })
    }

    /// Returns the newest load; `None` before the first one, and if none is known.
    pub(super) fn newest(&self) -> Option<GpuLoad> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks until the other end of `ended` is dropped; not at all without the library.
fn watch(nvml: Result<Nvml, NvmlError>, newest: &Mutex<Option<GpuLoad>>, ended: &Receiver<()>) {
    let nvml = match nvml {
        Ok(nvml) => nvml,
        Err(why) => return tracing::debug!(%why, "the load of GPUs is not known"),
    };
    loop {
        let load = own(&nvml, std::process::id()).and_then(|index| look(&nvml, index).ok());
        *newest.lock().unwrap_or_else(PoisonError::into_inner) = load;
        match ended.recv_timeout(EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The index of the GPU that a process computes on.
fn own(nvml: &Nvml, process: u32) -> Option<u32> {
    let count = nvml.device_count().ok()?;
    let of_gpu = |index| {
        let processes = nvml.device_by_index(index).and_then(|gpu| gpu.running_compute_processes());
        // Where a driver hides them, no process is known.
        processes.unwrap_or_default().into_iter().map(|it| it.pid).collect()
    };
    chosen(&(0..count).map(of_gpu).collect::<Vec<_>>(), process)
}

/// The first GPU, by the processes of each, that a process computes on. In a container, processes are known under other numbers or not
/// at all: the only GPU there is then.
fn chosen(processes: &[Vec<u32>], process: u32) -> Option<u32> {
    let of_it = processes.iter().position(|pids| pids.contains(&process));
    let index = of_it.or_else(|| (processes.len() == 1).then_some(0))?;
    u32::try_from(index).ok()
}

/// The load of a GPU.
fn look(nvml: &Nvml, index: u32) -> Result<GpuLoad, NvmlError> {
    let gpu = nvml.device_by_index(index)?;
    let (busy, memory) = (gpu.utilization_rates()?.gpu, gpu.memory_info()?);
    Ok(GpuLoad {
        index,
        busy: f64::from(busy.min(100)) / 100.0,
        memory_used: memory.used,
        memory_bound: memory.total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_is_the_one_that_the_process_computes_on_or_the_only_one() {
        for (processes, expected) in [
            (vec![], None),
            (vec![vec![]], Some(0)),
            (vec![vec![5, 9]], Some(0)),
            (vec![vec![5], vec![8, 7]], Some(1)),
            (vec![vec![7], vec![7]], Some(0)),
            (vec![vec![5], vec![]], None),
        ] {
            assert_eq!(chosen(&processes, 7), expected, "{processes:?}");
        }
    }

    #[test]
    fn without_the_library_the_reader_knows_nothing_and_stops_looking() {
        let nvml = Nvml::builder().lib_path("/nowhere/libnvidia-ml.so.1".as_ref()).init();
        assert!(nvml.is_err());
        let (_over, ended) = channel();
        let newest = Newest::default();
        // Returns at once, though the meter lives.
        watch(nvml, &newest, &ended);
        assert_eq!(*newest.lock().unwrap(), None);
    }

    #[test]
    fn a_gpu_of_this_host_says_its_load() {
        let nvml = match Nvml::init() {
            Ok(nvml) => nvml,
            Err(why) => return println!("skipped, not here: NVML says: {why}"),
        };
        for index in 0..nvml.device_count().unwrap() {
            let load = look(&nvml, index).unwrap();
            assert!((0.0..=1.0).contains(&load.busy), "{load:?}");
            assert!(load.memory_used <= load.memory_bound && load.memory_bound > 1 << 20, "{load:?}");
        }
    }
}
