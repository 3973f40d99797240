//! A process without file descriptors does not treat its servers as dead.

mod testing;

use std::fs::File;

use forerun_client::{Error, Failure};
use testing::{client_of, forerun, options};

#[test]
fn a_lack_of_descriptors_ejects_no_server() {
    let servers = [forerun(), forerun()];
    let client = client_of(&servers, options().failures_to_eject(1));
    let keys: Vec<String> = (0..100).map(|number| format!("key:{number}")).collect();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for reads and writes.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = 200;
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let open = || File::open("/dev/null").ok();
    let files: Vec<File> = std::iter::from_fn(open).collect();
    for _ in 0..3 {
        match client.set("k", "v") {
            Err(Error::Server {
                failure: Failure::Connect(error),
                ..
            }) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE)),
            other => panic!("{other:?}"),
        }
        assert!(testing::multi_get(&client, &keys).is_ok());
    }
    drop(files);
    client.set("k", "v").expect("both servers are well");
    let found = testing::multi_get(&client, &keys).expect("good keys");
    assert_eq!(found.iter().flatten().count(), 0);
    assert_eq!(client.get("k").expect("it answers").expect("v").data, b"v");
}
