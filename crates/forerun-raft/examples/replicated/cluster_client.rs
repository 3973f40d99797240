//! A client of the cluster.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use ureq::Agent;

/// The time for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before the next node is asked.
const PAUSE: Duration = Duration::from_millis(50);

/// How a call has ended.
#[derive(Debug)]
pub enum CallError {
    /// Nothing was done: no leader was found.
    NotDone(String),
    /// A write may take effect, once, now or later.
    Unknown(String),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::NotDone(reason) => write!(f, "not done: {reason}"),
            CallError::Unknown(reason) => write!(f, "it may have been done: {reason}"),
        }
    }
}

impl std::error::Error for CallError {}

/// Asks the nodes for the leader, and calls it.
pub struct Client {
    agent: Agent,
    addresses: Vec<String>,
    /// The node to ask first.
    next: Cell<usize>,
}

impl Client {
    pub fn new(addresses: impl IntoIterator<Item = String>) -> Client {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A request on a connection of a dead process could be sent twice.
            .max_idle_connections(0)
            .timeout_global(Some(CALL_TIMEOUT));
        Client {
            agent: config.build().new_agent(),
            addresses: addresses.into_iter().collect(),
            next: Cell::new(0),
        }
    }

    /// Sets keys to values, or deletes them, all at once.
    pub fn write(&self, ops: &[(&str, Option<&str>)], timeout: Duration) -> Result<(), CallError> {
        self.call_leader("/write", &serde_json::json!(ops), timeout)
            .map(drop)
    }

    /// The values of keys, at one moment between the call and its return.
    pub fn multi_get(
        &self,
        keys: &[&str],
        timeout: Duration,
    ) -> Result<Vec<Option<String>>, CallError> {
        let answer = self.call_leader("/multi_get", &serde_json::json!(keys), timeout)?;
        serde_json::from_slice(&answer).map_err(|error| CallError::Unknown(error.to_string()))
    }

    /// Sends to the leader, which it looks for until the time is over.
    pub fn call_leader(
        &self,
        path: &str,
        body: &serde_json::Value,
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let deadline = Instant::now() + timeout;
        loop {
            let address = &self.addresses[self.next.get()];
            let other = (self.next.get() + 1) % self.addresses.len();
            match self.post(address, path, body) {
                Err(CallError::NotDone(reason)) => {
                    let leader = self.addresses.iter().position(|address| *address == reason);
                    self.next.set(leader.unwrap_or(other));
                    if Instant::now() >= deadline {
                        return Err(CallError::NotDone(reason));
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    // It may be cut off.
                    self.next.set(other);
                    return Err(error);
                }
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Sends to one node. If it is not the leader, the error is the leader's address.
    pub fn post(
        &self,
        address: &str,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<Vec<u8>, CallError> {
        let request = self.agent.post(format!("http://{address}{path}"));
        let mut answer = request
            .send(body.to_string())
            .map_err(|error| match &error {
                ureq::Error::Io(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
                    CallError::NotDone(error.to_string())
                }
                _ => CallError::Unknown(error.to_string()),
            })?;
        let content = answer.body_mut().read_to_vec();
        let content = content.map_err(|error| CallError::Unknown(error.to_string()))?;
        match answer.status().as_u16() {
            200 => Ok(content),
            400 | 421 => Err(CallError::NotDone(
                String::from_utf8_lossy(&content).into_owned(),
            )),
            _ => Err(CallError::Unknown(
                String::from_utf8_lossy(&content).into_owned(),
            )),
        }
    }

    /// What a node answers to a GET.
    pub fn get<T: DeserializeOwned>(&self, address: &str, path: &str) -> anyhow::Result<T> {
        let answer = self.agent.get(format!("http://{address}{path}")).call();
        Ok(serde_json::from_slice(&answer?.body_mut().read_to_vec()?)?)
    }
}
