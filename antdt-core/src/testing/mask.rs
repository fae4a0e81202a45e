//! [`Mask`]: a wrapper of streams that changes every byte, and the count of streams that it must have wrapped.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::connection::{StreamCodec, StreamEnd, StreamWrapper};

/// Changes every byte of a stream by its position, so that no end without it understands one that has it. Clones
/// count together.
#[derive(Debug, Clone, Default)]
pub struct Mask {
    codecs: Arc<[AtomicUsize; 2]>,
}

impl Mask {
    /// Returns how many streams were wrapped so far at this end of theirs.
    pub fn wrapped(&self, end: StreamEnd) -> usize {
        self.codecs[end as usize].load(Ordering::Relaxed)
    }
}

impl StreamWrapper for Mask {
    fn codec(&self, end: StreamEnd) -> Box<dyn StreamCodec> {
        self.codecs[end as usize].fetch_add(1, Ordering::Relaxed);
        Box::new(MaskCodec { encoded: 0, decoded: 0 })
    }
}

#[derive(Debug)]
struct MaskCodec {
    encoded: u64,
    decoded: u64,
}

fn mask(position: &mut u64, bytes: &[u8], into: &mut Vec<u8>) {
    into.extend(
        bytes.iter().zip(*position..).map(|(byte, at)| byte ^ (at.wrapping_mul(151) >> 3) as u8 ^ 0xa5),
    );
    *position += bytes.len() as u64;
}

impl StreamCodec for MaskCodec {
    fn encode(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> io::Result<()> {
        mask(&mut self.encoded, plain, wire);
        Ok(())
    }

    fn decode(&mut self, wire: &[u8], plain: &mut Vec<u8>, _: &mut Vec<u8>) -> io::Result<()> {
        mask(&mut self.decoded, wire, plain);
        Ok(())
    }
}

/// Returns the number of connected TCP sockets of this process, as Linux counts them: each stream of a test whose
/// peers are in the process has two.
///
/// # Panics
/// If the system does not say.
pub fn connected_sockets() -> usize {
    let fds = fs::read_dir("/proc/self/fd").expect("a system that lists descriptors");
    let links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()?.into_os_string().into_string().ok());
    let ours: BTreeSet<String> = links.collect();
    let table = fs::read_to_string("/proc/self/net/tcp").expect("a system that lists sockets");
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    // The fourth column is the state, of which 1 is connected, and the tenth the inode.
    rows.filter(|row| row[3] == "01" && ours.contains(&format!("socket:[{}]", row[9]))).count()
}
