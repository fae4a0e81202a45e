//! An archive as the kernel unpacks it into its first file system: cpio in its "new ASCII" form.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive in the making. Every file may be executed and belongs to root.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    names: BTreeSet<String>,
}

impl Archive {
    /// Adds a file at an absolute path, with the folders above it; the first one there stays.
    pub(super) fn add(&mut self, path: &str, contents: &[u8]) {
        let name = path.trim_start_matches('/');
        for (at, _) in name.match_indices('/') {
            self.once(&name[..at], FOLDER, &[]);
        }
        self.once(name, PROGRAM, contents);
    }

    /// Adds what lies in a file of this machine.
    pub(super) fn copy(&mut self, from: &Path, path: &str) -> Result<()> {
        let contents = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.add(path, &contents);
        Ok(())
    }

    /// The archive with its end.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn once(&mut self, name: &str, mode: u32, contents: &[u8]) {
        if self.names.insert(name.to_owned()) {
            self.entry(name, mode, contents);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let len = u32::try_from(contents.len()).expect("a program has less than 4 GiB");
        let name_len = u32::try_from(name.len() + 1).expect("a path is short");
        // Number, mode, owner, group, links, time, length, the device and that of a device file, length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        let len = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(len, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_everything_once_folders_before_their_files_and_all_at_multiples_of_four() {
        let mut archive = Archive::default();
        archive.add("/a/b/one", b"12345");
        archive.add("/a/two", b"");
        archive.add("/a/two", b"again");
        let bytes = archive.finish();
        let (mut rest, mut seen) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let field = |index: usize| {
                let text = std::str::from_utf8(&rest[6 + 8 * index..14 + 8 * index]).expect("digits");
                usize::from_str_radix(text, 16).expect("a number")
            };
            assert_eq!(&rest[..6], b"070701");
            let (mode, len, name_len) = (field(1), field(6), field(11));
            let name = std::str::from_utf8(&rest[110..110 + name_len - 1]).expect("a name");
            let start = (110 + name_len).next_multiple_of(4);
            seen.push((name.to_owned(), mode, rest[start..start + len].to_vec()));
            rest = &rest[(start + len).next_multiple_of(4)..];
        }
        let entry = |name: &str, mode, contents: &[u8]| (name.to_owned(), mode, contents.to_vec());
        let expected = [
            entry("a", 0o040_755, b""),
            entry("a/b", 0o040_755, b""),
            entry("a/b/one", 0o100_755, b"12345"),
            entry("a/two", 0o100_755, b""),
            entry("TRAILER!!!", 0, b""),
        ];
        assert_eq!(seen, expected);
    }
}
