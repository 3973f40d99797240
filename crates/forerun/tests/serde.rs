//! Reports and statistics serialize, with errors as their messages.

use forerun::{
    Db, Options,
    backup::Backups,
    inspect::{check, repair},
};
use serde_json::{Value, json, to_value};

#[test]
fn every_report_of_a_store_serializes() {
    let directory = tempfile::tempdir().unwrap();
    let [store, kept, restored] =
        ["store", "kept", "restored"].map(|name| directory.path().join(name));
    let db = Db::open(&store, Options::default()).unwrap();
    db.put(b"key", b"value").unwrap();
    db.flush().unwrap();
    let verified = to_value(db.verify().unwrap()).unwrap();
    assert_eq!(
        (&verified["runs"], &verified["problems"]),
        (&json!(1), &json!([]))
    );
    assert_eq!(to_value(db.recovery()).unwrap()["operations"], json!(0));
    assert_eq!(to_value(db.stats()).unwrap()["last_sequence"], json!(1));

    let mut backups = Backups::open_or_create(&kept).unwrap();
    let made = to_value(backups.create(&db).unwrap()).unwrap();
    assert_eq!((&made["number"], &made["runs"]), (&json!(1), &json!(1)));
    let list = to_value(backups.list().unwrap()).unwrap();
    assert_eq!(list, json!({ "backups": [made], "damaged": [] }));
    let checked = to_value(backups.verify().unwrap()).unwrap();
    assert_eq!(checked["backups"], json!(1));
    backups.restore(None, &restored).unwrap();
    let removed = to_value(backups.delete(1).unwrap()).unwrap();
    assert_eq!(removed["backups"], json!([1]));
    db.close().unwrap();

    // Damage in the only run.
    let files = std::fs::read_dir(&restored).unwrap();
    let mut paths = files.map(|file| file.unwrap().path());
    let run = paths
        .find(|path| path.extension().is_some_and(|end| end == "run"))
        .unwrap();
    let mut bytes = std::fs::read(&run).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&run, bytes).unwrap();
    let report = check(&restored, &Options::default()).unwrap();
    let message = report.problems[0].to_string();
    assert_eq!(to_value(&report).unwrap()["problems"], json!([message]));
    let repaired = to_value(repair(&restored, &Options::default()).unwrap()).unwrap();
    let losses = repaired["losses"].as_array().unwrap();
    assert!(!losses.is_empty(), "{repaired}");
    assert!(losses.iter().all(|loss| loss["path"].is_string()));
    assert_ne!(repaired["set_aside"], Value::Array(Vec::new()));
}
