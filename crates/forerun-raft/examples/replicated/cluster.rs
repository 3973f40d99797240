//! A cluster of processes on this machine.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::cluster_client::Client;
use crate::node::NodeOptions;

/// The time for starting a process, and for electing a leader on a loaded machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the command that runs a node.
pub type NodeCommand = Box<dyn Fn(&NodeOptions) -> anyhow::Result<Command>>;

/// Processes that are killed when this is dropped.
pub struct Cluster {
    directory: PathBuf,
    command: NodeCommand,
    entries_per_snapshot: u64,
    addresses: BTreeMap<u64, String>,
    processes: BTreeMap<u64, Child>,
}

impl Cluster {
    /// Starts as many nodes, with the numbers from 1, and makes a cluster of them.
    pub fn start(
        nodes: u64,
        directory: &Path,
        entries_per_snapshot: u64,
        command: NodeCommand,
    ) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster {
            directory: directory.to_owned(),
            command,
            entries_per_snapshot,
            addresses: BTreeMap::new(),
            processes: BTreeMap::new(),
        };
        for id in 1..=nodes {
            cluster.add(id)?;
        }
        let members = serde_json::json!(cluster.addresses);
        let first = &cluster.addresses[&1];
        cluster.client().post(first, "/cluster/init", &members)?;
        Ok(cluster)
    }

    /// Starts a node that is not yet a member.
    pub fn add(&mut self, id: u64) -> anyhow::Result<()> {
        self.addresses.insert(id, free_address()?);
        self.run(id)
    }

    /// Starts a node, and waits until it answers.
    pub fn run(&mut self, id: u64) -> anyhow::Result<()> {
        let options = NodeOptions {
            id,
            listen: self.addresses[&id].clone(),
            directory: self.store(id),
            entries_per_snapshot: self.entries_per_snapshot,
            proxies: BTreeMap::new(),
        };
        // The process ends when its input does: when this process ends, however it does.
        let mut process = (self.command)(&options)?.stdin(Stdio::piped()).spawn()?;
        let client = self.client();
        let deadline = Instant::now() + START_TIMEOUT;
        while client
            .get::<serde_json::Value>(&options.listen, "/cluster")
            .is_err()
        {
            if let Some(status) = process.try_wait()? {
                bail!("node {id} has ended: {status}");
            }
            if Instant::now() > deadline {
                process.kill()?;
                process.wait()?;
                bail!("node {id} does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.processes.insert(id, process);
        Ok(())
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, id: u64) -> anyhow::Result<()> {
        let process = self.processes.remove(&id);
        let mut process = process.with_context(|| format!("node {id} does not run"))?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// The process of a node that runs.
    pub fn process(&self, id: u64) -> anyhow::Result<&Child> {
        let process = self.processes.get(&id);
        process.with_context(|| format!("node {id} does not run"))
    }

    /// The directory of a node's store.
    pub fn store(&self, id: u64) -> PathBuf {
        self.directory.join(format!("node-{id}"))
    }

    pub fn address(&self, id: u64) -> &str {
        &self.addresses[&id]
    }

    /// The nodes that run.
    pub fn running(&self) -> Vec<u64> {
        self.processes.keys().copied().collect()
    }

    pub fn client(&self) -> Client {
        Client::new(self.addresses.values().cloned())
    }

    /// Waits for a leader on which the running nodes agree.
    pub fn leader(&self) -> anyhow::Result<u64> {
        let client = self.client();
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let leaders = self.processes.keys().map(|id| {
                let view: serde_json::Value = client.get(self.address(*id), "/cluster").ok()?;
                view["leader"].as_u64()
            });
            let leaders: Vec<Option<u64>> = leaders.collect();
            if let Some(&Some(leader)) = leaders.first()
                && leaders.iter().all(|other| *other == Some(leader))
                && self.processes.contains_key(&leader)
            {
                return Ok(leader);
            }
            if Instant::now() > deadline {
                bail!("no leader: {leaders:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn free_address() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}

/// Ends this process when its input ends. Call it in a node's process.
pub fn end_with_input() {
    std::thread::spawn(|| {
        // An error ends it too.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}
