//! The HTML page: time to the loss and throughput of every scheme against the slowness of one worker.

use std::fmt::Write;

use super::cell::{Measured, Scheme, Slow};
use crate::meter::median;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 40.0;

const COLOURS: [&str; 7] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#57606a"];

/// What is drawn of a cell; nothing where it was not reached.
type Figure = fn(&Measured) -> Option<f64>;

/// The page of all cells. `verdicts` are lines of text.
pub(super) fn page(title: &str, measured: &[Measured], verdicts: &[String]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>AntDT baselines</title>\n\
         <style>body{{font:15px sans-serif;max-width:960px;margin:2em auto;color:#1f2328}}\
         text{{font-size:12px}}</style>\n</head>\n<body>\n<h1>Baselines</h1>\n<p>{}</p>\n",
        escape(title)
    );
    let mut ratios: Vec<f64> = measured.iter().map(|it| it.cell.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    for ratio in ratios {
        for (name, figure) in [
            ("time to the loss, s", (|it| it.time_to_loss_s) as Figure),
            ("throughput, samples per s", |it| Some(it.throughput)),
        ] {
            let hint = "Against how many times slower one worker is; overloaded cells are left out.";
            let chart = chart(measured, ratio, figure);
            write!(page, "<h2>R_e {ratio}: {name}</h2>\n<p>{hint}</p>\n{chart}").expect("text");
        }
    }
    page += "<h2>Hypotheses</h2>\n<ul>\n";
    for verdict in verdicts {
        writeln!(page, "<li>{}</li>", escape(verdict)).expect("text");
    }
    page + "</ul>\n</body>\n</html>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The points of a scheme: slowness, and the middle one of the seeds.
fn points(measured: &[Measured], scheme: Scheme, ratio: f64, figure: Figure) -> Vec<(f64, f64)> {
    let mut found: Vec<(f64, f64)> = measured
        .iter()
        .filter(|it| it.cell.scheme == scheme && it.cell.slow == Slow::One && !it.is_overloaded())
        .filter(|it| (it.cell.ratio - ratio).abs() < 1e-9)
        .filter_map(|it| Some((it.cell.sigma, figure(it)?)))
        .collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found
        .chunk_by(|a, b| (a.0 - b.0).abs() < 1e-9)
        .map(|same| (same[0].0, median(same.iter().map(|point| point.1))))
        .collect()
}

fn chart(measured: &[Measured], ratio: f64, figure: Figure) -> String {
    let curves = Scheme::ALL.map(|scheme| (scheme, points(measured, scheme, ratio, figure)));
    let all = || curves.iter().flat_map(|(_, points)| points);
    let high = all().map(|point| point.1).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let slowest = all().map(|point| point.0).fold(2.0, f64::max);
    let x = |sigma: f64| LEFT + (sigma - 1.0) / (slowest - 1.0) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (1.0 - value / high) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n");
    for step in 0..=4 {
        let value = high * f64::from(step) / 4.0;
        let at = y(value);
        writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#d0d7de\"/><text x=\"4\" y=\"{at:.1}\">{value:.0}</text>",
            WIDTH - RIGHT
        )
        .expect("text");
    }
    let mut sigmas: Vec<f64> = all().map(|point| point.0).collect();
    sigmas.sort_by(f64::total_cmp);
    sigmas.dedup();
    for sigma in sigmas {
        let (at, low) = (x(sigma), HEIGHT - BOTTOM + 16.0);
        writeln!(svg, "<text x=\"{at:.1}\" y=\"{low}\" text-anchor=\"middle\">{sigma}x</text>")
            .expect("text");
    }
    for (at, (scheme, points)) in curves.iter().enumerate().filter(|(_, (_, points))| !points.is_empty()) {
        let colour = COLOURS[at % COLOURS.len()];
        // The second time round, lines are dashed.
        let dash = if at < COLOURS.len() { "" } else { " stroke-dasharray=\"6 4\"" };
        let line: Vec<String> =
            points.iter().map(|(sigma, value)| format!("{:.1},{:.1}", x(*sigma), y(*value))).collect();
        let legend = TOP + 20.0 * at as f64 + 8.0;
        let right = WIDTH - RIGHT + 12.0;
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}><title>{name}</title>\
             </polyline><path d=\"M{right} {legend}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            line.join(" "),
            right + 30.0,
            legend + 4.0,
            name = scheme.name(),
        )
        .expect("text");
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::super::cell::Cell;
    use super::*;

    #[test]
    fn the_page_draws_measured_cells_and_no_overloaded_one() {
        let of = |scheme, sigma, load| Measured {
            throughput: 100.0,
            load: Some(load),
            ..Measured::of(Cell::one_slow(scheme, sigma, 0.5, 1))
        };
        let all =
            [of(Scheme::AllReduce, 1.0, 0.1), of(Scheme::AllReduce, 5.0, 0.1), of(Scheme::AdPsgd, 1.0, 0.9)];
        let page = page("a < b", &all, &["H1: <holds>".to_owned()]);
        assert!(page.contains("<title>allreduce</title>") && !page.contains("<title>ad-psgd</title>"));
        assert!(page.contains("a &lt; b") && page.contains("H1: &lt;holds&gt;"));
        assert_eq!(page.matches("<svg").count(), 2, "time and throughput");
    }
}
