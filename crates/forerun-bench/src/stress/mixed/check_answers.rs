//! Checks answers: for a thread's own keys, exactly the model's contents; for other keys, a value
//! that their owner wrote.

use anyhow::Context;

use super::super::script::Model;
use forerun_cli::exit::CheckFailed;
use forerun_cli::output::Named;

/// Checks that a scan returns exactly these entries in this order.
pub fn compare<'m, E>(
    found: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), E>>,
    mut expected: impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)>,
    what: &str,
) -> anyhow::Result<()>
where
    E: std::error::Error + Send + Sync + 'static,
{
    for entry in found {
        let (key, value) = entry.with_context(|| format!("{what} failed"))?;
        match expected.next() {
            Some((k, v)) if *k == key && *v == value => {}
            Some((k, _)) if *k == key => {
                return failed(format!("{what} returns another value for {}", Named(&key)));
            }
            Some((k, _)) => {
                return failed(format!(
                    "{what} returns {} instead of {}",
                    Named(&key),
                    Named(k)
                ));
            }
            None => return failed(format!("{what} continues to {} after its end", Named(&key))),
        }
    }
    match expected.next() {
        None => Ok(()),
        Some((key, _)) => failed(format!("{what} ends before {}", Named(key))),
    }
}

/// The error of a wrong answer.
pub fn failed<T>(problem: String) -> anyhow::Result<T> {
    Err(CheckFailed(problem).into())
}

/// Checks the result for a key of the thread that keeps this model.
pub fn check_own(
    model: &Model,
    key: &[u8],
    found: Option<&[u8]>,
    what: &str,
) -> anyhow::Result<()> {
    match (found, model.get(key)) {
        (found, expected) if found == expected.map(Vec::as_slice) => Ok(()),
        (None, _) => failed(format!("{what} does not find key {}", Named(key))),
        (_, None) => failed(format!(
            "{what} finds key {}, which is not there",
            Named(key)
        )),
        _ => failed(format!("{what} finds another value for key {}", Named(key))),
    }
}

/// Checks the result for any key: a value contains its key.
pub fn check_others(key: &[u8], found: Option<&[u8]>, what: &str) -> anyhow::Result<()> {
    let Some(value) = found else { return Ok(()) };
    let names_its_key = value
        .strip_prefix(key)
        .is_some_and(|rest| rest.first() == Some(&0));
    if !names_its_key || !key.starts_with(b"t") {
        return failed(format!(
            "{what} finds a value for key {} that was never written",
            Named(key)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_wrong_answer_is_detected() {
        let model = Model::from([
            (b"t00/1".to_vec(), b"t00/1\0x".to_vec()),
            (b"t00/2".to_vec(), b"t00/2\0".to_vec()),
        ]);
        assert!(check_own(&model, b"t00/1", Some(b"t00/1\0x"), "it").is_ok());
        assert!(check_own(&model, b"t00/3", None, "it").is_ok());
        assert!(check_own(&model, b"t00/1", None, "it").is_err());
        assert!(check_own(&model, b"t00/1", Some(b"t00/1\0y"), "it").is_err());
        assert!(check_own(&model, b"t00/3", Some(b""), "it").is_err());
        assert!(check_others(b"t01/1", Some(b"t01/1\0zz"), "it").is_ok());
        assert!(check_others(b"t01/1", Some(b"t01/10\0zz"), "it").is_err());
        assert!(check_others(b"", Some(b"\0"), "it").is_err());

        type Entries = Vec<Result<(Vec<u8>, Vec<u8>), forerun::DbError>>;
        let whole = || -> Entries { model.clone().into_iter().map(Ok).collect() };
        assert!(compare(whole().into_iter(), model.iter(), "it").is_ok());
        assert!(
            compare(whole().into_iter().take(1), model.iter(), "it").is_err(),
            "it ends early"
        );
        assert!(
            compare(whole().into_iter().skip(1), model.iter(), "it").is_err(),
            "one is passed over"
        );
        assert!(
            compare(whole().into_iter().rev(), model.iter(), "it").is_err(),
            "out of order"
        );
        assert!(
            compare(whole().into_iter(), model.iter().take(1), "it").is_err(),
            "one too many"
        );
    }
}
