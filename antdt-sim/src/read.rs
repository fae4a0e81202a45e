//! Files that users name, with any content: read as text, and never more of them than memory holds.

use std::io::{self, BufRead, Read};

/// Bytes of a text that is read whole: 14 million rows of a CSV take a quarter of it.
const TEXT_MAX: u64 = 1 << 30;

/// Bytes of a line of a trace. The longest ones list all members of a group, about a hundred bytes each.
const LINE_MAX: u64 = 1 << 28;

/// The whole text.
///
/// # Errors
/// If it cannot be read, is no UTF-8, or is too long.
pub(crate) fn text(mut from: impl BufRead) -> io::Result<String> {
    // What is no text mostly shows it at once, and may have no end.
    if from.fill_buf()?.contains(&0) {
        return Err(no_text());
    }
    let mut bytes = Vec::new();
    from.take(TEXT_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TEXT_MAX {
        return Err(too_long("it", TEXT_MAX));
    }
    String::from_utf8(bytes).map_err(|_| no_text())
}

/// Appends the next line with its end, as [`BufRead::read_until`] does.
///
/// # Errors
/// If it cannot be read, or is too long.
pub(crate) fn line(from: &mut impl BufRead, into: &mut Vec<u8>) -> io::Result<usize> {
    let read = from.take(LINE_MAX).read_until(b'\n', into)?;
    if read as u64 == LINE_MAX && into.last() != Some(&b'\n') {
        return Err(too_long("a line", LINE_MAX));
    }
    Ok(read)
}

fn no_text() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not a text in UTF-8")
}

fn too_long(what: &str, most: u64) -> io::Error {
    let why = format!("{what} is longer than {} MiB", most >> 20);
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, repeat};

    use super::*;

    #[test]
    fn a_file_without_end_is_refused_before_memory_ends() {
        let refused = |byte| text(BufReader::new(repeat(byte))).unwrap_err().to_string();
        assert_eq!(refused(0), "it is not a text in UTF-8");
        assert_eq!(refused(b'0'), "it is longer than 1024 MiB");
        let mut into = Vec::new();
        let error = line(&mut BufReader::new(repeat(0)), &mut into).unwrap_err().to_string();
        assert_eq!(error, "a line is longer than 256 MiB");
    }

    #[test]
    fn text_is_read_whole_and_by_lines() {
        assert_eq!(text(&b"a\nb"[..]).unwrap(), "a\nb");
        assert_eq!(text(&b"\xff"[..]).unwrap_err().to_string(), "it is not a text in UTF-8");
        let (mut from, mut into) = (&b"a\nb"[..], Vec::new());
        let read = [0; 3].map(|_| line(&mut from, &mut into).unwrap());
        assert_eq!((read, into), ([2, 1, 0], b"a\nb".to_vec()));
    }
}
