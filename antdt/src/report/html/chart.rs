//! Charts as SVG text.

use super::{escape, push};
use crate::report::{ShardOutcome, ShardSpan};

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 26.0;

/// One line of a chart.
pub(crate) struct Curve {
    /// Classes that give it its colour.
    pub(crate) class: String,
    /// Shown when pointed at.
    pub(crate) title: String,
    /// Whether a value holds until the next point.
    pub(crate) steps: bool,
    /// Time in seconds, value; where a value is not finite the line is broken off.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A moment at which something was done.
pub(crate) struct Mark {
    /// Seconds.
    pub(crate) time_s: f64,
    /// Shown when pointed at.
    pub(crate) text: String,
    /// Whether a process was ended or started, which costs more than other things do.
    pub(crate) restart: bool,
}

impl Mark {
    /// Something that was done to `target`.
    pub(crate) fn new(time_s: f64, kind: &str, target: &str, reason: &str) -> Self {
        Self { time_s, text: format!("{kind} {target}: {reason}"), restart: kind.contains("RESTART") }
    }

    fn class(&self) -> &'static str {
        if self.restart { " restart" } else { "" }
    }
}

/// Curves over the job's time.
pub(crate) struct Chart<'a> {
    /// Written after the values of the value axis.
    pub(crate) unit: &'a str,
    /// Whether the value axis begins at 0, so that heights can be compared.
    pub(crate) from_zero: bool,
    /// End of the time axis at least, seconds.
    pub(crate) end_s: f64,
    /// End of the value axis; `None` if it is to fit what is drawn. What is above is cut off.
    pub(crate) high: Option<f64>,
    /// What is drawn.
    pub(crate) curves: &'a [Curve],
    /// When something was done.
    pub(crate) marks: &'a [Mark],
    /// When everything was committed, if that is to be shown.
    pub(crate) done_s: Option<f64>,
}

/// How long something took, as a bar.
#[cfg(feature = "cli")]
pub(crate) struct Bar {
    /// Written before it.
    pub(crate) name: String,
    /// Class that gives it its colour: good, note or bad.
    pub(crate) class: &'static str,
    /// Its end, seconds.
    pub(crate) to_s: f64,
    /// Written behind it.
    pub(crate) value: String,
    /// What was done meanwhile.
    pub(crate) marks: Vec<Mark>,
}

/// Spans of time in which a worker held a shard.
pub(crate) struct Timeline<'a> {
    /// Names of the rows.
    pub(crate) rows: &'a [&'a str],
    /// The spans; those of unknown workers are left out.
    pub(crate) spans: &'a [ShardSpan],
    /// End of the time axis at least, seconds.
    pub(crate) end_s: f64,
    /// Colours to go round.
    pub(crate) colours: usize,
    /// When something was done.
    pub(crate) marks: &'a [Mark],
}

/// A linear axis: values `from..to` onto pixels `at..at + length`.
struct Axis {
    from: f64,
    to: f64,
    at: f64,
    length: f64,
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        self.at + (value - self.from) / (self.to - self.from) * self.length
    }

    /// The time axis of a job.
    fn time(end_s: f64) -> Self {
        let end = if end_s.is_finite() && end_s > 0.0 { end_s } else { 1.0 };
        Self { from: 0.0, to: end, at: LEFT, length: WIDTH - LEFT - RIGHT }
    }

    /// The value axis of a chart of `points`.
    fn value(chart: &Chart<'_>, points: &[(f64, f64)]) -> Self {
        let low = points.iter().fold(f64::INFINITY, |low, (_, v)| low.min(*v));
        let highest = || points.iter().fold(f64::NEG_INFINITY, |high, (_, v)| high.max(*v));
        let high = chart.high.unwrap_or_else(highest);
        let low = if chart.from_zero { low.min(0.0) } else { low };
        // A flat curve still needs an axis with some height.
        let room = if high > low { (high - low) * 0.06 } else { high.abs().max(1.0) * 0.1 };
        let from = if chart.from_zero { low } else { low - room };
        Self { from, to: high + room, at: HEIGHT - BOTTOM, length: -(HEIGHT - BOTTOM - TOP) }
    }

    /// Round values, about `count` of them, and how many decimals they need.
    fn ticks(&self, count: f64) -> (Vec<f64>, usize) {
        let raw = (self.to - self.from).abs() / count;
        let power = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|step| *step >= raw).unwrap_or(raw);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count of digits")]
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let first = (self.from / step).ceil();
        let mut ticks = Vec::new();
        let mut k = 0.0;
        while (first + k) * step <= self.to + step * 1e-9 && ticks.len() < 50 {
            ticks.push((first + k) * step);
            k += 1.0;
        }
        (ticks, decimals)
    }
}

/// A line chart.
pub(crate) fn draw(chart: &Chart<'_>) -> String {
    let finite = |curve: &Curve| -> Vec<(f64, f64)> {
        curve.points.iter().copied().filter(|(t, v)| t.is_finite() && v.is_finite()).collect()
    };
    let all: Vec<(f64, f64)> = chart.curves.iter().flat_map(finite).collect();
    if all.is_empty() {
        return "<p class=\"hint\">No data.</p>\n".to_owned();
    }
    let x = Axis::time(all.iter().fold(chart.end_s, |end, (t, _)| end.max(*t)));
    let y = Axis::value(chart, &all);
    let mut svg = open(HEIGHT);
    value_ticks(&mut svg, &y, chart.unit);
    time_ticks(&mut svg, &x, HEIGHT);
    for curve in chart.curves {
        path(&mut svg, &x, &y, curve);
    }
    marks(&mut svg, &x, HEIGHT, chart.marks);
    if let Some(done) = chart.done_s.filter(|done| done.is_finite() && *done <= x.to) {
        let (at, bottom) = (x.place(done), HEIGHT - BOTTOM);
        push(
            &mut svg,
            format_args!(
                "<line class=\"done\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\">\
                 <title>{done:.1} s everything is committed</title></line>\n"
            ),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The line of a curve, from one gap to the next.
fn path(svg: &mut String, x: &Axis, y: &Axis, curve: &Curve) {
    let mut path = String::new();
    let mut is_drawn = false;
    for (t, v) in curve.points.iter().copied().filter(|(t, _)| t.is_finite()) {
        if v.is_finite() {
            let (px, py) = (x.place(t), y.place(v).max(TOP));
            match is_drawn {
                false => push(&mut path, format_args!("M{px:.1} {py:.1}")),
                true if curve.steps => push(&mut path, format_args!("H{px:.1}V{py:.1}")),
                true => push(&mut path, format_args!("L{px:.1} {py:.1}")),
            }
        }
        is_drawn = v.is_finite();
    }
    if !path.is_empty() {
        let (class, title) = (&curve.class, escape(&curve.title));
        push(svg, format_args!("<path class=\"curve {class}\" d=\"{path}\"><title>{title}</title></path>\n"));
    }
}

/// A bar from 0 for each of several, over one time axis, with ticks where something was done.
#[cfg(feature = "cli")]
pub(crate) fn draw_bars(bars: &[Bar], end_s: f64) -> String {
    const ROW: f64 = 34.0;
    /// Of a character on average, in pixels.
    const CHARACTER: f64 = 7.2;
    /// Longer names are cut; pointed at, they are shown whole.
    const NAME_MAX: usize = 40;
    #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
    let height = TOP + BOTTOM + ROW * bars.len() as f64;
    let mut x = Axis::time(end_s);
    let width = |texts: &mut dyn Iterator<Item = &str>| {
        let longest = texts.map(|text| text.chars().count().min(NAME_MAX)).max().unwrap_or(0);
        #[allow(clippy::cast_precision_loss, reason = "a count of characters")]
        let longest = longest as f64;
        longest * CHARACTER + 14.0
    };
    x.at = width(&mut bars.iter().map(|bar| bar.name.as_str())).max(LEFT);
    x.length = WIDTH - x.at - width(&mut bars.iter().map(|bar| bar.value.as_str())).max(RIGHT);
    let mut svg = open(height);
    time_ticks(&mut svg, &x, height);
    for (i, bar) in bars.iter().enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
        let top = TOP + ROW * i as f64;
        push(
            &mut svg,
            format_args!(
                "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}<title>{}</title></text>\
                 <rect class=\"bar {}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"22\"/>\
                 <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                x.at - 6.0,
                top + ROW / 2.0 + 4.0,
                escape(&cut(&bar.name, NAME_MAX)),
                escape(&bar.name),
                bar.class,
                x.at,
                top + 6.0,
                (x.place(bar.to_s) - x.at).max(1.0),
                x.place(bar.to_s) + 7.0,
                top + ROW / 2.0 + 4.0,
                escape(&bar.value),
            ),
        );
        for mark in bar.marks.iter().filter(|mark| mark.time_s.is_finite() && mark.time_s <= x.to) {
            let (at, time) = (x.place(mark.time_s), mark.time_s);
            push(
                &mut svg,
                format_args!(
                    "<g><line class=\"tick{}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>\
                     <line class=\"reach\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>\
                     <title>{time:.1} s {}</title></g>\n",
                    mark.class(),
                    escape(&mark.text),
                    y1 = top + 3.0,
                    y2 = top + 31.0,
                ),
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// At most so many characters of a text.
#[cfg(feature = "cli")]
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// A row per worker, a bar per shard. Bars too thin to see are drawn as one.
pub(crate) fn draw_timeline(timeline: &Timeline<'_>) -> String {
    const ROW: f64 = 26.0;
    if timeline.spans.is_empty() {
        return "<p class=\"hint\">No data.</p>\n".to_owned();
    }
    #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
    let height = TOP + BOTTOM + ROW * timeline.rows.len() as f64;
    let end =
        timeline.spans.iter().map(|span| span.to_s).filter(|t| t.is_finite()).fold(timeline.end_s, f64::max);
    let x = Axis::time(end);
    let mut svg = open(height);
    svg.push_str(
        "<defs><pattern id=\"broken\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><line class=\"hatch\" y2=\"6\"/></pattern></defs>\n",
    );
    time_ticks(&mut svg, &x, height);
    for (i, name) in timeline.rows.iter().enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
        let top = TOP + ROW * i as f64;
        push(
            &mut svg,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n<g class=\"c{} w{i}\">",
                LEFT - 6.0,
                top + ROW / 2.0 + 4.0,
                escape(name),
                i % timeline.colours,
            ),
        );
        for bar in bars(timeline.spans.iter().filter(|span| span.worker == *name), &x) {
            // A holder may have its next shard in hand already: the second one is drawn below the first.
            let (dy, h) = if bar.lane == 0 { (3.0, 12.0) } else { (16.0, 7.0) };
            push(
                &mut svg,
                format_args!(
                    "<rect class=\"span{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{h}\"><title>{}</title></rect>",
                    if bar.broken { " broken" } else { "" },
                    bar.from,
                    top + dy,
                    (bar.to - bar.from).max(1.0),
                    escape(&bar.title),
                ),
            );
        }
        svg.push_str("</g>\n");
    }
    marks(&mut svg, &x, height, timeline.marks);
    svg.push_str("</svg>\n");
    svg
}

struct ShardBar {
    from: f64,
    to: f64,
    lane: usize,
    broken: bool,
    title: String,
    shards: u64,
}

fn bars<'a>(spans: impl Iterator<Item = &'a ShardSpan>, x: &Axis) -> Vec<ShardBar> {
    /// Bars narrower than this are joined with their neighbour, in pixels.
    const THIN: f64 = 1.5;
    let mut bars: Vec<ShardBar> = Vec::new();
    // Where each lane is free again, and its newest bar.
    let mut lanes: [(f64, Option<usize>); 2] = [(f64::NEG_INFINITY, None); 2];
    for span in spans.filter(|span| span.from_s.is_finite() && span.to_s.is_finite()) {
        let (from, to) = (x.place(span.from_s), x.place(span.to_s.max(span.from_s)));
        let lane = usize::from(from + 0.05 < lanes[0].0 && lanes[1].0 <= lanes[0].0);
        let broken = span.outcome != ShardOutcome::Done;
        if let (_, Some(newest)) = lanes[lane]
            && let bar = &mut bars[newest]
            && bar.to - bar.from < THIN
            && to - from < THIN
            && from - bar.to < THIN
            && !broken
            && !bar.broken
        {
            bar.to = bar.to.max(to);
            bar.shards += 1;
            bar.title = format!("{} shards up to {:.2} s", bar.shards, span.to_s);
        } else {
            let outcome = match span.outcome {
                ShardOutcome::Done => "done",
                ShardOutcome::Released => "given back",
                ShardOutcome::Lost => "lost with its holder",
                ShardOutcome::Failed => "could not be read",
            };
            let title = format!(
                "epoch {}, shard {}: {:.2} s to {:.2} s, {outcome}",
                span.epoch, span.index, span.from_s, span.to_s
            );
            lanes[lane].1 = Some(bars.len());
            bars.push(ShardBar { from, to, lane, broken, title, shards: 1 });
        }
        lanes[lane].0 = lanes[lane].0.max(to);
    }
    bars
}

fn open(height: f64) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n")
}

fn value_ticks(svg: &mut String, y: &Axis, unit: &str) {
    let (ticks, decimals) = y.ticks(6.0);
    for tick in ticks {
        let at = y.place(tick);
        push(
            svg,
            format_args!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick:.decimals$}{unit}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
            ),
        );
    }
    svg.push('\n');
}

fn time_ticks(svg: &mut String, x: &Axis, height: f64) {
    let (ticks, decimals) = x.ticks(8.0);
    for tick in ticks {
        let at = x.place(tick);
        push(
            svg,
            format_args!(
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick:.decimals$} s</text>",
                height - BOTTOM,
                height - BOTTOM + 17.0,
            ),
        );
    }
    svg.push('\n');
}

fn marks(svg: &mut String, x: &Axis, height: f64, marks: &[Mark]) {
    for mark in marks.iter().filter(|mark| mark.time_s.is_finite() && mark.time_s <= x.to) {
        let at = x.place(mark.time_s);
        let bottom = height - BOTTOM;
        // The second line is invisible and wide enough to be pointed at.
        push(
            svg,
            format_args!(
                "<g><line class=\"mark{}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
                 <line class=\"reach\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
                 <title>{:.1} s {}</title></g>\n",
                mark.class(),
                mark.time_s,
                escape(&mark.text),
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from_s: f64, to_s: f64, outcome: ShardOutcome) -> ShardSpan {
        ShardSpan { worker: "worker-0".to_owned(), epoch: 0, index: 0, from_s, to_s, outcome }
    }

    #[test]
    fn ticks_are_round_and_inside_the_axis() {
        let axis = Axis { from: 0.0, to: 61.3, at: 0.0, length: 1.0 };
        assert_eq!(axis.ticks(8.0), (vec![0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0], 0));
        let axis = Axis { from: 0.0, to: 0.043, at: 0.0, length: 1.0 };
        let (ticks, decimals) = axis.ticks(4.0);
        assert_eq!((ticks.len(), decimals), (3, 2));
    }

    #[test]
    fn thousands_of_thin_bars_are_drawn_as_few() {
        let spans: Vec<_> = (0..20_000)
            .map(|i| span(f64::from(i) * 0.01, f64::from(i + 1) * 0.01, ShardOutcome::Done))
            .collect();
        let bars = bars(spans.iter(), &Axis::time(200.0));
        assert!(bars.len() < 1100, "{}", bars.len());
        assert_eq!(bars.iter().map(|bar| bar.shards).sum::<u64>(), 20_000);
    }

    #[test]
    fn a_second_shard_in_hand_is_drawn_below_the_first() {
        let spans = [span(0.0, 10.0, ShardOutcome::Done), span(8.0, 20.0, ShardOutcome::Lost)];
        let bars = bars(spans.iter(), &Axis::time(20.0));
        assert_eq!((bars[0].lane, bars[1].lane), (0, 1));
        assert!(bars[1].broken && !bars[0].broken);
    }

    #[test]
    fn a_line_is_broken_off_where_values_are_not_finite() {
        let curves = [Curve {
            class: "c0".to_owned(),
            title: "t".to_owned(),
            steps: false,
            points: vec![(0.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0), (2.0, 1.0)],
        }];
        let svg = draw(&Chart {
            unit: " s",
            from_zero: true,
            end_s: 2.0,
            high: None,
            curves: &curves,
            marks: &[],
            done_s: None,
        });
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let path = svg.split(" d=\"").nth(1).and_then(|path| path.split('"').next()).unwrap_or_default();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0), "{path}");
    }

    #[test]
    fn a_chart_without_points_says_so() {
        assert!(
            draw(&Chart {
                unit: "",
                from_zero: false,
                end_s: 0.0,
                high: None,
                curves: &[],
                marks: &[],
                done_s: None
            })
            .contains("No data")
        );
    }
}
