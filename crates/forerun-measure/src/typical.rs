//! Selects the measurement for a page's headline: a typical one, not the best one.

/// The batch size for headlines. The nearest measured batch size is used.
pub const HEADLINE_BATCH: u64 = 64;

/// Returns the row whose figure is the median among the rows with the batch size nearest to
/// [`HEADLINE_BATCH`], and its figure. With an even number of rows, it is the lower of the two
/// middle rows. `None` if no row has a figure.
///
/// ```
/// use forerun_measure::typical::typical;
///
/// let rows = [(1, 1.0), (64, 2.0), (64, 9.0), (64, 4.0), (1024, 20.0)];
/// let found = typical(&rows, |row| row.0, |row| Some(row.1));
/// assert_eq!(found, Some((&(64, 4.0), 4.0)));
/// ```
pub fn typical<'r, R: 'r>(
    rows: impl IntoIterator<Item = &'r R>,
    batch: impl Fn(&R) -> u64,
    figure: impl Fn(&R) -> Option<f64>,
) -> Option<(&'r R, f64)> {
    let mut rows: Vec<(&R, f64)> = rows
        .into_iter()
        .filter_map(|row| Some((row, figure(row)?)))
        .collect();
    let distance = |row: &R| {
        let batch = batch(row).max(1) as f64;
        (batch / HEADLINE_BATCH as f64).ln().abs()
    };
    let nearest = rows
        .iter()
        .map(|(row, _)| distance(row))
        .fold(f64::INFINITY, f64::min);
    rows.retain(|(row, _)| distance(row) <= nearest);
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    let middle = rows.len().checked_sub(1)? / 2;
    Some(rows[middle])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[(u64, f64)]) -> Option<f64> {
        typical(rows, |row| row.0, |row| Some(row.1)).map(|(_, figure)| figure)
    }

    #[test]
    fn one_lucky_measurement_is_not_the_headline() {
        assert_eq!(of(&[(64, 2.0), (64, 2.1), (64, 40.0)]), Some(2.1));
        assert_eq!(of(&[(64, 2.0), (64, 40.0)]), Some(2.0));
        assert_eq!(of(&[(1, 1.0), (1024, 8.0), (16, 3.0)]), Some(3.0));
    }

    #[test]
    fn rows_without_a_figure_are_ignored() {
        let rows = [(64, None), (1, Some(1.5))];
        let found = typical(&rows, |row| row.0, |row| row.1);
        assert_eq!(found.map(|(_, figure)| figure), Some(1.5));
        assert_eq!(of(&[]), None);
    }
}
