//! A transaction pooler: assigns a client any server connection for the length of a transaction. As
//! PgBouncer does since 1.21, it prepares a client's named statements on the server connection that
//! the client gets, so that missing statements do not reveal it.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

type Pool = Arc<Mutex<Vec<Server>>>;

/// A connection to the server, and the statements that are prepared on it.
struct Server {
    stream: TcpStream,
    prepared: HashSet<Vec<u8>>,
}

/// The messages with which a client has prepared statements, by the names of the statements.
type Prepared = HashMap<Vec<u8>, Vec<u8>>;

/// Listens until the process ends, and returns the port.
pub(crate) fn start(server: u16) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let pool = Pool::default();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let pool = pool.clone();
            std::thread::spawn(move || run_client(client, server, &pool));
        }
    });
    Ok(port)
}

fn run_client(mut client: TcpStream, server: u16, pool: &Pool) -> Result<()> {
    let mut mine = TcpStream::connect(("127.0.0.1", server))?;
    let mut head = [0; 4];
    client.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_be_bytes(head) as usize - 4];
    client.read_exact(&mut body)?;
    mine.write_all(&[&head[..], &body].concat())?;
    forward_response(&mut mine, &mut client, 0)?;
    pool.lock().unwrap().push(Server { stream: mine, prepared: HashSet::new() });
    let mut kept = None;
    let mut prepared = Prepared::new();
    loop {
        let Some(request) = request(&mut client)? else { return Ok(()) };
        let free = || pool.lock().unwrap().pop();
        let mut server = loop {
            match kept.take().or_else(free) {
                Some(server) => break server,
                None => std::thread::yield_now(),
            }
        };
        let added = prepare(&request, &mut prepared, &mut server)?;
        server.stream.write_all(&request.concat())?;
        match forward_response(&mut server.stream, &mut client, added)? {
            b'I' => pool.lock().unwrap().push(server),
            _ => kept = Some(server),
        }
    }
}

/// Prepares the statements that the request needs and this server connection does not have. Returns
/// how many.
fn prepare(request: &[Vec<u8>], prepared: &mut Prepared, server: &mut Server) -> Result<usize> {
    let mut added = 0;
    for message in request {
        let mut texts = message[5..].split(|byte| *byte == 0).map(<[u8]>::to_vec);
        let name = match message[0] {
            b'P' | b'B' => texts.nth(usize::from(message[0] == b'B')).unwrap_or_default(),
            b'D' if message[5] == b'S' => texts.next().unwrap_or_default()[1..].to_vec(),
            _ => continue,
        };
        if name.is_empty() {
            continue;
        }
        let known = !server.prepared.insert(name.clone());
        if message[0] == b'P' {
            prepared.insert(name, message.clone());
        } else if !known && let Some(parse) = prepared.get(&name) {
            server.stream.write_all(parse)?;
            added += 1;
        }
    }
    Ok(added)
}

/// Reads a request up to where the client waits for the response; `None` when the client
/// disconnects.
fn request(client: &mut TcpStream) -> Result<Option<Vec<Vec<u8>>>> {
    let mut all = Vec::new();
    loop {
        let (kind, message) = message(client)?;
        all.push(message);
        match kind {
            b'X' => return Ok(None),
            b'Q' | b'S' => return Ok(Some(all)),
            _ => {}
        }
    }
}

/// Forwards the response, without the confirmations of the added statements, and the login messages
/// of the client. Returns the state of the transaction after it.
fn forward_response(
    server: &mut TcpStream,
    client: &mut TcpStream,
    mut added: usize,
) -> Result<u8> {
    loop {
        let (kind, passed) = message(server)?;
        if kind == b'1' && added > 0 {
            added -= 1;
            continue;
        }
        client.write_all(&passed)?;
        if kind == b'R' && [10, 11].contains(&passed[8]) {
            server.write_all(&message(client)?.1)?;
        }
        if kind == b'Z' {
            return Ok(passed[5]);
        }
    }
}

fn message(stream: &mut TcpStream) -> Result<(u8, Vec<u8>)> {
    let mut message = vec![0; 5];
    stream.read_exact(&mut message)?;
    let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]) as usize;
    message.resize(length + 1, 0);
    stream.read_exact(&mut message[5..])?;
    Ok((message[0], message))
}
