//! A cache on several memcached servers in front of a slow source: a batch asks all servers in one
//! round trip, missing values are computed and stored, and a server that fails costs misses only.
//!
//! ```sh
//! forerun serve --port 11211 & forerun serve --port 11212 &
//! cargo run --release -p forerun --features client --example servers -- 127.0.0.1:11211 \
//!     127.0.0.1:11212
//! ```

use std::time::Duration;

use forerun::client::{Client, ClientOptions, Error, Expiration, Lookups, NewValue, ServerAddress};

/// How many values were answered, and where they came from.
#[derive(Debug, Default)]
pub struct Answers {
    /// Values that a server had.
    pub found: usize,
    /// Values that were computed.
    pub computed: usize,
    /// Keys whose server failed. Their values were computed too.
    pub failed: usize,
}

fn main() -> Result<(), Error> {
    let texts: Vec<String> = std::env::args().skip(1).collect();
    let servers: Vec<ServerAddress> = if texts.is_empty() {
        vec![ServerAddress::tcp("127.0.0.1", 11211)]
    } else {
        texts
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()?
    };
    let answers = run(servers)?;
    println!("{answers:?}");
    Ok(())
}

/// Answers a hundred requests for fifty values each.
pub fn run(servers: Vec<ServerAddress>) -> Result<Answers, Error> {
    let options = ClientOptions::default().timeout(Duration::from_millis(200));
    let client = Client::new(servers, options)?;
    let mut values = Lookups::new(); // Reused from batch to batch.
    let mut answers = Answers::default();
    for request in 0..100_u64 {
        let ids: Vec<u64> = (0..50).map(|n| (request * 7 + n * n) % 1000).collect();
        let keys: Vec<String> = ids.iter().map(|id| format!("value:{id}")).collect();
        let report = client.multi_get(&keys, &mut values)?;
        answers.found += report.hits;
        answers.failed += report.failed;
        for failure in &report.failures {
            eprintln!("{failure}");
        }
        for (position, value) in values.iter().enumerate() {
            let Some(value) = value else {
                let value = compute(ids[position]);
                answers.computed += 1;
                let minute = Expiration::In(Duration::from_secs(60));
                match client.set(&keys[position], NewValue::new(&value).expiry(minute)) {
                    // A value that cannot be stored is computed again next time.
                    Ok(()) | Err(Error::Server { .. }) => {}
                    Err(error) => return Err(error),
                }
                continue;
            };
            assert_eq!(value.data, compute(ids[position]));
        }
    }
    Ok(answers)
}

/// Stands for a query to a database.
fn compute(id: u64) -> Vec<u8> {
    format!("the value of {id}").into_bytes()
}
