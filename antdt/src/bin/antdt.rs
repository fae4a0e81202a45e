//! The `antdt` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    antdt::command::main()
}
