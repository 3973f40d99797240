//! How wide a line may be.

use crate::Breach;
use crate::source::{Kind, lines_with_prose};

const COLUMNS: usize = 100;
const DRAWING_COLUMNS: usize = 132;

/// How many spaces separate a comment's marker from its text.
pub(crate) fn text_begin(line: &str) -> usize {
    let text = line.trim_start().trim_start_matches(['/', '!', '#']);
    text.len() - text.trim_start().len()
}

/// Whether a line cannot be wrapped: one token, a link, a table's row or a picture of a page, or a
/// string or an inline table in TOML.
pub(crate) fn is_one_piece(kind: Kind, line: &str, prose: Option<&str>) -> bool {
    let text = prose.unwrap_or(line).trim();
    let is_row = prose.is_some() && (text.starts_with('|') || text.starts_with("!["));
    let is_value =
        kind == Kind::Toml && prose.is_none() && (line.contains(" = {") || line.contains(" = \""));
    is_row || is_value || text.contains("://") || !text.contains(' ')
}

/// Lines that are too wide. Quoted text of a page is copied unchanged, so it is not wrapped, except
/// for shell commands.
pub(crate) fn wide_lines(kind: Kind, text: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let (mut is_fenced, mut is_shell, mut is_text) = (false, false, false);
    for (number, line, prose) in lines_with_prose(kind, text) {
        is_fenced &= prose.is_some();
        if prose.is_some_and(|prose| prose.trim_start().starts_with("```")) {
            is_fenced = !is_fenced;
            is_shell = line.trim_end().ends_with("```sh");
            is_text = line.trim_end().ends_with("```text");
            continue;
        }
        let is_exempt =
            is_one_piece(kind, line, prose) || (kind == Kind::Markdown && is_fenced && !is_shell);
        let columns = line.chars().count();
        let is_docstring = kind == Kind::Python && kind.prose(line).is_none();
        // Columns are separated by several spaces.
        let is_drawing = prose.is_some_and(|prose| {
            (is_fenced && (is_text || kind == Kind::Markdown))
                || (!is_docstring && text_begin(line) >= 4)
                || prose.trim().contains("   ")
        });
        let columns_max = if is_drawing { DRAWING_COLUMNS } else { COLUMNS };
        if columns > columns_max && !is_exempt {
            let what = format!("{columns} columns, where {columns_max} are allowed");
            breaches.push(Breach { line: number, what });
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide_count(kind: Kind, text: &str) -> usize {
        wide_lines(kind, text).len()
    }

    #[test]
    fn wide_prose_and_wide_code_are_found() {
        let words = "word ".repeat(30);
        assert_eq!(wide_count(Kind::Rust, &format!("// {words}\n")), 1);
        assert_eq!(wide_count(Kind::Rust, &format!("let x = {words}\n")), 1);
        assert_eq!(wide_count(Kind::Script, &format!("# {words}\n")), 1);
        assert_eq!(
            wide_count(Kind::Python, &format!("\"\"\"Short.\n {words}\n")),
            1
        );
        assert_eq!(
            wide_count(Kind::Toml, &format!("features = [ {words}\n")),
            1
        );
        assert_eq!(wide_count(Kind::Rust, "// short\n"), 0);
    }

    #[test]
    fn a_wide_shell_command_of_a_page_is_found() {
        let page = |language| format!("```{language}\n{}\n```\n", "word ".repeat(30));
        assert_eq!(wide_count(Kind::Markdown, &page("sh")), 1);
        assert_eq!(wide_count(Kind::Markdown, &page("text")), 0);
    }

    #[test]
    fn a_drawing_may_be_wider() {
        let drawing = format!("// {}", "word    word ".repeat(20));
        assert_eq!(wide_count(Kind::Cpp, &drawing[..120]), 0);
        assert_eq!(wide_count(Kind::Cpp, &drawing[..140]), 1);
        let docstring = format!("\"\"\"Short.\n{}", &drawing[..120]);
        assert_eq!(wide_count(Kind::Python, &docstring), 0);
    }

    #[test]
    fn a_line_that_cannot_be_wrapped_may_be_wider() {
        let words = "word ".repeat(30);
        for (kind, line) in [
            (Kind::Rust, format!("// https://{words}")),
            (Kind::Rust, words.replace(' ', "_")),
            (Kind::Toml, format!("description = \"{words}\"")),
            (Kind::Markdown, format!("| {words} |")),
        ] {
            assert_eq!(wide_count(kind, &line), 0, "{line}");
        }
    }
}
