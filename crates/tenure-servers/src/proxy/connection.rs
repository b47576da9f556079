//! One connection through the proxy. Each direction has a thread that reads and notes the time, and
//! a thread that waits until the bytes are due and writes them, so that a delay does not limit the
//! throughput.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::{Direction, ProxyState};

/// The most bytes that are read at once.
const CHUNK: usize = 16 * 1024;
/// Chunks in one direction before the reader has to wait for the writer.
const QUEUE: usize = 64;

/// The two sockets of a connection. They are closed when the last thread ends.
#[derive(Debug)]
pub(super) struct ProxiedConnection {
    client: TcpStream,
    server: TcpStream,
    was_reset: AtomicBool,
    /// Whether the client has sent something since the server's last response.
    request_pending: AtomicBool,
}

impl ProxiedConnection {
    pub(super) fn is_reset(&self) -> bool {
        self.was_reset.load(SeqCst)
    }

    /// Makes both sides see a reset as soon as the threads have dropped the sockets.
    pub(super) fn reset(&self) {
        self.was_reset.store(true, SeqCst);
        for side in [&self.client, &self.server] {
            // Either may be closed by its peer already. Not shut down for writing: that would send
            // a regular end before the reset.
            set_socket_linger(side, Some(Duration::ZERO)).ok();
            drop(side.shutdown(Shutdown::Read));
        }
    }

    fn ends(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        match direction {
            Direction::ToClient => (&self.server, &self.client),
            Direction::ToServer => (&self.client, &self.server),
        }
    }
}

/// Closes a connection with a reset.
pub(super) fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).ok();
}

/// Forwards bytes both ways until both sides have closed.
pub(super) fn run(client: TcpStream, server: TcpStream, state: &Arc<ProxyState>) {
    for side in [&client, &server] {
        drop(side.set_nodelay(true));
        // So that a writer whose peer does not read notices a reset.
        drop(side.set_write_timeout(Some(Duration::from_millis(100))));
    }
    let connection = Arc::new(ProxiedConnection {
        client,
        server,
        was_reset: AtomicBool::new(false),
        request_pending: AtomicBool::new(false),
    });
    state.add(&connection);
    thread::scope(|scope| {
        for direction in [Direction::ToClient, Direction::ToServer] {
            let (sender, receiver) = sync_channel(QUEUE);
            let connection = &connection;
            scope.spawn(move || read(connection, direction, &sender, state));
            scope.spawn(move || write(connection, direction, &receiver, state));
        }
    });
}

/// What was received, and when.
type Received = (Input, Instant);

enum Input {
    Bytes(Vec<u8>),
    /// The sender has closed its side.
    End,
    /// The sender has reset the connection. A cut link delays this too.
    Reset,
}

fn read(
    connection: &ProxiedConnection,
    direction: Direction,
    sender: &SyncSender<Received>,
    state: &ProxyState,
) {
    let (mut from, _) = connection.ends(direction);
    let mut buffer = vec![0; CHUNK];
    loop {
        let input = match from.read(&mut buffer) {
            Ok(0) => Input::End,
            Ok(length) => Input::Bytes(buffer[..length].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => Input::Reset,
        };
        if connection.is_reset() {
            return;
        }
        let goes_on = matches!(input, Input::Bytes(_));
        if goes_on && is_dropped(connection, direction, state) {
            return state.reset_one(connection);
        }
        if sender.send((input, Instant::now())).is_err() || !goes_on {
            return;
        }
    }
}

/// Counts requests and responses. Returns whether these bytes are the response to drop.
fn is_dropped(connection: &ProxiedConnection, direction: Direction, state: &ProxyState) -> bool {
    match direction {
        Direction::ToServer => {
            if !connection.request_pending.swap(true, SeqCst) {
                state.requests.fetch_add(1, SeqCst);
            }
            false
        }
        Direction::ToClient => {
            connection.request_pending.swap(false, SeqCst) && state.drops_response()
        }
    }
}

fn write(
    connection: &ProxiedConnection,
    direction: Direction,
    receiver: &Receiver<Received>,
    state: &ProxyState,
) {
    let (_, to) = connection.ends(direction);
    for (input, received) in receiver {
        let rate = state.wait_due(direction, received, connection);
        if connection.is_reset() {
            return;
        }
        let written = match (input, rate) {
            (Input::Bytes(bytes), None) => write_all(connection, to, &bytes),
            (Input::Bytes(bytes), Some(rate)) => write_slowly(connection, to, &bytes, rate),
            (Input::End, _) => to.shutdown(Shutdown::Write),
            (Input::Reset, _) => return state.reset_one(connection),
        };
        if written.is_err() {
            // The thread that reads from that side sees the error too, and forwards it in time.
            return;
        }
    }
}

/// Writes in steps of a tenth of a second, so that a large chunk does not cause one long pause.
fn write_slowly(
    connection: &ProxiedConnection,
    to: &TcpStream,
    bytes: &[u8],
    rate: u32,
) -> io::Result<()> {
    let step = usize::try_from(rate / 10).unwrap_or(usize::MAX).max(1);
    for part in bytes.chunks(step) {
        write_all(connection, to, part)?;
        let due = u32::try_from(part.len()).unwrap_or(u32::MAX);
        thread::sleep(Duration::from_secs(1) * due / rate);
    }
    Ok(())
}

fn write_all(
    connection: &ProxiedConnection,
    mut to: &TcpStream,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if !connection.is_reset() => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}
