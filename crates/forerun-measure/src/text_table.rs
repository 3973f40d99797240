//! Tables for the terminal and for the page.

use std::fmt::Write;

/// A table of text. A column whose cells are all numbers is aligned to the right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextTable {
    /// The column headers.
    pub headings: Vec<String>,
    /// The rows. Each has as many cells as there are headers.
    pub rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Creates a table without rows.
    pub fn new(headings: impl IntoIterator<Item = impl Into<String>>) -> TextTable {
        TextTable {
            headings: headings.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Appends a row. Missing cells are empty, and cells beyond the last header are dropped.
    pub fn push(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.headings.len(), String::new());
        self.rows.push(row);
    }

    /// Removes the columns whose cells are the same in all rows, and returns the header and the
    /// cell of each. Tables with fewer than two rows, and columns listed in `keep`, do not change.
    pub fn take_constant(&mut self, keep: &[&str]) -> Vec<(String, String)> {
        let mut taken = Vec::new();
        if self.rows.len() < 2 {
            return taken;
        }
        for column in (0..self.headings.len()).rev() {
            let first = &self.rows[0][column];
            let same = self.rows.iter().all(|row| row[column] == *first);
            if same && !keep.contains(&self.headings[column].as_str()) {
                let cells = self.rows.iter_mut().map(|row| row.remove(column));
                let cell = cells.last().unwrap_or_default();
                taken.push((self.headings.remove(column), cell));
            }
        }
        taken.reverse();
        taken
    }

    /// Whether a column is aligned to the right: every cell begins with a digit, or is a dash for a
    /// missing number.
    pub fn is_numeric(&self, column: usize) -> bool {
        self.rows.iter().all(|row| {
            let cell = row[column].as_str();
            cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit())
        })
    }

    /// Formats the table in a fixed-width font with two spaces between columns.
    pub fn to_text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            let head = self.headings[column].chars().count();
            cells.fold(head, usize::max)
        };
        let columns: Vec<(usize, bool)> = (0..self.headings.len())
            .map(|column| (width(column), self.is_numeric(column)))
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            let mut line = String::new();
            for (cell, &(width, numeric)) in row.iter().zip(&columns) {
                // Writing to a String cannot fail.
                let _ = if numeric {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(["strategy", "threads", "ns per key"]);
        table.push(["single", "1", "2400"]);
        table.push(["interleaved", "1", "405"]);
        table
    }

    #[test]
    fn numbers_stand_right_and_words_left() {
        let expected = "strategy     threads  ns per key\n\
                        single             1        2400\n\
                        interleaved        1         405\n";
        assert_eq!(table().to_text(), expected);
    }

    #[test]
    fn columns_that_never_change_move_to_the_head_of_the_page() {
        let mut short = table();
        assert_eq!(
            short.take_constant(&[]),
            [("threads".to_owned(), "1".to_owned())]
        );
        assert_eq!(short.headings, ["strategy", "ns per key"]);
        assert_eq!(short.rows[1], ["interleaved", "405"]);
        let mut kept = table();
        assert_eq!(kept.take_constant(&["threads"]), []);
        assert_eq!(kept, table());
    }

    #[test]
    fn a_row_has_as_many_cells_as_headers() {
        let mut table = table();
        table.push(["short"]);
        table.push(["too", "1", "2", "3"]);
        assert!(table.rows.iter().all(|row| row.len() == 3));
    }
}
