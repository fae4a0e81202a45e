//! `antdt` whose processes change every byte that they send each other. Each notes its streams in the file that the variable
//! `MASKED_STREAMS` names:
//! `MASKED_STREAMS=streams cargo run -p antdt --example masked -- run --nproc-per-node 2 --transport tcp --data synthetic:10000`
use std::fs::File;
use std::io::Write;

use antdt::JobBuilder;
use antdt::core::testing::Mask;
use antdt::core::{StreamCodec, StreamEnd, StreamWrapper};

#[derive(Debug, Default)]
struct NotedMask(Mask);

impl StreamWrapper for NotedMask {
    fn codec(&self, end: StreamEnd) -> Box<dyn StreamCodec> {
        let path = std::env::var_os("MASKED_STREAMS").expect("it is set");
        let command = std::env::args().nth(1).expect("a job's processes have commands");
        let mut notes = File::options().create(true).append(true).open(path).expect("it can be written to");
        notes.write_all(format!("{command} {end:?}\n").as_bytes()).expect("there is room");
        self.0.codec(end)
    }
}

fn main() -> std::process::ExitCode {
    JobBuilder::new().connections(NotedMask::default()).main()
}
