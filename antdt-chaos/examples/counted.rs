//! The counting job of `antdt/examples/counting.rs`, for the tests of this crate: its trained model is the count of what was trained.

#[path = "../../antdt/examples/counting.rs"]
mod counting;

fn main() -> std::process::ExitCode {
    counting::main()
}
