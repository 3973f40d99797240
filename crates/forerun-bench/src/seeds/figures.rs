//! Finding a figure among rows of JSON.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Names of fields and the values that a row must have.
pub(super) type Fields = Vec<(&'static str, Value)>;

/// `fields!{batch: 8, strategy: "single"}`.
macro_rules! fields {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$((stringify!($name), serde_json::json!($value))),*]
    };
}
pub(super) use fields;

/// Parses one object per line.
///
/// # Errors
/// A line that is not JSON.
pub(super) fn parse_lines(text: &str) -> Result<Vec<Value>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("a row: {line}")))
        .collect()
}

/// The one row with these fields, if there is one.
///
/// # Errors
/// Several rows have them, so the definition of a table is wrong.
pub(super) fn find<'r>(rows: &'r [Value], fields: &[&Fields]) -> Result<Option<&'r Value>> {
    let wanted = || fields.iter().copied().flatten();
    let fits = |row: &&Value| wanted().all(|(name, value)| is_equal(&row[*name], value));
    let mut found = rows.iter().filter(fits);
    let first = found.next();
    ensure!(
        found.next().is_none(),
        "several rows have {:?}",
        wanted().collect::<Vec<_>>()
    );
    Ok(first)
}

/// Whether a field has a value. Numbers are equal whether they are written as 1 or 1.0.
fn is_equal(found: &Value, wanted: &Value) -> bool {
    match (found.as_f64(), wanted.as_f64()) {
        (Some(found), Some(wanted)) => (found - wanted).abs() < 1e-9,
        _ => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_all_of_its_fields() {
        let text = "\
            {\"batch\":2,\"hit_rate\":1.0,\"rate\":5}\n\n\
            {\"batch\":8,\"hit_rate\":1.0,\"rate\":6}";
        let rows = parse_lines(text).unwrap();
        let at = |batch: u32| find(&rows, &[&fields! {hit_rate: 1}, &fields! {batch: batch}]);
        assert_eq!(at(8).unwrap().unwrap()["rate"], 6);
        assert_eq!(at(9).unwrap(), None);
        assert_eq!(find(&rows, &[&fields! {writers: 1}]).unwrap(), None);
        let error = find(&rows, &[&fields! {hit_rate: 1}]).unwrap_err();
        assert!(error.to_string().contains("hit_rate"), "{error}");
        assert!(parse_lines("{").is_err());
    }
}
