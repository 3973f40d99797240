//! Finding a figure among rows of JSON.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Names of fields and the values that a row must have.
pub(crate) type Fields = Vec<(&'static str, Value)>;

/// `fields!{batch: 8, strategy: "single"}`.
macro_rules! fields {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$((stringify!($name), serde_json::json!($value))),*]
    };
}
pub(crate) use fields;

/// Parses one object per line.
///
/// # Errors
/// A line that is not JSON.
pub(crate) fn parse_lines(text: &str) -> Result<Vec<Value>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("a row: {line}")))
        .collect()
}

/// The one row with these fields, if there is one.
///
/// # Errors
/// Several rows have them, so the definition of a table is wrong.
pub(crate) fn find<'r>(rows: &'r [Value], fields: [&Fields; 2]) -> Result<Option<&'r Value>> {
    let mut found = matching(rows, fields);
    let first = found.next();
    let is_only = found.next().is_none();
    let [first_fields, more_fields] = fields;
    ensure!(
        is_only,
        "several rows have {first_fields:?} and {more_fields:?}"
    );
    Ok(first)
}

/// All rows with these fields.
pub(crate) fn matching<'r>(
    rows: &'r [Value],
    fields: [&Fields; 2],
) -> impl Iterator<Item = &'r Value> {
    rows.iter().filter(move |row| {
        let mut wanted = fields.into_iter().flatten();
        wanted.all(|(name, value)| is_equal(&row[*name], value))
    })
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
        let at = |batch: u32| find(&rows, [&fields! {hit_rate: 1}, &fields! {batch: batch}]);
        assert_eq!(at(8).unwrap().unwrap()["rate"], 6);
        assert_eq!(at(9).unwrap(), None);
        assert_eq!(
            find(&rows, [&fields! {writers: 1}, &fields! {}]).unwrap(),
            None
        );
        let every = [&fields! {hit_rate: 1}, &fields! {}];
        assert_eq!(matching(&rows, every).last().unwrap()["batch"], 8);
        let error = find(&rows, every).unwrap_err();
        assert!(error.to_string().contains("hit_rate"), "{error}");
        assert!(parse_lines("{").is_err());
    }
}
