//! What the program is told: which worlds.
//!
//! `cargo xtask` compiles this file once more, so that what is wrong is refused before minutes of building.

const USAGE: &str = "\
antdt-sim-chaos --seeds N [--from SEED]       run the random jobs of N seeds under all invariants
antdt-sim-chaos --seed SEED [--trace FILE]    run that of one, and make small what fails and tell its story; its recording goes to
                                          FILE and is replayed
antdt-sim-chaos --for SECONDS [--from SEED]   run until then";

/// Which worlds are run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order<'a> {
    /// That of one seed, and where its recording goes.
    One { seed: u64, trace: Option<&'a str> },
    /// Those of so many seeds, until so many seconds are over.
    Many { from: u64, count: u64, seconds: u64 },
}

/// What these arguments ask for, or why that cannot be.
pub(crate) fn parse<'a>(arguments: &[&'a str]) -> Result<Order<'a>, String> {
    match *arguments {
        ["--seed", seed] => Ok(Order::One { seed: number("--seed", seed)?, trace: None }),
        // Readers take what is called so for compressed.
        ["--seed", _, "--trace", trace] if trace.ends_with(".gz") => {
            Err(format!("--trace = {trace}: it is not compressed; leave .gz out"))
        }
        ["--seed", seed, "--trace", trace] => {
            Ok(Order::One { seed: number("--seed", seed)?, trace: Some(trace) })
        }
        ["--seeds", count] => {
            Ok(Order::Many { from: 0, count: number("--seeds", count)?, seconds: u64::MAX })
        }
        ["--seeds", count, "--from", from] => {
            let count = number("--seeds", count)?;
            Ok(Order::Many { from: number("--from", from)?, count, seconds: u64::MAX })
        }
        ["--for", seconds] => {
            Ok(Order::Many { from: 0, count: u64::MAX, seconds: number("--for", seconds)? })
        }
        ["--for", seconds, "--from", from] => {
            let seconds = number("--for", seconds)?;
            Ok(Order::Many { from: number("--from", from)?, count: u64::MAX, seconds })
        }
        [] => Err(USAGE.to_owned()),
        _ => Err(format!("`{}` is not understood\n{USAGE}", arguments.join(" "))),
    }
}

fn number(flag: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{flag} = {text}: must be a whole number\n{USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood_and_all_others_refused_with_the_usage() {
        let many = |from, count, seconds| Ok(Order::Many { from, count, seconds });
        assert_eq!(parse(&["--seeds", "9", "--from", "4"]), many(4, 9, u64::MAX));
        assert_eq!(parse(&["--for", "60"]), many(0, u64::MAX, 60));
        assert_eq!(parse(&["--seed", "7", "--trace", "x"]), Ok(Order::One { seed: 7, trace: Some("x") }));
        assert!(parse(&["--seed", "7", "--trace", "x.gz"]).unwrap_err().contains("leave .gz out"));
        for wrong in
            [&[][..], &["--seed"], &["--sedes", "9"], &["--seeds", "many"], &["--seeds", "9", "--trace", "x"]]
        {
            assert!(parse(wrong).unwrap_err().contains(USAGE), "{wrong:?}");
        }
    }
}
