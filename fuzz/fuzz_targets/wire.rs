//! Reads bytes as each message of the shard service.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../antdt-proto/tests/wire/check.rs"]
mod check;

fuzz_target!(|bytes: &[u8]| {
    check::check(bytes);
});
