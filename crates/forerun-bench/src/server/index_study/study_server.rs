//! The server of the study: the product's parser, buffers and sockets, and any index.
//!
//! ```text
//!   poll ──> a turn for each connection with bytes:
//!              read ──> Input ──> GetParser ──> index ──> Output ──> write          timed: phases.rs
//!
//!   commands: get, answered in batches; stats, the times of the phases; quit
//! ```
//!
//! It has one thread, fills its index itself before it listens, and serves clients that it trusts:
//! the load generator of this bench. As in the product, connections without unanswered bytes share
//! one pair of buffers.

use super::index::{Index, filled};
use super::index_name::IndexName;
use super::phases::{Phase, Phases, SAMPLE, Stopwatch};
use crate::item_arena::ItemArena;
use crate::server::data::Items;
use crate::server::link::Transport;
use anyhow::{Context, Result};
use forerun_core::size::{parse_count, parse_size};
use forerun_server::study::{Connection as Carrier, GetParser, Part, Ready, Sockets};
use forerun_server::study::{push_item, push_text};
use forerun_server::{Input, Listen, Output};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::take;
use std::net::{IpAddr, SocketAddr};

/// Values are prefetched this many answers ahead, as in the product.
const FETCH_AHEAD: usize = 8;

/// The server of the study of indexes, which `forerun-bench server --study index` starts
///
/// Example: forerun-bench index-server --index memc3 --port 11311
#[derive(clap::Args, Clone, Debug)]
pub struct ServeArgs {
    /// The index: design/strategy/isa
    #[arg(long, value_name = "NAME")]
    pub index: IndexName,

    /// Items to hold
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_count)]
    pub items: u64,

    /// Bytes per value
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_size)]
    pub value_bytes: usize,

    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub listen: IpAddr,

    /// The port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,

    /// Time the phases of one turn in so many
    #[arg(long, value_name = "N", default_value_t = SAMPLE,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub sample: u64,

    /// What carries connections, as in `serve`
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "tcp"
    )]
    pub transport: Vec<Transport>,

    /// Where clients begin connections over UCX: unix:FILE
    #[arg(long, value_name = "ADDRESS")]
    pub ucx_listen: Option<String>,

    /// Ignored: there is one thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u16,

    /// Ignored: the memory is that of the items
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub memory_limit: u64,

    /// Connections beyond this number are closed
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub conn_limit: usize,
}

/// Serves until the process is killed.
///
/// # Errors
/// The items do not fit, the address is in use, or the poll fails.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let items = Items {
        count: args.items.max(1),
        value_bytes: args.value_bytes,
    };
    let index = filled(args.index, items).with_context(|| args.index.to_string())?;
    let mut server = StudyServer::new(Sockets::listen(&args.places()?)?, index, args);
    loop {
        server.step()?;
    }
}

impl ServeArgs {
    /// Where it listens.
    fn places(&self) -> Result<Vec<Listen>> {
        let mut places = Vec::new();
        if self.transport.contains(&Transport::Tcp) {
            places.push(Listen::tcp(SocketAddr::new(self.listen, self.port)));
        }
        if self.transport.contains(&Transport::Ucx) {
            let address = self.ucx_listen.as_deref();
            let address = address.context("--transport ucx requires --ucx-listen")?;
            places.extend(Listen::parse(&format!("ucx:{address}"), 0)?);
        }
        Ok(places)
    }
}

/// The server's state.
struct StudyServer {
    sockets: Sockets,
    connections: Vec<Option<Connection>>,
    conn_limit: usize,
    answerer: Answerer,
    /// What the last poll has reported.
    ready: Vec<Ready>,
    /// The buffers that connections share.
    input: Input,
    output: Output,
}

/// Answers requests.
struct Answerer {
    index: Box<dyn Index>,
    parser: GetParser,
    hashes: Vec<u64>,
    phases: Phases,
    turns: u64,
    /// One turn in so many is timed.
    sample: u64,
}

struct Connection {
    stream: Carrier,
    input: Input,
    output: Output,
    read_closed: bool,
}

/// What a connection's bytes ask for after all gets are answered.
enum Next {
    Bytes,
    Close,
}

impl StudyServer {
    fn new(sockets: Sockets, index: Box<dyn Index>, args: &ServeArgs) -> StudyServer {
        StudyServer {
            sockets,
            connections: Vec::new(),
            conn_limit: args.conn_limit,
            answerer: Answerer::new(index, args.sample),
            ready: Vec::new(),
            input: Input::new(),
            output: Output::new(),
        }
    }

    /// Polls once, and gives each reported connection a turn.
    fn step(&mut self) -> Result<()> {
        let mut ready = take(&mut self.ready);
        let is_any_waiting = match self.sockets.poll(|one| ready.push(one)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => false,
            polled => polled?,
        };
        for one in ready.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(one.token) else {
                continue;
            };
            connection.read_closed |= one.read_closed;
            let buffers = (&mut self.input, &mut self.output);
            if !connection.turn(&mut self.answerer, buffers) {
                // It may be broken. Dropping it ends the reports in any case.
                let _ = self.sockets.deregister(&mut connection.stream);
                self.connections[one.token] = None;
            }
        }
        self.ready = ready;
        if is_any_waiting {
            self.accept()
        } else {
            Ok(())
        }
    }

    fn accept(&mut self) -> Result<()> {
        let failed = "cannot accept a connection";
        while let Some(mut stream) = self.sockets.accept().context(failed)? {
            let free = self.connections.iter().position(Option::is_none);
            let at = free.unwrap_or(self.connections.len());
            if at >= self.conn_limit {
                continue;
            }
            self.sockets.register(&mut stream, at)?;
            let connection = Some(Connection {
                stream,
                input: Input::new(),
                output: Output::new(),
                read_closed: false,
            });
            match self.connections.get_mut(at) {
                Some(free) => *free = connection,
                None => self.connections.push(connection),
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Answers what has arrived. Returns whether the connection stays open.
    fn turn(&mut self, answerer: &mut Answerer, spare: (&mut Input, &mut Output)) -> bool {
        let (spare_input, spare_output) = spare;
        if self.input.is_empty() {
            self.input = take(spare_input);
        }
        if self.output.is_empty() {
            self.output = take(spare_output);
        }
        let is_open = self.serve(answerer);
        if self.input.is_empty() {
            *spare_input = take(&mut self.input);
        }
        if self.output.is_empty() {
            *spare_output = take(&mut self.output);
        }
        is_open
    }

    fn serve(&mut self, answerer: &mut Answerer) -> bool {
        loop {
            match self.send() {
                Sent::All => {}
                Sent::Part => return true,
                Sent::Failed => return false,
            }
            answerer.turns += 1;
            let mut watch = Stopwatch::start(answerer.turns, answerer.sample);
            let space = self.input.space();
            let space_bytes = space.len();
            let count = match self.stream.read(space) {
                Ok(0) => return false,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            self.input.filled(count);
            watch.end(Phase::Receive, &mut answerer.phases);
            let next = answerer.answer(&mut self.input, &mut self.output, &mut watch);
            let sent = self.send();
            watch.end(Phase::Send, &mut answerer.phases);
            match (next, sent) {
                (Next::Close, _) | (_, Sent::Failed) => return false,
                (Next::Bytes, Sent::Part) => return true,
                // A short read has emptied a socket, and the poll will report later bytes.
                (Next::Bytes, Sent::All)
                    if count < space_bytes
                        && !self.read_closed
                        && self.stream.is_emptied_by_short_read() =>
                {
                    return true;
                }
                (Next::Bytes, Sent::All) => {}
            }
        }
    }

    /// Writes what the socket takes.
    fn send(&mut self) -> Sent {
        while !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[])];
            self.output.slices(&mut slices);
            match self.stream.write(&slices[0]) {
                Ok(0) => return Sent::Failed,
                Ok(count) => self.output.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Sent::Part,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Sent::Failed,
            }
        }
        Sent::All
    }
}

/// How much of the output the socket took.
enum Sent {
    All,
    Part,
    Failed,
}

impl Answerer {
    fn new(index: Box<dyn Index>, sample: u64) -> Answerer {
        let phases = Phases::new(index.index_bytes() as u64);
        Answerer {
            index,
            parser: GetParser::default(),
            hashes: Vec::new(),
            phases,
            turns: 0,
            sample,
        }
    }

    /// Answers all complete commands.
    fn answer(&mut self, input: &mut Input, output: &mut Output, watch: &mut Stopwatch) -> Next {
        loop {
            let bytes = input.bytes();
            let Some(gets) = self.parser.read(bytes) else {
                push_text(output, b"CLIENT_ERROR the study answers get only\r\n");
                return Next::Close;
            };
            watch.end(Phase::Parse, &mut self.phases);
            let consumed = match gets.len_bytes() {
                0 => 0,
                len_bytes => {
                    self.index.hash(gets.keys(), &mut self.hashes);
                    watch.end(Phase::Hash, &mut self.phases);
                    let (keys, phases) = (gets.keys(), &mut self.phases);
                    self.index.probe(keys, &self.hashes, &mut |values| {
                        watch.end(Phase::Probe, phases);
                        push_parts(keys, gets.parts(), values, output);
                    });
                    watch.end(Phase::Copy, &mut self.phases);
                    if watch.is_timed() {
                        self.phases.keys += gets.keys().len() as u64;
                    }
                    len_bytes
                }
            };
            self.parser.recycle(gets);
            if consumed > 0 {
                input.consume(consumed);
                if input.is_empty() {
                    return Next::Bytes;
                }
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                return Next::Bytes;
            };
            match bytes[..end].trim_ascii_end() {
                b"stats" => {
                    let mut lines = String::new();
                    self.phases.push_lines(&mut lines);
                    push_text(output, lines.as_bytes());
                    push_text(output, b"END\r\n");
                }
                b"quit" => return Next::Close,
                _ => {
                    push_text(output, b"ERROR\r\n");
                    return Next::Close;
                }
            }
            input.consume(end + 1);
        }
    }
}

/// Appends the answer to a batch.
fn push_parts(
    keys: &[&[u8]],
    parts: impl Iterator<Item = Part>,
    values: &[Option<&[u8]>],
    output: &mut Output,
) {
    let fetch = |at: usize| {
        if let Some(Some(value)) = values.get(at) {
            ItemArena::prefetch_value(value);
        }
    };
    (0..FETCH_AHEAD).for_each(fetch);
    let mut at = 0;
    for part in parts {
        match part {
            Part::Items(count) => {
                for (key, value) in keys[at..at + count].iter().zip(&values[at..]) {
                    fetch(at + FETCH_AHEAD);
                    at += 1;
                    if let Some(value) = value {
                        push_item(output, key, 0, value);
                    }
                }
            }
            Part::Text(text) => push_text(output, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: Items = Items {
        count: 1000,
        value_bytes: 5,
    };

    fn answerer() -> Answerer {
        Answerer::new(filled(super::super::index_name::MEMC3, ITEMS).unwrap(), 1)
    }

    /// Passes bytes to the server, and returns what it answers and whether it closes.
    fn answer(answerer: &mut Answerer, input: &mut Input, bytes: &[u8]) -> (String, bool) {
        let mut output = Output::new();
        input.extend(bytes);
        let next = answerer.answer(input, &mut output, &mut Stopwatch::start(0, 1));
        let mut slices = [IoSlice::new(&[])];
        output.slices(&mut slices);
        let text = String::from_utf8(slices[0].to_vec()).unwrap();
        (text, matches!(next, Next::Close))
    }

    #[test]
    fn pieces_of_pipelined_gets_are_answered_in_order_and_misses_are_left_out() {
        let mut answerer = answerer();
        let mut value = Vec::new();
        ITEMS.push_value(7, &mut value);
        let item = format!(
            "VALUE key:000000000007 0 5\r\n{}\r\n",
            String::from_utf8(value).unwrap()
        );
        let requests =
            b"get key:000000000007 key:000000001000\r\nget key:000000000007\r\nstats\r\n";
        for cut in 0..requests.len() {
            let mut input = Input::new();
            let (first, closes) = answer(&mut answerer, &mut input, &requests[..cut]);
            assert!(!closes);
            let (second, closes) = answer(&mut answerer, &mut input, &requests[cut..]);
            assert!(!closes && input.is_empty());
            let answered = first + &second;
            let gets = format!("{item}END\r\n{item}END\r\nSTAT timed_keys ");
            assert!(answered.starts_with(&gets), "{answered}");
            assert!(answered.ends_with("END\r\n"));
        }
        assert_eq!(answerer.phases.keys, 3 * requests.len() as u64);
        assert!(answerer.phases.ns_per_key(&[Phase::Probe]) > 0.0);
    }

    #[test]
    fn other_commands_close_the_connection() {
        for (line, expected) in [
            ("set a 0 0 1\r\n", "ERROR\r\n"),
            ("gets a\r\n", "CLIENT_ERROR the study answers get only\r\n"),
            ("quit\r\n", ""),
        ] {
            let answered = answer(&mut answerer(), &mut Input::new(), line.as_bytes());
            assert_eq!(answered, (expected.to_owned(), true));
        }
    }
}
