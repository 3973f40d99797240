//! An HTML page with facts, large figures, plots and tables, in a single file.
//!
//! ```text
//!  title, lead                          the subject, in a sentence or two
//!  tiles     | 6.1x | 2.4 M |           the key figures
//!  sections  heading, text, charts (inline SVG), tables
//!  facts     CPU        ...             the machine and the data
//! ```
//!
//! The page refers to no script, font, image or style sheet outside itself and follows the reader's
//! light or dark setting. Series differ in marker and label, not in colour alone, and a strategy
//! keeps its colour across the charts of a page and across pages.

mod chart;
mod palette;
mod style;

pub use chart::{Chart, Scale, Series, Shape};

use crate::text_table::TextTable;
use palette::Palette;
use std::fmt::Write;

/// A page that is being built.
///
/// ```
/// use forerun_measure::report::{Chart, Report, Section, Shape, Tile};
///
/// let mut report = Report::new("Cities", "Batches of lookups against single ones.");
/// report.tiles.push(Tile::new("faster than one at a time", "4.8x"));
/// let mut chart = Chart::new("Keys per second", Shape::Lines);
/// chart.x = vec!["1".into(), "64".into()];
/// chart.push("multi_get", [Some((1.1e6, 1.0e6, 1.2e6)), None]);
/// report.sections.push(Section::Chart(chart));
/// assert!(report.to_html().contains("<svg"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The page's title.
    pub title: String,
    /// The subject of the page, in a sentence or two.
    pub lead: String,
    /// The key figures.
    pub tiles: Vec<Tile>,
    /// The sections, in order.
    pub sections: Vec<Section>,
    /// Facts about the machine and the data, each as a name and a text.
    pub facts: Vec<(String, String)>,
}

/// One large figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The meaning of the figure.
    pub label: String,
    /// The figure, with its unit.
    pub value: String,
}

impl Tile {
    /// Creates a tile.
    pub fn new(label: impl Into<String>, value: impl Into<String>) -> Tile {
        Tile {
            label: label.into(),
            value: value.into(),
        }
    }
}

/// A part of a page.
#[derive(Clone, Debug)]
pub enum Section {
    /// A heading.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// A plot.
    Chart(Chart),
    /// A table under a caption.
    Table {
        /// The caption.
        caption: String,
        /// The cells.
        table: TextTable,
    },
}

impl Report {
    /// Creates a page with only a title and a lead.
    pub fn new(title: impl Into<String>, lead: impl Into<String>) -> Report {
        Report {
            title: title.into(),
            lead: lead.into(),
            ..Report::default()
        }
    }

    /// Renders the page.
    pub fn to_html(&self) -> String {
        let mut html = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_html(&mut html);
        html
    }

    /// The styles of all series on the page. A name has the same style in all charts.
    fn palette(&self) -> Palette {
        let charts = self.sections.iter().filter_map(|section| match section {
            Section::Chart(chart) => Some(chart),
            _ => None,
        });
        let series = charts.flat_map(|chart| &chart.series);
        Palette::new(series.map(|series| series.name.as_str()))
    }

    fn write_html(&self, out: &mut String) -> std::fmt::Result {
        let (title, lead) = (escape(&self.title), escape(&self.lead));
        write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n<p class=\"lead\">{lead}</p>\n",
            style::CSS
        )?;
        if !self.tiles.is_empty() {
            out.push_str("<div class=\"tiles\">\n");
            for Tile { label, value } in &self.tiles {
                let (label, value) = (escape(label), escape(value));
                writeln!(
                    out,
                    "<div class=\"tile\"><b>{value}</b><span>{label}</span></div>"
                )?;
            }
            out.push_str("</div>\n");
        }
        let palette = self.palette();
        for section in &self.sections {
            match section {
                Section::Heading(text) => writeln!(out, "<h2>{}</h2>", escape(text))?,
                Section::Text(text) => writeln!(out, "<p>{}</p>", escape(text))?,
                Section::Chart(chart) => chart.write_html(&palette, out)?,
                Section::Table { caption, table } => write_table(out, caption, table)?,
            }
        }
        if !self.facts.is_empty() {
            out.push_str("<h2>Machine and data</h2>\n<dl>\n");
            for (name, text) in &self.facts {
                writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(text))?;
            }
            out.push_str("</dl>\n");
        }
        out.push_str("</main>\n</body>\n</html>\n");
        Ok(())
    }
}

fn write_table(out: &mut String, caption: &str, table: &TextTable) -> std::fmt::Result {
    let class = |column: usize| {
        if table.is_numeric(column) {
            " class=\"num\""
        } else {
            ""
        }
    };
    let caption = escape(caption);
    write!(
        out,
        "<div class=\"wide\"><table>\n<caption>{caption}</caption>\n<thead><tr>"
    )?;
    for (column, head) in table.headings.iter().enumerate() {
        write!(
            out,
            "<th scope=\"col\"{}>{}</th>",
            class(column),
            escape(head)
        )?;
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            write!(out, "<td{}>{}</td>", class(column), escape(cell))?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
    Ok(())
}

/// Escapes text for element content and quoted attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Checks that a page is well-formed and self-contained. Used by tests of pages.
///
/// # Errors
/// A description of the problem.
pub fn check_html(html: &str) -> Result<(), String> {
    for outside in [
        "http:", "https:", "src=", "href=", "url(", "@import", "<script",
    ] {
        if html.contains(outside) {
            return Err(format!("the page is not self-contained: {outside}"));
        }
    }
    for bad in ["NaN", "inf\"", "inf "] {
        if html.contains(bad) {
            return Err(format!("the page contains an invalid number: {bad}"));
        }
    }
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html
        .strip_prefix("<!DOCTYPE html>")
        .ok_or("the page has no document type")?;
    while let Some(start) = rest.find('<') {
        let end = rest[start..].find('>').ok_or("a tag does not end")? + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let opened = open.pop();
            if opened != Some(name) {
                return Err(format!("</{name}> closes {opened:?}"));
            }
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or_default());
        }
        if tag.matches('"').count() % 2 != 0 {
            return Err(format!("a quote is left open in <{tag}>"));
        }
    }
    if !open.is_empty() {
        return Err(format!("never closed: {}", open.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_one_colour_in_all_charts_of_a_page() {
        let mut report = Report::new("t", "t");
        for names in [
            &["single", "batch", "probe"][..],
            &["probe"],
            &["batch", "probe"],
        ] {
            let mut chart = Chart::new("c", Shape::Bars);
            chart.x = vec!["1".into()];
            for name in names {
                chart.push(*name, [Some((1.0, 1.0, 1.0))]);
            }
            report.sections.push(Section::Chart(chart));
        }
        let html = report.to_html();
        let colours: Vec<&str> = html
            .match_indices("><title>probe,")
            .map(|(at, _)| &html[html[..at].rfind("class=").unwrap()..at])
            .collect();
        assert_eq!(colours.len(), 3);
        assert!(
            colours.iter().all(|colour| *colour == colours[0]),
            "{colours:?}"
        );
    }

    #[test]
    fn a_page_with_every_element_is_well_formed_and_escaped() {
        let nasty = "<b> & \"quotes\"";
        let mut report = Report::new(nasty, nasty);
        report.tiles.push(Tile::new(nasty, nasty));
        report.facts.push((nasty.into(), nasty.into()));
        let mut table = TextTable::new([nasty, "n"]);
        table.push([nasty, "1"]);
        for shape in [Shape::Lines, Shape::Bars] {
            let mut chart = Chart::new(nasty, shape);
            chart.note = nasty.into();
            chart.x = vec![nasty.into(), "2".into()];
            chart.push(nasty, [Some((1.0, 0.5, 2.0)), None]);
            chart.push("flat", [Some((0.0, 0.0, 0.0)), Some((3.0, 3.0, 3.0))]);
            chart.reference = Some((1.0, nasty.into()));
            report.sections.push(Section::Chart(chart));
        }
        report.sections.push(Section::Heading(nasty.into()));
        report.sections.push(Section::Text(nasty.into()));
        report.sections.push(Section::Table {
            caption: nasty.into(),
            table,
        });
        let html = report.to_html();
        check_html(&html).unwrap();
        assert!(!html.contains("<b> &"));
        assert_eq!(html.matches("<svg").count(), 2);
        assert!(html.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn an_empty_page_is_a_page() {
        let mut report = Report::new("", "");
        report
            .sections
            .push(Section::Chart(Chart::new("nothing", Shape::Lines)));
        report
            .sections
            .push(Section::Chart(Chart::new("nothing", Shape::Bars)));
        check_html(&report.to_html()).unwrap();
    }

    #[test]
    fn the_check_finds_planted_errors() {
        let page = |body: &str| format!("<!DOCTYPE html><html>{body}</html>");
        assert!(check_html(&page("<p>fine</p><br/>")).is_ok());
        for bad in [
            "<p>",
            "</p>",
            "<p></b>",
            "<img src=\"x\"/>",
            "<p class=\"x>y</p>",
            "<p>NaN</p>",
        ] {
            assert!(check_html(&page(bad)).is_err(), "{bad}");
        }
    }
}
