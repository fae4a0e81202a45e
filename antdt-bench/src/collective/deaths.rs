//! Time from the death of a rank until every other rank knows of it.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::time::ClockId;

use super::OTHERS_MAX;
use super::crew::Crew;
use super::order::{Done, Failed};
use crate::meter::{Others, clock_time, quantile};
use crate::{Entry, Rows};

/// Bytes that are being reduced when it happens.
const BYTES: usize = 4 << 20;
/// The longest that 99 % of the survivors may take, in milliseconds.
const TARGET_MS: f64 = 50.0;
/// Deaths come at different moments of a reduction: this long after the first ones have gone well, times 0 to 12.
const MOMENT: Duration = Duration::from_micros(1700);

/// Kills one rank of a group at work, `deaths` times.
pub(super) fn deaths(
    start: impl Fn() -> Result<Crew>,
    title: &str,
    deaths: u32,
    slack: f64,
    rows: &mut Rows,
) -> Result<()> {
    let watched = Others::watch();
    let (mut took, mut misnamed) = (Vec::new(), 0_u32);
    for death in 0..deaths {
        let mut crew = start()?;
        let victim = death as usize % crew.world();
        let _: Vec<Done> = crew.order(&format!("repeat {BYTES}"))?;
        thread::sleep(MOMENT * (death * 5 % 13));
        let killed = clock_time(ClockId::Monotonic);
        crew.kill(victim)?;
        for rank in (0..crew.world()).filter(|rank| *rank != victim) {
            let Failed { at_ns, culprit, .. } = crew.hear(rank)?;
            took.push(Duration::from_nanos(at_ns).saturating_sub(killed));
            misnamed += u32::from(culprit.map(|rank| rank as usize) != Some(victim));
        }
    }
    ensure!(!took.is_empty(), "nobody survived to tell");
    let survivors = took.len();
    let mut ms = |share: f64| quantile(&mut took, share).as_secs_f64() * 1e3;
    let (half, most) = (ms(0.5), ms(1.0));
    rows.push(
        Entry::shown(format!("{title}: death to error, p99 of {survivors} survivors"), ms(0.99), "ms")
            .at_most(TARGET_MS * slack)
            .beside(format!("median {half:.1} ms, longest {most:.1} ms"))
            .unless_overloaded(watched.share(), OTHERS_MAX),
    );
    rows.push(
        Entry::shown(format!("{title}: survivors that blame another"), f64::from(misnamed), "ranks")
            .at_most(0.0),
    );
    Ok(())
}
