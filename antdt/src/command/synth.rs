//! `antdt data synth`: writes rows that are drawn.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use antdt_core::Seed;

use crate::cli::{CliError, DataSynth};
use crate::simulate::CommandOutput;

pub(super) fn data_synth(synth: &DataSynth) -> Result<CommandOutput, CliError> {
    let refused = |error: &dyn std::fmt::Display| {
        CliError::new(format!("--out = {}: {error}; name another file", synth.out.display()))
    };
    // The file is replaced in the end, whatever it is: a device must not be.
    match synth.out.metadata() {
        Ok(found) if !found.is_file() => return Err(refused(&"it is not a regular file")),
        Ok(_) if !synth.force => {
            let out = synth.out.display();
            let text = format!("--out = {out}: it exists; name another file, or replace it with --force");
            return Err(CliError::new(text));
        }
        _ => {}
    }
    // A reader of the file sees all of it or nothing.
    let part = part_of(synth);
    let file = File::create(&part).map_err(|error| refused(&error))?;
    let written = write_rows(synth, file).and_then(|()| std::fs::rename(&part, &synth.out));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&part);
        return Err(refused(&error));
    }
    Ok(CommandOutput { text: format!("{} rows in {}\n", synth.rows, synth.out.display()), good: true })
}

/// Where rows are until all are there: beside the file that they become.
pub(super) fn part_of(synth: &DataSynth) -> PathBuf {
    let mut part = synth.out.clone().into_os_string();
    part.push(".part");
    part.into()
}

fn write_rows(synth: &DataSynth, file: File) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    if synth.out.extension().is_some_and(|extension| extension == "gz") {
        let mut packed = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
        antdt_burn::write_tsv(synth.rows, Seed(synth.seed), &mut packed)?;
        packed.finish()?.flush()
    } else {
        antdt_burn::write_tsv(synth.rows, Seed(synth.seed), &mut out)?;
        out.flush()
    }
}
