//! `forerun serve` over UCX, as a process.

mod testing;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use testing::Workspace;

#[test]
fn a_server_over_ucx_says_where_it_listens_or_that_ucx_is_missing() {
    let workspace = Workspace::new();
    let path = workspace.path("ucx");
    let listen = format!("unix:{}", path.display());
    let mut child = workspace
        .command(&["serve", "--transport", "ucx", "--ucx-listen", &listen])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("forerun can be started");
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("it was asked for"));
    stdout.read_line(&mut line).expect("a line or the end");
    if line.is_empty() {
        let mut said = String::new();
        let mut stderr = child.stderr.take().expect("it was asked for");
        stderr.read_to_string(&mut said).expect("text");
        assert!(said.contains("libucp.so.0"), "{said}");
        assert!(!path.exists());
        assert_eq!(child.wait().expect("it ends").code(), Some(3));
        return;
    }
    assert_eq!(line, format!("listening on ucx:unix:{}\n", path.display()));
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.expect("there is kill").success());
    assert!(child.wait().expect("it ends").success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "", "UCX writes nothing to the output");
    assert!(!path.exists());
}
