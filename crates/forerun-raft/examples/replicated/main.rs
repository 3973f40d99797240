//! A replicated key-value store: nodes that serve HTTP, and a demonstration with three of them.
//!
//! ```sh
//! cargo run -p forerun-raft --example replicated            # starts three processes and uses them
//! cargo run -p forerun-raft --example replicated -- node 1 127.0.0.1:7001 /var/tmp/node-1
//! ```
//!
//! With three such nodes, on any machines:
//!
//! ```sh
//! curl 127.0.0.1:7001/cluster/init -d \
//!     '{"1": "127.0.0.1:7001", "2": "127.0.0.1:7002", "3": "127.0.0.1:7003"}'
//! curl 127.0.0.1:7001/write -d '[["CH/Bern", "46.948,7.447"], ["CH/Biel", null]]'
//! curl 127.0.0.1:7001/multi_get -d '["CH/Bern", "CH/Biel"]'
//! curl 127.0.0.1:7001/cluster
//! ```
//!
//! The nodes trust everybody who reaches their port, and write nothing but answers.

mod cluster;
mod cluster_client;
mod network;
mod node;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use cluster::Cluster;
use node::NodeOptions;

const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => demonstrate(),
        ["node", id, listen, directory] => run_node(id, listen, directory),
        ["child", id, listen, directory] => {
            cluster::end_with_input();
            run_node(id, listen, directory)
        }
        _ => bail!("usage: replicated [node ID ADDRESS:PORT DIRECTORY]"),
    }
}

fn run_node(id: &str, listen: &str, directory: &str) -> anyhow::Result<()> {
    node::run(&NodeOptions {
        id: id.parse().context("the id is a number")?,
        listen: listen.to_owned(),
        directory: directory.into(),
        entries_per_snapshot: 5000,
        proxies: BTreeMap::new(),
    })
}

fn child(options: &NodeOptions) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["child", &options.id.to_string(), &options.listen]);
    command.arg(&options.directory);
    Ok(command)
}

fn demonstrate() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let mut cluster = Cluster::start(3, directory.path(), 5000, Box::new(child))?;
    let client = cluster.client();
    let leader = cluster.leader()?;
    let process = cluster.process(leader)?.id();
    println!("three processes; node {leader}, process {process}, is the leader");

    client.write(
        &[
            ("CH/Bern", Some("46.948,7.447")),
            ("NO/Oslo", Some("59.91,10.75")),
        ],
        TIMEOUT,
    )?;
    client.write(&[("CH/Bern", None)], TIMEOUT)?;
    let towns = ["CH/Bern", "NO/Oslo"];
    println!("multi_get: {:?}", client.multi_get(&towns, TIMEOUT)?);

    cluster.kill(leader)?;
    let killed = Instant::now();
    client.write(&[("FR/Lyon", Some("45.76,4.84"))], TIMEOUT)?;
    let towns = ["CH/Bern", "NO/Oslo", "FR/Lyon"];
    let values = client.multi_get(&towns, TIMEOUT)?;
    println!(
        "node {leader} killed; {:?} later: {values:?}",
        killed.elapsed()
    );
    anyhow::ensure!(values[0].is_none() && values[1].is_some() && values[2].is_some());

    cluster.add(4)?;
    let client = cluster.client();
    let learner = serde_json::json!([4, cluster.address(4)]);
    client.call_leader("/cluster/learner", &learner, TIMEOUT)?;
    let members = cluster.running();
    client.call_leader("/cluster/members", &serde_json::json!(members), TIMEOUT)?;
    println!("members: {members:?}");
    client.write(&[("IT/Roma", Some("41.89,12.51"))], TIMEOUT)?;
    anyhow::ensure!(
        client
            .multi_get(&["IT/Roma", "NO/Oslo"], TIMEOUT)?
            .iter()
            .all(Option::is_some)
    );
    println!("node 4 has replaced node {leader}");
    Ok(())
}
