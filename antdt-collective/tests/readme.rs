//! What the README shows of the example works between two processes.
#![allow(clippy::disallowed_methods, reason = "a test of processes has deadlines")]

use std::error::Error;
use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

// Built beside the tests by whatever builds them.
fn example() -> Result<PathBuf, Box<dyn Error>> {
    let test = std::env::current_exe()?;
    let deps = test.parent().and_then(|deps| deps.parent()).ok_or("a test lies in a folder of a folder")?;
    let example = deps.join("examples").join("all_reduce");
    if !example.exists() {
        return Err(
            "the example is not built, as by `cargo test` without --test; run `cargo build --examples`"
                .into(),
        );
    }
    Ok(example)
}

fn output_of(mut child: Child) -> Result<String, Box<dyn Error>> {
    let mut output = String::new();
    child.stdout.take().ok_or("the output is piped")?.read_to_string(&mut output)?;
    let status = child.wait()?;
    if status.success() { Ok(output) } else { Err(format!("the example ended with {status}").into()) }
}

#[test]
fn two_processes_reduce_as_the_readme_says() -> Result<(), Box<dyn Error>> {
    // An address of this host that is this process's own, so that no other test can have taken the ports.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let host = format!("127.{}.{b}.{}", 1 + a % 250, 1 + c % 250);
    for (first, ports) in [(1, [7000, 7001]), (0, [7002, 7003])] {
        let addresses = ports.map(|port| format!("{host}:{port}"));
        let start = |rank: usize| {
            Command::new(example()?)
                .arg(rank.to_string())
                .args(&addresses)
                .stdout(Stdio::piped())
                .spawn()
                .map_err(Box::<dyn Error>::from)
        };
        let began = start(first)?;
        // Rank 0, which calls, does so as soon as it listens itself.
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&addresses[first]).is_err() {
            assert!(Instant::now() < deadline, "rank {first} does not listen");
            std::thread::yield_now();
        }
        for child in [start(1 - first)?, began] {
            assert_eq!(output_of(child)?, "[2.0, 4.0, 1.0]\n", "rank {first} was first");
        }
    }
    Ok(())
}
