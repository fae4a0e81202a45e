//! The text of the kernels: what it computes, and that the compiler for GPUs takes it.
#![allow(unsafe_code, reason = "calls functions of a library that the test has built")]

use std::process::Command;

use antdt_collective::element::{Element, ElementType};
use antdt_collective::elements::{with_float, with_type};
use antdt_collective::op::ReduceOp;
use antdt_collective::weighted::Weighed;
use half::{bf16, f16};
use libloading::Library;

use super::super::kernel::{Kernel, Places, RANKS_MAX, TEXT, Work};
use super::{reduced, weighted_mean};
use crate::device::Target;
use crate::runtime::cuda::CompilerError;
use crate::runtime::cuda::kernels::{BLOCK, Compiled, blocks};
use crate::runtime::cuda::nvrtc::Nvrtc;
use crate::runtime::device::bulk::size_of_element;

/// The kernels as functions of this process.
struct Host {
    library: Library,
    _folder: tempfile::TempDir,
}

type Reduce = unsafe extern "C" fn(*const Places, u32, u32, u64, u64, u64, u64);
type Weighted = unsafe extern "C" fn(*const Places, u32, u32, u64, u64, u64, f64, u64);

/// Builds the kernels for the processor of this machine; or says what is missing.
fn host() -> Result<Host, String> {
    let folder = tempfile::tempdir().unwrap();
    let (text, built) = (folder.path().join("host.cpp"), folder.path().join("host.so"));
    std::fs::write(&text, include_str!("../host.cpp")).unwrap();
    std::fs::write(folder.path().join("kernels.cu"), TEXT).unwrap();
    let options =
        ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Werror"];
    let output = Command::new("g++").args(options).arg("-o").arg(&built).arg(&text).output();
    let output = output.map_err(|error| format!("no g++ ({error})"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("_Float16") && !output.status.success() {
        return Err("this g++ has no half type; version 12 has".to_owned());
    }
    assert!(output.status.success(), "{said}");
    // SAFETY: it has no initialisers.
    let library = unsafe { Library::new(&built) }.unwrap();
    Ok(Host { library, _folder: folder })
}

impl Host {
    /// Runs a kernel with so many threads in all.
    fn run(&self, work: &Work<'_>, vectors: usize, grid: usize) {
        let (places, world, targets) = (work.places(), work.from.len() as u32, work.into.len() as u32);
        let (start, len, grid) = (work.start as u64, work.len as u64, grid as u64);
        let name = work.kernel.name();
        // SAFETY: the functions have these types in `host.cpp`, and read and write what the test owns.
        unsafe {
            match work.kernel {
                Kernel::Reduce(..) => {
                    let function = self.library.get::<Reduce>(&name).unwrap();
                    function(&raw const places, world, targets, vectors as u64, start, len, grid);
                }
                Kernel::WeightedMean(_) => {
                    let function = self.library.get::<Weighted>(&name).unwrap();
                    function(&raw const places, world, targets, vectors as u64, start, len, work.total, grid);
                }
            }
        }
    }
}

/// Elements that show what differs: any bits, and those at which halves are rounded, overflow or are no numbers.
fn operands<E: Element>(world: usize, len: usize) -> Vec<Vec<E>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let special: [f32; 8] = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, 65504.0, 1e-40];
    let mut operand = || -> Vec<E> {
        let bytes: Vec<u64> = (0..(len * size_of::<E>()).div_ceil(8)).map(|_| next()).collect();
        let mut elements: Vec<E> = bytemuck::cast_slice(&bytes)[..len].to_vec();
        for (at, element) in elements.iter_mut().enumerate() {
            let special = special[next() as usize % special.len()];
            let small = (next() % 2001) as f32 / 16.0 - 60.0;
            let wanted = if at % 3 == 0 { special } else { small };
            // One of three is left as it came.
            if at % 3 < 2 {
                let bytes = match E::TYPE {
                    ElementType::F32 => bytemuck::cast_slice(&[wanted]).to_vec(),
                    ElementType::F64 => bytemuck::cast_slice(&[f64::from(wanted)]).to_vec(),
                    ElementType::F16 => bytemuck::cast_slice(&[f16::from_f32(wanted)]).to_vec(),
                    ElementType::Bf16 => bytemuck::cast_slice(&[bf16::from_f32(wanted)]).to_vec(),
                    _ => continue,
                };
                *element = bytemuck::pod_read_unaligned(&bytes);
            }
        }
        elements
    };
    (0..world).map(|_| operand()).collect()
}

/// Whether all have the same bits; of NaNs of floats only that they are NaNs, as processors differ there.
fn agree<E: Element>(ours: &[E], theirs: &[E]) -> bool {
    #[allow(clippy::eq_op, reason = "a NaN is what differs from itself")]
    let is_nan = |value: &E| match E::TYPE {
        ElementType::F32 | ElementType::F64 => value != value,
        _ => false,
    };
    ours.iter()
        .zip(theirs)
        .all(|(a, b)| bytemuck::bytes_of(a) == bytemuck::bytes_of(b) || is_nan(a) && is_nan(b))
}

impl Host {
    /// Asserts that a kernel makes of elements `start..` of these operands what is expected, whatever the number of threads and
    /// wherever the operands lie; returns how many elements were compared.
    fn assert_makes<E: Element>(
        &self,
        kernel: Kernel,
        operands: &[Vec<E>],
        (weights, total): (&[f64], f64),
        start: usize,
        expected: &[E],
    ) -> usize {
        let (in_vector, len, mut compared) = (16 / size_of::<E>(), expected.len(), 0);
        // Aligned, as windows are, and an element behind.
        for behind in [0, 1] {
            let placed = |elements: &[E]| {
                let mut words = vec![0_u128; (size_of_val(elements) + size_of::<E>()).div_ceil(16)];
                bytemuck::cast_slice_mut::<u128, E>(&mut words)[behind..][..elements.len()]
                    .copy_from_slice(elements);
                words
            };
            let from: Vec<Vec<u128>> = operands.iter().map(|operand| placed(operand)).collect();
            let mut into = vec![placed(&vec![E::default(); start + len]); 3];
            let offset = (behind * size_of::<E>()) as u64;
            let sources: Vec<u64> = from.iter().map(|words| words.as_ptr() as u64 + offset).collect();
            let targets: Vec<u64> = into.iter_mut().map(|words| words.as_mut_ptr() as u64 + offset).collect();
            let work = Work { kernel, from: &sources, into: &targets, weights, total, start, len };
            let vectors = work.vectors(size_of::<E>());
            let aligned = behind == 0 && start.is_multiple_of(in_vector);
            assert_eq!(vectors, if aligned { len / in_vector } else { 0 }, "{kernel:?}");
            for grid in [1, 7, 4096] {
                self.run(&work, vectors, grid);
                let what = || format!("{} of {}, {grid} threads", kernel.name(), operands.len());
                for words in &mut into {
                    let all = bytemuck::cast_slice_mut::<u128, E>(words);
                    assert!(agree(&all[behind + start..][..len], expected), "{}", what());
                    let mut others = all[..behind + start].iter().chain(&all[behind + start + len..]);
                    assert!(others.all(|value| *value == E::default()), "{}", what());
                    all.fill(E::default());
                    compared += len;
                }
            }
        }
        compared
    }
}

/// One rank, few, more than are loaded at once; ranges with an end, and at an odd place.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 0, 5), (2, 0, 1003), (4, 32, 517), (7, 3, 100), (5, 0, 1024), (6, 16, 0)];

#[test]
fn every_kernel_computes_the_results_of_the_hosts_loops() {
    let host = match host() {
        Ok(host) => host,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let mut compared = 0;
    for kernel in Kernel::all() {
        let Kernel::Reduce(op, element) = kernel else { continue };
        with_type!(element, E => {
            for (world, start, len) in SHAPES {
                let operands = operands::<E>(world, start + len);
                let ranges: Vec<&[E]> = operands.iter().map(|operand| &operand[start..]).collect();
                let expected = reduced(op, &ranges);
                compared += host.assert_makes(kernel, &operands, (&[], 0.0), start, &expected);
            }
        });
    }
    println!("{compared} elements compared");
}

/// Weights of so many ranks: of samples, of none, those that no float has, and those with which products overflow or vanish.
fn weights(world: usize) -> [Vec<f64>; 4] {
    let of = |some: &[f64]| some.iter().copied().cycle().take(world).collect();
    [of(&[3.0, 0.0, 128.0, 5.0]), of(&[0.1, 1e9, 0.0, 7.3]), of(&[1e38, 1e300]), of(&[1e-38, 1e-300])]
}

#[test]
fn the_kernels_of_weighted_means_weigh_as_the_host_does() {
    let host = match host() {
        Ok(host) => host,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let mut compared = 0;
    for kernel in Kernel::all() {
        let Kernel::WeightedMean(element) = kernel else { continue };
        with_float!(element, E => {
            for (world, start, len) in SHAPES {
                let operands = operands::<E>(world, start + len);
                let ranges: Vec<&[E]> = operands.iter().map(|operand| &operand[start..]).collect();
                for weights in weights(world) {
                    let total = weights.iter().sum();
                    let expected = weighted_mean(&ranges, &weights, total);
                    compared += host.assert_makes(kernel, &operands, (&weights, total), start, &expected);
                }
            }
        }, else => panic!("integers have no mean"));
    }
    println!("{compared} elements compared");
}

#[test]
fn the_kernels_of_weighted_means_take_every_value_of_a_half_type() {
    fn check<E: Weighed>(host: &Host) {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        // Each value beside one that is far from it.
        let turned: Vec<u16> = bits.iter().map(|bits| bits.wrapping_mul(40_503).rotate_left(5)).collect();
        let operands: Vec<Vec<E>> = [&bits, &turned].map(|bits| bytemuck::cast_slice(bits).to_vec()).to_vec();
        let ranges: Vec<&[E]> = operands.iter().map(Vec::as_slice).collect();
        for weights in [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [3.0, 29.0]] {
            let total = weights.iter().sum();
            let expected = weighted_mean(&ranges, &weights, total);
            host.assert_makes(Kernel::WeightedMean(E::TYPE), &operands, (&weights, total), 0, &expected);
        }
    }
    match host() {
        Ok(host) => {
            check::<f16>(&host);
            check::<bf16>(&host);
        }
        Err(why) => println!("skipped, not here: {why}"),
    }
}

#[test]
fn the_compiler_for_gpus_takes_every_kernel_where_it_is() {
    let compiler = match Nvrtc::load() {
        Ok(compiler) => compiler,
        Err(error) => {
            assert!(matches!(error, CompilerError::NoCompiler { .. }), "{error}");
            return println!("skipped, not here: {error}");
        }
    };
    let known = compiler.known().unwrap();
    let (oldest, newest) = (*known.iter().min().unwrap(), *known.iter().max().unwrap());
    for kernel in Kernel::all() {
        let compiled = compiler.compile(&kernel.source(), Target::Portable(oldest)).unwrap();
        let text = String::from_utf8_lossy(&compiled);
        let name = kernel.name();
        assert!(text.contains(&format!(".visible .entry {name}(")), "{text}");
        // What the host passes is as long as what the kernel expects, and nothing is fused or flushed to zero.
        assert!(text.contains(&format!("{name}_param_0[{}]", size_of::<Places>())), "{text}");
        assert!(!text.contains("fma.") && !text.contains(".ftz"), "{name}");
    }
    let code = compiler
        .compile(&Kernel::Reduce(ReduceOp::Sum, ElementType::Bf16).source(), Target::Code(newest))
        .unwrap();
    assert_eq!(code[..4], *b"\x7fELF");
    println!("{} kernels for sm_{oldest}, one for sm_{newest}, of {known:?}", Kernel::all().len());
    let kernel = Kernel::WeightedMean(ElementType::Bf16);
    let refused = compiler.compile(&kernel.source(), Target::Code(1)).unwrap_err().to_string();
    assert!(refused.starts_with("weighted_mean_bf16: nvrtcCompileProgram: "), "{refused}");
}

#[test]
fn a_kernel_is_started_with_as_many_blocks_as_there_is_work_and_room_for() {
    assert!(
        TEXT.contains(&format!("#define RANKS_MAX {RANKS_MAX}\n"))
            && TEXT.contains(&format!("#define BLOCK {BLOCK}\n"))
    );
    assert_eq!([blocks(0, 132), blocks(512, 132), blocks(513, 132), blocks(usize::MAX, 132)], [1, 1, 2, 528]);
    assert_eq!(blocks(10_000, 0), 1);
    let (from, into) = ([256, 512], [1024]);
    let element = ElementType::F16;
    let work = |start, from| Work {
        kernel: Kernel::Reduce(ReduceOp::Sum, element),
        from,
        into: &into,
        weights: &[],
        total: 0.0,
        start,
        len: 20,
    };
    assert_eq!(work(8, &from).vectors(size_of_element(element)), 2);
    assert_eq!(work(4, &from).vectors(2), 0, "it begins within a vector");
    assert_eq!(work(0, &[256, 520]).vectors(2), 0, "an operand is not aligned");
    assert_eq!(Kernel::all().len(), 4 * 5 + 3 * 4 + 4);
}
