//! A link that drops every message which the server pushes, and whose connections can go dead: they
//! take everything and give nothing back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::Result;

/// Listens for as long as the process lives; nobody connects to it after the case.
pub(crate) struct Mute {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    dropped: AtomicU32,
    /// How many connections were made, and how many of them are dead.
    made: AtomicU32,
    dead: AtomicU32,
}

impl Mute {
    pub(crate) fn start(target: u16) -> Result<Mute> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let mute = Mute { port, shared: shared.clone() };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else { return };
                let (shared, number) = (shared.clone(), shared.made.fetch_add(1, Ordering::SeqCst));
                thread::spawn(move || pass(client, server, &shared, number));
            }
        });
        Ok(mute)
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

    /// How many connections were made.
    pub(crate) fn made(&self) -> u32 {
        self.shared.made.load(Ordering::SeqCst)
    }
}

fn pass(client: TcpStream, server: TcpStream, shared: &Shared, number: u32) {
    let (Ok(mut requests), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    thread::spawn(move || std::io::copy(&mut requests, &mut to_server).is_ok());
    let (mut answers, mut client) = (BufReader::new(server), client);
    loop {
        let mut frame = Vec::new();
        if read(&mut answers, &mut frame).is_err() {
            return;
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
