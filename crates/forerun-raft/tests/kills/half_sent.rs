//! Requests that stop arriving.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use openraft::{BasicNode, SnapshotMeta, Vote};

use crate::child;
use crate::cluster::Cluster;
use crate::node::SnapshotHeader;

/// Longer than a node waits for bytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// As one that is sent by a node whose network is cut in the middle.
#[test]
fn a_request_that_stops_arriving_is_given_up() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let cluster = Cluster::start(1, directory.path(), 100, Box::new(child))?;
    let meta = SnapshotMeta::<u64, BasicNode>::default();
    let header: SnapshotHeader = (Vote::new(1, 2), meta);
    let header = postcard::to_stdvec(&header)?;
    let mut snapshot = u32::try_from(header.len())?.to_le_bytes().to_vec();
    snapshot.extend(header);
    snapshot.extend(b"FRRAFTS1");
    let halves = [
        ("/raft/snapshot", &snapshot[..]),
        ("/raft/snapshot", &snapshot[..2]),
        ("/raft/append", b"\x01\x02"),
        ("/write", b"[[\"key\""),
    ];
    let mut connections = Vec::new();
    for (path, half) in halves {
        let mut connection = TcpStream::connect(cluster.address(1))?;
        connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let head = format!("POST {path} HTTP/1.1\r\nHost: node\r\nContent-Length: 100000\r\n\r\n");
        connection.write_all(head.as_bytes())?;
        connection.write_all(half)?;
        connections.push((path, connection));
    }
    for (path, mut connection) in connections {
        let mut answer = vec![0; 12];
        connection.read_exact(&mut answer)?;
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 408", "{path}");
    }
    // Nothing of the snapshot is left, and the node goes on.
    let client = cluster.client();
    client.write(&[("key", Some("1"))], ANSWER_TIMEOUT)?;
    Ok(())
}
