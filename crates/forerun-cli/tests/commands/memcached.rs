//! The server with memcached's command line: as a subcommand, and under memcached's name.

use crate::testing;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testing::Workspace;

/// Maximum time that a test waits for anything.
const TIMEOUT: Duration = Duration::from_secs(60);

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener
        .local_addr()
        .expect("an address")
        .port()
        .to_string()
}

/// The program under memcached's name.
fn memcached(workspace: &Workspace, args: &[&str]) -> Command {
    let link = workspace.path("memcached");
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_forerun"), &link).expect("a link");
    }
    let mut command = Command::new(link);
    command
        .args(args)
        .current_dir(workspace.path("."))
        .stdin(Stdio::null());
    command
}

fn ask(port: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
    stream.write_all(request.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon, by its process number. It gets SIGTERM when this is dropped, also if a test fails.
struct Daemon(String);

impl Drop for Daemon {
    fn drop(&mut self) {
        let mut kill = Command::new("kill");
        kill.arg(&self.0).status().expect("there is kill");
    }
}

#[test]
fn a_daemon_listens_when_its_command_returns_and_removes_its_pid_file_at_the_end() {
    let workspace = Workspace::new();
    let port = free_port();
    let Output {
        status,
        stdout,
        stderr,
    } = memcached(
        &workspace,
        &[
            "-d",
            "-p",
            &port,
            "-l",
            "127.0.0.1",
            "-m64",
            "-P",
            "pid",
            "-L",
            "-U",
            "11211",
            "-o",
            "modern",
        ],
    )
    .output()
    .expect("it starts");
    assert!(status.success() && stdout.is_empty(), "{}", text(&stderr));
    let pid = std::fs::read_to_string(workspace.path("pid")).expect("a file");
    let daemon = Daemon(pid.trim().to_owned());
    let warning =
        "forerun: ignored, without a meaning here: -L, -U 11211 (there is no UDP), -o modern\n";
    assert!(text(&stderr).starts_with(warning), "{}", text(&stderr));
    // In a session of its own, so a terminal's end does not reach it.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.0)).expect("it runs");
    let session = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(3));
    assert_eq!(session, Some(daemon.0.as_str()));
    assert_eq!(ask(&port, "set k 0 0 1\r\nv\r\nquit\r\n"), "STORED\r\n");
    drop(daemon);
    until("the file of the process number stays", || {
        !workspace.path("pid").exists()
    });
}

#[test]
fn a_process_number_that_cannot_be_written_is_a_warning_as_in_memcached() {
    let workspace = Workspace::new();
    let port = free_port();
    let args = ["-p", &port, "-l", "127.0.0.1", "-P", "none/pid"];
    let mut server = memcached(&workspace, &args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    until("it does not listen", || {
        TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    assert_eq!(ask(&port, "set k 0 0 1\r\nv\r\nquit\r\n"), "STORED\r\n");
    drop(Daemon(server.id().to_string()));
    let mut said = String::new();
    let mut stderr = server.stderr.take().expect("it was asked for");
    stderr.read_to_string(&mut said).expect("text");
    assert!(server.wait().expect("it ends").success(), "{said}");
    assert!(said.contains("cannot write none/pid"), "{said}");
}

#[test]
fn a_daemon_that_cannot_start_fails_visibly() {
    let workspace = Workspace::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let ran = memcached(&workspace, &["-d", "-p", &port, "-l", "127.0.0.1"]).output();
    let ran = ran.expect("it starts");
    assert_eq!(ran.status.code(), Some(3));
    assert!(text(&ran.stderr).contains(&port), "{}", text(&ran.stderr));
}

#[test]
fn a_configuration_file_is_obeyed_and_the_command_line_comes_after_it() {
    let workspace = Workspace::new();
    let port = free_port();
    workspace.file(
        "conf",
        "# Debian's\nlogfile /var/log/x\n-m 32\n-p 1\n-l 127.0.0.1\n",
    );
    let mut server = workspace
        .command(&["memcached", "--config", "conf", "-p", &port, "-c", "7"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    until("it does not listen", || {
        TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    let settings = ask(&port, "stats settings\r\nquit\r\n");
    for line in [
        "maxbytes 33554432",
        "maxconns 7",
        "num_threads 4",
        "inter 127.0.0.1",
    ] {
        assert!(
            settings.contains(&format!("STAT {line}")),
            "{line}: {settings}"
        );
    }
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

#[test]
fn without_an_address_all_interfaces_are_listened_on() {
    let workspace = Workspace::new();
    let port = free_port();
    let mut server = memcached(&workspace, &["-p", &port])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    until("it does not listen", || {
        TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    let settings = ask(&port, "stats settings\r\nquit\r\n");
    let all = ["STAT inter [::]", "STAT inter 0.0.0.0"];
    assert!(all.iter().any(|line| settings.contains(line)), "{settings}");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

#[test]
fn a_user_that_does_not_exist_is_an_error_for_root() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let workspace = Workspace::new();
    let mut server = memcached(&workspace, &["-u", "no-such-user", "-p", "-1"]);
    let ran = server.output().expect("it starts");
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("no-such-user"));
}

#[test]
fn root_becomes_the_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let workspace = Workspace::new();
    let users = std::fs::read_to_string("/etc/passwd").expect("a file");
    let nobody = users
        .lines()
        .find_map(|line| line.strip_prefix("nobody:x:"));
    let uid = nobody.and_then(|rest| rest.split(':').next());
    let uid = uid.expect("every system has nobody");
    // The user must be able to run the program, which may lie in a home of root.
    let is_reachable = Command::new(env!("CARGO_BIN_EXE_forerun"))
        .arg("--version")
        .uid(uid.parse().expect("a number"))
        .output()
        .is_ok_and(|ran| ran.status.success());
    if !is_reachable {
        return;
    }
    let port = free_port();
    let mut server = memcached(
        &workspace,
        &["-u", "nobody", "-p", &port, "-l", "127.0.0.1"],
    )
    .stdout(Stdio::null())
    .spawn()
    .expect("it starts");
    until("it does not listen", || {
        TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()));
    let status = status.expect("it runs");
    let all_four = format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
    assert!(
        status.contains(&all_four) && status.contains("Groups:\t \n"),
        "{status}"
    );
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

#[test]
fn help_and_version_are_printed_and_mistakes_are_one_line() {
    let workspace = Workspace::new();
    let run = |args: &[&str]| memcached(&workspace, args).output().expect("it starts");
    for flag in ["-V", "--version"] {
        let version = text(&run(&[flag]).stdout);
        assert!(
            version.starts_with("memcached 1.6.18-forerun-"),
            "{version}"
        );
    }
    assert!(text(&run(&["-h"]).stdout).contains("\n-Z, --enable-ssl "));
    assert!(text(&run(&["-i"]).stdout).contains("Apache"));
    for (args, word) in [
        (&["-U", "udp"][..], "udp"),
        (&["-m", "lots"], "lots"),
        (&["-t", "0"], "0"),
        (&["-q"], "-q"),
        (&["-o", "nothing"], "nothing"),
    ] {
        let ran = run(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}");
        let said = text(&ran.stderr);
        assert!(
            said.starts_with("memcached: ") && said.lines().count() == 1,
            "{said}"
        );
        assert!(said.contains(word), "{said}");
    }
}
