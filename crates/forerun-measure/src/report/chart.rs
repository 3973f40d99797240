//! Plots as inline SVG: lines over an ordered axis, or bars.
//!
//! ```text
//!  Lines   y |        .--o interleaved      each point shows the range from the slowest to the fastest round;
//!            |    .--'   x single           series are labelled at their ends, in order of their last values
//!            +--+---+---+
//!               1   8   64
//!
//!  Bars    64   interleaved |======|-| 2.4 M    one bar per series, grouped by the axis entries
//!               single      |=|        0.4 M
//! ```

use super::escape;
use super::palette::{MARKERS, Palette, Style};
use crate::size::short;
use std::fmt::Write;

/// The shape of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One line per series over the entries of the axis, evenly spaced in order.
    Lines,
    /// One horizontal bar per value.
    Bars,
}

/// The scale of the vertical axis of [`Shape::Lines`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from zero.
    #[default]
    Linear,
    /// Logarithmic, from the lowest value: equal ratios have equal distances. For values that span
    /// more than about a factor of ten.
    Log,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// A note that helps to read the plot; may be empty.
    pub note: String,
    /// The label of the axis.
    pub x_label: String,
    /// The label of the values.
    pub y_label: String,
    /// The entries of the axis.
    pub x: Vec<String>,
    /// The series.
    pub series: Vec<Series>,
    /// A reference value and its name.
    pub reference: Option<(f64, String)>,
    /// The format of values.
    pub format: fn(f64) -> String,
    /// The scale of values. Bars always have a linear scale from zero.
    pub scale: Scale,
    shape: Shape,
}

/// The values of a series over the entries of the axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The series' name.
    pub name: String,
    /// The value, the minimum and the maximum for each entry; `None` if it was not measured.
    pub values: Vec<Option<(f64, f64, f64)>>,
}

impl Chart {
    /// Creates an empty plot. Values are formatted as rates (`2.41 M`).
    pub fn new(title: impl Into<String>, shape: Shape) -> Chart {
        Chart {
            title: title.into(),
            note: String::new(),
            x_label: String::new(),
            y_label: String::new(),
            x: Vec::new(),
            series: Vec::new(),
            reference: None,
            format: short,
            scale: Scale::default(),
            shape,
        }
    }

    /// Appends a series: for each entry of the axis the value, the minimum and the maximum. A value
    /// that is negative or not finite counts as not measured.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = Option<(f64, f64, f64)>>,
    ) {
        let fits = |&(y, low, high): &(f64, f64, f64)| {
            [y, low, high].iter().all(|v| v.is_finite() && *v >= 0.0)
        };
        let values = values.into_iter().take(self.x.len());
        let mut values: Vec<_> = values.map(|value| value.filter(fits)).collect();
        values.resize(self.x.len(), None);
        let name = name.into();
        self.series.push(Series { name, values });
    }

    pub(super) fn write_html(&self, palette: &Palette, out: &mut String) -> std::fmt::Result {
        let (title, note) = (escape(&self.title), escape(&self.note));
        write!(out, "<figure><figcaption><b>{title}</b>")?;
        if !note.is_empty() {
            write!(out, "<span>{note}</span>")?;
        }
        out.push_str("</figcaption>\n");
        match self.shape {
            Shape::Lines => self.write_lines(palette, out)?,
            Shape::Bars => self.write_bars(palette, out)?,
        }
        out.push_str("</figure>\n");
        Ok(())
    }

    /// The ticks of the vertical axis, from lowest to highest. All values lie between them.
    fn ticks(&self) -> Vec<f64> {
        if self.scale == Scale::Log
            && let Some(ticks) = self.log_ticks()
        {
            return ticks;
        }
        let (step, count) = self.even_scale(6.0);
        (0..=count).map(|tick| step * tick as f64).collect()
    }

    /// Ticks at 1, 2 and 5 times the powers of ten around the values. `None` if no value is above
    /// zero.
    fn log_ticks(&self) -> Option<Vec<f64>> {
        let values = self.series.iter().flat_map(|s| s.values.iter().flatten());
        let reference = self.reference.iter().map(|(value, _)| *value);
        let values = values
            .flat_map(|&(y, low, high)| [y, low, high])
            .chain(reference);
        let (mut low, mut high) = (f64::INFINITY, 0f64);
        for value in values.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            return None;
        }
        let power = low.log10().floor() as i32;
        let steps =
            (power..).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
        let mut ticks: Vec<f64> = Vec::new();
        for tick in steps {
            // The last tick at or below the minimum value is the first one shown.
            if tick <= low {
                ticks.clear();
            }
            ticks.push(tick);
            if tick >= high && ticks.len() > 1 {
                return Some(ticks);
            }
        }
        None
    }

    /// The distance between ticks and their number, from zero to at least the maximum value.
    fn even_scale(&self, ticks: f64) -> (f64, usize) {
        let values = self.series.iter().flat_map(|s| s.values.iter().flatten());
        let highest = values.map(|value| value.0.max(value.2));
        let reference = self.reference.iter().map(|(value, _)| *value);
        let top = highest.chain(reference).fold(0.0, f64::max);
        let top = if top > 0.0 { top } else { 1.0 };
        let rough = top / ticks;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(10.0 * power);
        (step, (top / step).ceil() as usize)
    }

    /// The label of a tick: the formatted value without trailing zeros (`2 M`, not `2.00 M`).
    fn tick(&self, value: f64) -> String {
        if value == 0.0 {
            return "0".to_owned();
        }
        let text = (self.format)(value);
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        if !number.contains('.') {
            return text;
        }
        let number = number.trim_end_matches('0').trim_end_matches('.');
        format!("{number}{unit}")
    }

    /// The tooltip of a value.
    fn tooltip(&self, series: &Series, at: usize, (y, low, high): (f64, f64, f64)) -> String {
        let f = self.format;
        let text = format!(
            "{}, {} {}: {} ({} to {})",
            series.name,
            self.x_label,
            self.x[at],
            f(y),
            f(low),
            f(high)
        );
        escape(&text)
    }

    fn write_lines(&self, palette: &Palette, out: &mut String) -> std::fmt::Result {
        const WIDTH: f64 = 880.0;
        const HEIGHT: f64 = 360.0;
        const LEFT: f64 = 62.0;
        const RIGHT: f64 = 700.0;
        const TOP: f64 = 30.0;
        const BOTTOM: f64 = 312.0;
        let ticks = self.ticks();
        let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
        let y_of = |value: f64| {
            let share = if first > 0.0 {
                // A logarithmic scale has no zero: draw it at the bottom.
                (value.max(first) / first).ln() / (last / first).ln()
            } else {
                value / last
            };
            BOTTOM - share * (BOTTOM - TOP)
        };
        let slot = (RIGHT - LEFT) / self.x.len().max(1) as f64;
        let x_of = |at: usize| LEFT + slot * (at as f64 + 0.5);
        let (x_label, y_label) = (escape(&self.x_label), escape(&self.y_label));
        writeln!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title)
        )?;
        writeln!(
            out,
            "<text class=\"soft\" x=\"4\" y=\"14\">{y_label}</text>"
        )?;
        for (tick, value) in ticks.into_iter().enumerate() {
            let y = y_of(value);
            let class = if tick == 0 { "axis" } else { "grid" };
            let text = self.tick(value);
            writeln!(
                out,
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                escape(&text)
            )?;
        }
        let step = self.label_step(slot);
        for (at, entry) in self.x.iter().enumerate().step_by(step) {
            writeln!(
                out,
                "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x_of(at),
                BOTTOM + 18.0,
                escape(entry)
            )?;
        }
        writeln!(
            out,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_label}</text>",
            (LEFT + RIGHT) / 2.0,
            BOTTOM + 38.0
        )?;
        if let Some((value, name)) = &self.reference {
            let y = y_of(*value);
            writeln!(
                out,
                "<line class=\"reference\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" \
                 y2=\"{y:.1}\"/><text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                RIGHT - 4.0,
                y + 15.0,
                escape(name)
            )?;
        }
        let mut ends = Vec::new();
        for (number, series) in self.series.iter().enumerate() {
            let style = palette.style(&series.name);
            writeln!(out, "<g class=\"s{}\">", style.colour())?;
            let points = series.values.iter().enumerate();
            let points: Vec<_> = points.filter_map(|(at, v)| Some((at, (*v)?))).collect();
            out.push_str("<polyline class=\"curve\" points=\"");
            for (at, (y, ..)) in &points {
                write!(out, "{:.1},{:.1} ", x_of(*at), y_of(*y))?;
            }
            out.push_str("\"/>\n");
            for (at, value) in &points {
                let (x, y) = (x_of(*at), y_of(value.0));
                // Markers would overlap where labels do.
                let mark = if at % step == 0 {
                    mark(style, x, y)
                } else {
                    String::new()
                };
                writeln!(
                    out,
                    "<g class=\"point\"><title>{}</title>\
                     <line class=\"spread\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
                     <path class=\"mark\" d=\"{mark}\"/></g>",
                    self.tooltip(series, *at, *value),
                    y_of(value.1),
                    y_of(value.2)
                )?;
            }
            out.push_str("</g>\n");
            if let Some((at, (y, ..))) = points.last() {
                ends.push((y_of(*y), x_of(*at), number));
            }
        }
        self.write_ends(palette, out, ends, TOP, RIGHT)?;
        out.push_str("</svg>\n");
        Ok(())
    }

    /// Of how many entries of the axis one gets its label, so that labels do not overlap. An entry
    /// takes `slot` pixels.
    fn label_step(&self, slot: f64) -> usize {
        const LETTER: f64 = 7.0;
        let letters = self.x.iter().map(|entry| entry.chars().count()).max();
        let width = LETTER * (letters.unwrap_or(0) + 1) as f64;
        ((width / slot).ceil() as usize).max(1)
    }

    /// Labels the series at their ends. `ends` holds the height, the position on the axis and the
    /// number of each series. Labels that would overlap move apart: first downwards, then as a
    /// block up again.
    fn write_ends(
        &self,
        palette: &Palette,
        out: &mut String,
        mut ends: Vec<(f64, f64, usize)>,
        top: f64,
        right: f64,
    ) -> std::fmt::Result {
        const GAP: f64 = 17.0;
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut labels: Vec<f64> = Vec::with_capacity(ends.len());
        for (y, ..) in &ends {
            let after = labels.last().map_or(f64::MIN, |last| last + GAP);
            labels.push(y.max(after).max(top));
        }
        // No label may be below the axis: move labels up from the last one, as far as needed.
        let mut lowest = 312.0;
        for label in labels.iter_mut().rev() {
            *label = label.min(lowest);
            lowest = *label - GAP;
        }
        for ((y, x, number), label) in ends.iter().zip(&labels) {
            let series = &self.series[*number];
            let style = palette.style(&series.name);
            writeln!(
                out,
                "<line class=\"lead-line\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" \
                 y2=\"{label:.1}\"/><g class=\"s{}\"><path class=\"mark\" d=\"{}\"/></g><text \
                 x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 8.0,
                right + 6.0,
                style.colour(),
                mark(style, right + 14.0, *label),
                right + 24.0,
                label + 4.0,
                escape(&series.name)
            )?;
        }
        Ok(())
    }

    fn write_bars(&self, palette: &Palette, out: &mut String) -> std::fmt::Result {
        const WIDTH: f64 = 880.0;
        const LEFT: f64 = 200.0;
        const RIGHT: f64 = 780.0;
        const ROW: f64 = 26.0;
        const HEAD: f64 = 28.0;
        let grouped = self.x.len() > 1;
        let rows = (self.series.len() * self.x.len()) as f64;
        let headings = if grouped { self.x.len() as f64 } else { 0.0 };
        let bottom = 8.0 + rows * ROW + headings * HEAD;
        let (step, ticks) = self.even_scale(6.0);
        let x_of = |value: f64| LEFT + value / (step * ticks as f64) * (RIGHT - LEFT);
        writeln!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\">",
            bottom + 46.0,
            escape(&self.title)
        )?;
        for tick in 0..=ticks {
            let (value, x) = (step * tick as f64, x_of(step * tick as f64));
            let class = if tick == 0 { "axis" } else { "grid" };
            let text = self.tick(value);
            writeln!(
                out,
                "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{bottom:.1}\"/>\
                 <text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                escape(&text)
            )?;
        }
        writeln!(
            out,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + RIGHT) / 2.0,
            bottom + 36.0,
            escape(&self.y_label)
        )?;
        let mut y = 8.0;
        for (at, entry) in self.x.iter().enumerate() {
            if grouped {
                let label = [self.x_label.as_str(), entry.as_str()].join(" ");
                writeln!(
                    out,
                    "<text class=\"head\" x=\"4\" y=\"{:.1}\">{}</text>",
                    y + 18.0,
                    escape(label.trim())
                )?;
                y += HEAD;
            }
            for series in &self.series {
                let middle = y + ROW / 2.0;
                writeln!(
                    out,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LEFT - 10.0,
                    middle + 4.0,
                    escape(&series.name)
                )?;
                if let Some(value) = series.values[at] {
                    writeln!(
                        out,
                        "<g class=\"s{}\"><title>{}</title><rect class=\"bar\" x=\"{LEFT}\" \
                         y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"/><line \
                         class=\"whisker\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" \
                         y2=\"{middle:.1}\"/></g><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                        palette.style(&series.name).colour(),
                        self.tooltip(series, at, value),
                        y + 4.0,
                        x_of(value.0) - LEFT,
                        ROW - 8.0,
                        x_of(value.1),
                        x_of(value.2),
                        x_of(value.2.max(value.0)) + 8.0,
                        middle + 4.0,
                        escape(&(self.format)(value.0))
                    )?;
                }
                y += ROW;
            }
        }
        out.push_str("</svg>\n");
        Ok(())
    }
}

/// The outline of a series' marker around a point: circle, square, diamond, triangle up, triangle
/// down.
fn mark(style: Style, x: f64, y: f64) -> String {
    const _: () = assert!(MARKERS == 5, "one outline per marker");
    match style.marker() {
        0 => format!(
            "M{:.1} {y:.1}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
            x - 4.5
        ),
        1 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        2 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
        3 => format!("M{x:.1} {:.1}l5.5 9.5h-11z", y - 5.5),
        _ => format!("M{x:.1} {:.1}l5.5 -9.5h-11z", y + 5.5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_at_or_above_the_highest_value() {
        for top in [0.003, 0.9, 1.0, 7.0, 12.0, 99.0, 2.4e6] {
            let mut chart = Chart::new("", Shape::Lines);
            chart.x = vec!["a".into()];
            chart.push("s", [Some((top * 0.9, 0.0, top))]);
            let (step, ticks) = chart.even_scale(5.0);
            let end = step * ticks as f64;
            assert!(end >= top && end < top + step * 1.001, "{top}: {end}");
            assert!((3..=6).contains(&ticks), "{top}: {ticks} ticks");
        }
    }

    #[test]
    fn a_log_scale_encloses_its_values_in_ones_twos_and_fives() {
        let mut chart = Chart::new("", Shape::Lines);
        chart.scale = Scale::Log;
        chart.x = vec!["a".into(), "b".into(), "c".into()];
        let point = |y: f64| Some((y, y, y));
        chart.push("s", [point(30e6), point(0.0), point(410e6)]);
        assert_eq!(chart.ticks(), [20e6, 50e6, 100e6, 200e6, 500e6]);
        let mut html = String::new();
        chart.write_html(&Palette::default(), &mut html).unwrap();
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        // A single value still gets an axis, and without values the linear scale is used.
        chart.series.clear();
        chart.push("s", [point(1.0)]);
        assert_eq!(chart.ticks(), [1.0, 2.0]);
        chart.series.clear();
        assert_eq!(chart.ticks()[0], 0.0);
    }

    #[test]
    fn a_long_axis_labels_some_of_its_entries_and_draws_all_points() {
        let html = |entries: usize| {
            let mut chart = Chart::new("", Shape::Lines);
            chart.x = (0..entries).map(|second| second.to_string()).collect();
            chart.push("s", vec![Some((1.0, 1.0, 1.0)); entries]);
            let mut html = String::new();
            chart.write_html(&Palette::default(), &mut html).unwrap();
            html
        };
        let labels = |html: &str, entries: usize| {
            let is_there = |entry: &usize| html.contains(&format!(">{entry}</text>"));
            (0..entries).filter(is_there).count()
        };
        assert_eq!(labels(&html(9), 9), 9);
        let long = html(180);
        assert!(
            (10..30).contains(&labels(&long, 180)),
            "{}",
            labels(&long, 180)
        );
        assert_eq!(long.matches("class=\"point\"").count(), 180);
    }

    #[test]
    fn ticks_are_written_without_needless_zeros() {
        let mut chart = Chart::new("", Shape::Lines);
        let rates = [0.0, 500e3, 1e6, 2.5e6, 10e6].map(|value| chart.tick(value));
        assert_eq!(rates, ["0", "500 k", "1 M", "2.5 M", "10 M"]);
        chart.format = |ratio| format!("{}x", crate::size::digits(ratio));
        assert_eq!(
            [1.0, 2.5, 100.0].map(|value| chart.tick(value)),
            ["1x", "2.5x", "100x"]
        );
    }

    #[test]
    fn non_numeric_values_are_skipped() {
        let mut chart = Chart::new("", Shape::Lines);
        chart.x = vec!["a".into(), "b".into(), "c".into()];
        let good = Some((1.0, 1.0, 1.0));
        chart.push(
            "s",
            [
                Some((f64::NAN, 0.0, 0.0)),
                good,
                Some((1.0, -1.0, 1.0)),
                good,
            ],
        );
        chart.push("short", [good]);
        assert_eq!(chart.series[0].values, [None, good, None]);
        assert_eq!(chart.series[1].values, [good, None, None]);
    }
}
