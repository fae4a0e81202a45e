//! Random bytes that nobody can guess.

use std::io;

/// Returns `LEN` random bytes of the system as hexadecimal digits.
///
/// # Errors
/// If the system gives none, or too few.
pub(crate) fn hex<const LEN: usize>() -> io::Result<String> {
    let mut bytes = [0_u8; LEN];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled != LEN {
        return Err(io::Error::other("too few random bytes"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
