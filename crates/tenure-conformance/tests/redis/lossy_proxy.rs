//! A proxy that drops every message which the server pushes, and whose connections can go dead
//! (they accept everything and return nothing), be stalled (their requests arrive later), or be
//! refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::Result;

/// Listens for as long as the process lives; no client connects to it after the case.
pub(crate) struct LossyProxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    dropped: AtomicU32,
    /// How many connections were made, and how many of them are dead.
    made: AtomicU32,
    dead: AtomicU32,
    /// How many connections, counted from the first, hold their requests up.
    stalled: Mutex<u32>,
    moved: Condvar,
    refusing: AtomicBool,
}

impl LossyProxy {
    pub(crate) fn start(target: u16) -> Result<LossyProxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let proxy = LossyProxy { port, shared: shared.clone() };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else { return };
                let shared = shared.clone();
                let number = shared.made.fetch_add(1, Ordering::SeqCst);
                if shared.refusing.load(Ordering::SeqCst) {
                    continue;
                }
                thread::spawn(move || pass(client, server, &shared, number));
            }
        });
        Ok(proxy)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How many messages were dropped.
    pub(crate) fn dropped(&self) -> u32 {
        self.shared.dropped.load(Ordering::SeqCst)
    }

    /// Lets every connection that there is go dead; new ones live.
    pub(crate) fn kill(&self) {
        self.shared.dead.store(self.shared.made.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Holds up what is sent on every connection that there is; new ones pass.
    pub(crate) fn stall(&self) {
        *self.shared.stalled() = self.made();
    }

    /// Lets through what was held up.
    pub(crate) fn go_on(&self) {
        *self.shared.stalled() = 0;
        self.shared.moved.notify_all();
    }

    /// Closes every connection at its next byte, and new ones at once.
    pub(crate) fn refuse(&self) {
        self.shared.refusing.store(true, Ordering::SeqCst);
    }

    /// How many connections were made.
    pub(crate) fn made(&self) -> u32 {
        self.shared.made.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn stalled(&self) -> std::sync::MutexGuard<'_, u32> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes requests on, later if the connection is stalled.
fn pass_requests(
    mut client: TcpStream,
    mut server: TcpStream,
    shared: &Shared,
    number: u32,
) -> std::io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let length = client.read(&mut buffer)?;
        let stalled = shared.moved.wait_while(shared.stalled(), |stalled| number < *stalled);
        drop(stalled.unwrap_or_else(PoisonError::into_inner));
        if length == 0 || shared.refusing.load(Ordering::SeqCst) {
            client.shutdown(Shutdown::Both)?;
            return server.shutdown(Shutdown::Both);
        }
        server.write_all(&buffer[..length])?;
    }
}

fn pass(client: TcpStream, server: TcpStream, shared: &Arc<Shared>, number: u32) {
    let (Ok(requests), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let requests_shared = shared.clone();
    thread::spawn(move || pass_requests(requests, to_server, &requests_shared, number).is_ok());
    let mut responses = BufReader::new(server);
    let mut client = client;
    loop {
        let mut frame = Vec::new();
        if read(&mut responses, &mut frame).is_err() {
            // The client learns of it, unless it is gone itself.
            return drop(client.shutdown(Shutdown::Both));
        }
        let text = String::from_utf8_lossy(&frame);
        if text.starts_with('>') && text.contains("\r\nmessage\r\n") {
            shared.dropped.fetch_add(1, Ordering::SeqCst);
        } else if number < shared.dead.load(Ordering::SeqCst) {
            continue;
        } else if client.write_all(&frame).is_err() {
            return;
        }
    }
}

/// Reads one value of RESP3 as it stands.
fn read(from: &mut BufReader<TcpStream>, frame: &mut Vec<u8>) -> std::io::Result<()> {
    let start = frame.len();
    if from.read_until(b'\n', frame)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let line = String::from_utf8_lossy(&frame[start..]).trim_end().to_owned();
    let count: i64 = line[1..].parse().unwrap_or(0);
    match line.as_bytes()[0] {
        b'$' | b'=' | b'!' if count >= 0 => {
            let body = frame.len();
            frame.resize(body + usize::try_from(count).unwrap_or(0) + 2, 0);
            from.read_exact(&mut frame[body..])
        }
        b'*' | b'>' | b'~' => (0..count).try_for_each(|_| read(from, frame)),
        b'%' => (0..count * 2).try_for_each(|_| read(from, frame)),
        _ => Ok(()),
    }
}
