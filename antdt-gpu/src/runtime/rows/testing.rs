//! Table rows in the memory of a process instead of a GPU, for tests: a program runs the GPU kernels on the CPU of this
//! machine. The C++ compiler builds it, with checks of addresses, from the source text that a GPU gets. [`FailingRows`] is a
//! memory that fails when a test says so. Feature `testing`.

mod failing;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub use self::failing::FailingRows;

use antdt_collective::runtime::region::DevicePlace;

use super::card::Card;
use super::kernel::{RowKernel, TEXT, Work};
use super::store::Store;
use super::{RowMemory, RowShape, RowsError};

/// Threads of the grid: more than a small batch has elements, fewer than a large one has.
const THREADS: u64 = 100;

/// A program for the CPU of this machine, compiled from the GPU kernels that read and update table rows.
#[derive(Debug)]
pub struct HostKernels {
    folder: PathBuf,
}

impl HostKernels {
    /// Compiles the kernels with `g++`, with checks of every address.
    ///
    /// # Errors
    /// If this machine has no `g++`.
    ///
    /// # Panics
    /// If the compiler refuses the kernels.
    pub fn build() -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("antdt-rows-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let kernels = Self { folder };
        let write = |name: &str, text: &str| std::fs::write(kernels.folder.join(name), text);
        write("host.cpp", include_str!("host.cpp"))
            .and_then(|()| write("rows.cu", TEXT))
            .map_err(|error| error.to_string())?;
        let options = [
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            "-Wno-unknown-pragmas",
            "-Werror",
        ];
        let mut compiler = Command::new("g++");
        compiler.args(options).arg("-o").arg(kernels.program()).arg(kernels.folder.join("host.cpp"));
        let output = compiler.output().map_err(|error| format!("no g++ ({error})"))?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(kernels)
    }

    /// Starts a process that runs the kernels, and returns `slots` zeroed slots in its memory.
    ///
    /// # Errors
    /// If no GPU takes rows of this shape, or the process cannot be started.
    pub fn rows(&self, shape: RowShape, slots: u32) -> Result<Box<dyn RowMemory>, RowsError> {
        Ok(Box::new(self.store(shape, slots)?))
    }

    pub(super) fn store(&self, shape: RowShape, slots: u32) -> Result<Store<HostCard>, RowsError> {
        Store::new(self.card()?, shape, slots)
    }

    /// Starts a process that runs the kernels.
    pub(in crate::runtime) fn card(&self) -> Result<HostCard, RowsError> {
        HostCard::start(&self.program())
    }

    fn program(&self) -> PathBuf {
        self.folder.join("rows")
    }
}

impl Drop for HostKernels {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(in crate::runtime) struct HostCard {
    process: Child,
    // Closed first, which ends the process.
    commands: Option<BufWriter<ChildStdin>>,
    answers: BufReader<ChildStdout>,
    /// What was allocated, with its length.
    held: BTreeMap<u64, u64>,
}

#[allow(clippy::needless_pass_by_value, reason = "what `map_err` hands over")]
fn failed(error: std::io::Error) -> RowsError {
    RowsError::Device(format!("the program that runs the kernels has ended: {error}"))
}

impl HostCard {
    fn start(program: &Path) -> Result<Self, RowsError> {
        // Memory that is still there at its end is no fault.
        let mut command = Command::new(program);
        command.env("ASAN_OPTIONS", "detect_leaks=0").stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let mut process = started.map_err(|error| RowsError::None(error.to_string()))?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (commands, answers) = pipes.ok_or_else(|| RowsError::None("no pipes".to_owned()))?;
        Ok(Self {
            process,
            commands: Some(BufWriter::new(commands)),
            answers: BufReader::new(answers),
            held: BTreeMap::new(),
        })
    }

    fn say(&mut self, command: u8, numbers: &[u64], bytes: &[u8]) -> Result<(), RowsError> {
        let commands = self.commands.as_mut().ok_or_else(|| RowsError::None("it has ended".to_owned()))?;
        let said = commands.write_all(&[command]);
        let said = said.and_then(|()| commands.write_all(bytemuck::cast_slice(numbers)));
        said.and_then(|()| commands.write_all(bytes)).map_err(failed)
    }

    fn hear(&mut self, into: &mut [u8]) -> Result<(), RowsError> {
        self.commands.as_mut().map_or(Ok(()), BufWriter::flush).map_err(failed)?;
        self.answers.read_exact(into).map_err(failed)
    }
}

impl Card for HostCard {
    fn allocate(&mut self, len_bytes: usize) -> Result<u64, RowsError> {
        let mut address = [0; 8];
        self.say(b'a', &[len_bytes as u64], &[])?;
        self.hear(&mut address)?;
        let address = u64::from_ne_bytes(address);
        self.held.insert(address, len_bytes as u64);
        Ok(address)
    }

    fn release(&mut self, address: u64) {
        self.held.remove(&address);
        let _ = self.say(b'f', &[address], &[]);
    }

    fn place(&self, address: u64) -> DevicePlace {
        DevicePlace { gpu: 0, address, stream: 0 }
    }

    fn up(&mut self, address: u64, bytes: &[u8]) -> Result<(), RowsError> {
        self.say(b'w', &[address, bytes.len() as u64], bytes)
    }

    fn start(&mut self, kernel: RowKernel, work: &Work) -> Result<(), RowsError> {
        self.say(b'k', &[kernel as u64, THREADS], &work.bytes())
    }

    fn holds(&mut self, address: u64) -> Result<bool, RowsError> {
        let before = self.held.range(..=address).next_back();
        Ok(before.is_some_and(|(begin, len)| address - begin < *len))
    }

    fn copy(&mut self, from: u64, to: u64, len_bytes: usize) -> Result<(), RowsError> {
        self.say(b'c', &[from, to, len_bytes as u64], &[])
    }

    fn down(&mut self, address: u64, into: &mut [u8]) -> Result<(), RowsError> {
        self.say(b'r', &[address, into.len() as u64], &[])?;
        self.hear(into)
    }

    // The process does one command after another, and ends at the first that fails.
    fn finish(&mut self) -> Result<(), RowsError> {
        self.say(b'e', &[1], &[])?;
        self.hear(&mut [0; 8])
    }
}

impl Drop for HostCard {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.process.wait();
    }
}

impl fmt::Debug for HostCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostCard({})", self.process.id())
    }
}
