//! A section of a Markdown page that the command writes: one row for each headline of a seed.
//!
//! ```text
//!   … text of the page …
//!   <!-- begin: seeds -->
//!   the machine, a link, a table              replaced as a whole
//!   <!-- end: seeds -->
//!   … text of the page …
//! ```
//!
//! What follows from each row takes two sentences: the link leads to the report that has them.

use super::document::{Document, Format, Headline};
use super::result_row::SeedRow;
use anyhow::{Context, Result, ensure};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- begin: seeds -->";
const END: &str = "<!-- end: seeds -->";
/// The widest line of prose on the project's pages.
const COLUMNS: usize = 100;

/// A page with a section to replace.
pub(super) struct Page {
    path: PathBuf,
    before: String,
    after: String,
    /// The report's address on the page.
    report: Option<String>,
    /// The rows of the table so far.
    rows: Vec<[String; 5]>,
}

impl Page {
    /// Reads a page, before anything is measured. `report` is the file of the report, if one is
    /// written.
    ///
    /// # Errors
    /// A file that cannot be read, or in which the marks are not once each and in order.
    pub(super) fn open(path: &Path, report: Option<&Path>) -> Result<Page> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the page {}", path.display()))?;
        for mark in [BEGIN, END] {
            let times = text.matches(mark).count();
            ensure!(
                times == 1,
                "{}: `{mark}` must be there once, and is there {times} times",
                path.display()
            );
        }
        let (before, rest) = text.split_once(BEGIN).unwrap_or_default();
        let after = rest.split_once(END).map(|(_, after)| after);
        let after =
            after.with_context(|| format!("{}: `{END}` comes before `{BEGIN}`", path.display()))?;
        Ok(Page {
            path: path.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
            report: report.map(|report| link(path, report)).transpose()?,
            rows: Vec::new(),
        })
    }

    /// Adds the headlines of a table's rows.
    pub(super) fn add(&mut self, document: &Document, title: &str, rows: &[SeedRow]) {
        let of_table = document.headlines.iter().filter(|one| one.table == title);
        for headline in of_table {
            let row = rows.iter().find(|row| row.row == headline.row);
            self.rows
                .extend(row.map(|row| cells(document, headline, row)));
        }
    }

    /// Replaces the section.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn write(&self, facts: &[(String, String)]) -> Result<()> {
        let (before, after) = (&self.before, &self.after);
        let section = self.section(facts);
        std::fs::write(
            &self.path,
            format!("{before}{BEGIN}\n{section}{END}{after}"),
        )
        .with_context(|| format!("cannot write the page {}", self.path.display()))
    }

    fn section(&self, facts: &[(String, String)]) -> String {
        let facts = facts.iter().take(3).map(|(_, text)| text.as_str());
        let machine = facts.collect::<Vec<_>>().join(", ");
        let report = self.report.as_deref().map_or_else(String::new, |report| {
            format!(" [All rows, and what follows from each]({report}).")
        });
        let mut text = wrapped(&format!("{machine}; other machines are named.{report}"));
        text.push_str("\n|seed|row|its figure|ours|measured|\n|---|---|---|---|---|\n");
        for row in &self.rows {
            text.push_str(&format!("|{}|\n", row.join("|")));
        }
        text
    }
}

/// A headline's row of the table.
fn cells(document: &Document, headline: &Headline, row: &SeedRow) -> [String; 5] {
    let table = document
        .tables
        .iter()
        .find(|one| one.title == headline.table);
    let theirs = row.theirs.iter().find(|one| one.column == headline.theirs);
    let ours = row.ours.iter().find(|one| one.column == headline.ours);
    let their_format = table.and_then(|table| {
        let mut columns = table.theirs.iter();
        Some(columns.find(|(name, _)| *name == headline.theirs)?.1)
    });
    let our_format = table.and_then(|table| {
        let mut columns = table.columns.iter();
        Some(columns.find(|column| column.name == headline.ours)?.format)
    });
    let written = |value: Option<f64>, format: Option<Format>| {
        let both = value.zip(format);
        both.map_or_else(|| "-".to_owned(), |(value, format)| format.write(value))
    };
    let their_value = written(theirs.and_then(|one| one.value), their_format);
    let our_value = written(ours.and_then(|one| one.value), our_format);
    let measured = match ours {
        Some(ours) if ours.value.is_none() => "-".to_owned(),
        Some(ours) => ours.device.clone().unwrap_or_else(|| "here".to_owned()),
        None => "-".to_owned(),
    };
    [
        document.seed.number().to_owned(),
        format!("{}: {}", headline.table, headline.row),
        match headline.theirs {
            "" => "-".to_owned(),
            name => format!("{name} {their_value}"),
        },
        format!("{} {our_value}", headline.ours),
        measured,
    ]
}

/// The address of a file in links on a page.
fn link(page: &Path, file: &Path) -> Result<String> {
    let (page, file) = (std::path::absolute(page)?, std::path::absolute(file)?);
    let both = page.components().zip(file.components());
    let shared = both.take_while(|(page, file)| page == file).count();
    // The last component is the page itself.
    let up = page
        .components()
        .skip(shared + 1)
        .map(|_| Cow::Borrowed(".."));
    let down = file.components().skip(shared);
    let down = down.map(|part| part.as_os_str().to_string_lossy());
    Ok(up.chain(down).collect::<Vec<_>>().join("/"))
}

/// The words in lines.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut len = 0;
    for word in text.split_whitespace() {
        let word_len = word.chars().count();
        if len > 0 && len + 1 + word_len > COLUMNS {
            lines.push('\n');
            len = 0;
        } else if len > 0 {
            lines.push(' ');
            len += 1;
        }
        lines.push_str(word);
        len += word_len;
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::super::document::Seed;
    use super::super::result_row::{OurFigure, TheirFigure};
    use super::*;

    #[test]
    fn only_the_section_between_the_marks_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.md");
        let text = |section: &str| format!("# A page\n\n{BEGIN}\n{section}{END}\n\nmore\n");
        std::fs::write(&path, text("old\n")).unwrap();
        let report = folder.path().join("results/seeds.html");
        let mut page = Page::open(&path, Some(&report)).unwrap();
        page.rows
            .push(["004", "a: b", "-", "c 2x", "here"].map(str::to_owned));
        page.write(&[("CPU".into(), "a CPU ".repeat(20))]).unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written.starts_with("# A page\n") && written.ends_with("\n\nmore\n"));
        assert!(written.contains("|004|a: b|-|c 2x|here|\n"), "{written}");
        assert!(
            written.contains("each](results/seeds.html).\n"),
            "{written}"
        );
        assert!(!written.contains("old"));
        assert!(written.lines().all(|line| line.chars().count() <= COLUMNS));
        // Once more gives the same.
        let again = Page::open(&path, None).unwrap();
        assert_eq!((again.before, again.after), (page.before, page.after));
    }

    #[test]
    fn a_page_without_its_marks_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.md");
        for (text, word) in [
            ("none".to_owned(), "is there 0 times"),
            (format!("{BEGIN}{BEGIN}{END}"), "is there 2 times"),
            (format!("{END}{BEGIN}"), "comes before"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Page::open(&path, None).err().unwrap());
            assert!(error.contains(word) && error.contains("page.md"), "{error}");
        }
        let error = Page::open(&folder.path().join("none.md"), None)
            .err()
            .unwrap();
        assert!(format!("{error:#}").contains("none.md"), "{error:#}");
    }

    #[test]
    fn a_link_goes_up_to_what_both_files_share() {
        for (page, file, expected) in [
            (
                "docs/internals/a.md",
                "docs/results/x/b.html",
                "../results/x/b.html",
            ),
            ("a.md", "b.html", "b.html"),
            ("docs/a/b/c.md", "d.html", "../../../d.html"),
        ] {
            assert_eq!(link(Path::new(page), Path::new(file)).unwrap(), expected);
        }
    }

    #[test]
    fn a_headline_has_the_formats_of_its_columns_and_the_machine() {
        let scale = super::super::document::Scale {
            quick: true,
            cores: 2,
            with_peers: false,
        };
        let document = super::super::document(Seed::FindPtr, &scale);
        let headline = &document.headlines[0];
        let row = SeedRow {
            row: headline.row.to_owned(),
            theirs: vec![TheirFigure {
                column: headline.theirs.to_owned(),
                value: Some(0.62),
            }],
            ours: vec![OurFigure {
                column: headline.ours.to_owned(),
                value: Some(1.8),
                device: Some("an H200".to_owned()),
                ..OurFigure::default()
            }],
            ..SeedRow::default()
        };
        let cells = cells(&document, headline, &row);
        assert_eq!(cells[2..], ["change +62.0%", "find_ptr 1.80x", "an H200"]);
    }
}
