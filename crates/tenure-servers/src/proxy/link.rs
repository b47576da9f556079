//! One connection through the proxy: for each direction a thread that reads and notes the time, and
//! one that waits its due and writes, so that a delay does not slow the stream down.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::{Direction, Shared};

/// The two sockets of a connection. They are closed when the last thread is done.
#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    torn: AtomicBool,
    /// The client has sent something since the server's last answer.
    asked: AtomicBool,
}

impl Link {
    pub(super) fn is_torn(&self) -> bool {
        self.torn.load(SeqCst)
    }

    /// Makes both sides see a reset as soon as the threads have let go of the sockets.
    pub(super) fn tear(&self) {
        self.torn.store(true, SeqCst);
        for side in [&self.client, &self.server] {
            // Either may be closed by its peer already. Not for writing: that would say a proper
            // farewell before the reset.
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

/// Passes bytes both ways until both are done.
pub(super) fn run(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    for side in [&client, &server] {
        drop(side.set_nodelay(true));
        // So that a writer whose peer does not read notices when the link is torn.
        drop(side.set_write_timeout(Some(Duration::from_millis(100))));
    }
    let torn = AtomicBool::new(false);
    let link = Arc::new(Link { client, server, torn, asked: AtomicBool::new(false) });
    shared.add(&link);
    thread::scope(|scope| {
        for direction in [Direction::ToClient, Direction::ToServer] {
            let (sender, receiver) = sync_channel(QUEUE);
            let link = &link;
            scope.spawn(move || read(link, direction, &sender, shared));
            scope.spawn(move || write(link, direction, &receiver, shared));
        }
    });
}

/// What came, and when.
type Event = (News, Instant);

enum News {
    Bytes(Vec<u8>),
    /// The sender has said all it had to say.
    End,
    /// The sender is gone. On a cut link this is news that does not arrive either.
    Reset,
}

fn read(link: &Link, direction: Direction, sender: &SyncSender<Event>, shared: &Shared) {
    let (mut from, _) = link.ends(direction);
    let mut buffer = vec![0; CHUNK];
    loop {
        let news = match from.read(&mut buffer) {
            Ok(0) => News::End,
            Ok(length) => News::Bytes(buffer[..length].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => News::Reset,
        };
        if link.is_torn() {
            return;
        }
        let goes_on = matches!(news, News::Bytes(_));
        if goes_on && is_swallowed(link, direction, shared) {
            return shared.tear(link);
        }
        if sender.send((news, Instant::now())).is_err() || !goes_on {
            return;
        }
    }
}

/// Notes questions and counts answers.
fn is_swallowed(link: &Link, direction: Direction, shared: &Shared) -> bool {
    match direction {
        Direction::ToServer => {
            if !link.asked.swap(true, SeqCst) {
                shared.requests.fetch_add(1, SeqCst);
            }
            false
        }
        Direction::ToClient => link.asked.swap(false, SeqCst) && shared.swallows(),
    }
}

fn write(link: &Link, direction: Direction, receiver: &Receiver<Event>, shared: &Shared) {
    let (_, to) = link.ends(direction);
    for (news, came) in receiver {
        let rate = shared.wait_due(direction, came, link);
        if link.is_torn() {
            return;
        }
        let done = match (news, rate) {
            (News::Bytes(bytes), None) => write_all(link, to, &bytes),
            (News::Bytes(bytes), Some(rate)) => write_slowly(link, to, &bytes, rate),
            (News::End, _) => to.shutdown(Shutdown::Write),
            (News::Reset, _) => return shared.tear(link),
        };
        if done.is_err() {
            // Whoever reads from that side finds out too, and tells the other side in due time.
            return;
        }
    }
}

/// In tenths of a second, so that a large chunk is not one long silence.
fn write_slowly(link: &Link, to: &TcpStream, bytes: &[u8], rate: u32) -> io::Result<()> {
    let step = usize::try_from(rate / 10).unwrap_or(usize::MAX).max(1);
    for part in bytes.chunks(step) {
        write_all(link, to, part)?;
        let due = u32::try_from(part.len()).unwrap_or(u32::MAX);
        thread::sleep(Duration::from_secs(1) * due / rate);
    }
    Ok(())
}

fn write_all(link: &Link, mut to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if !link.is_torn() => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

const CHUNK: usize = 16 * 1024;
/// Chunks under way in one direction before the sender has to wait.
const QUEUE: usize = 64;
