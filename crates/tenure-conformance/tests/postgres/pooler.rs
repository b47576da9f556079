//! A transaction pooler: gives a client any server connection for the length of a transaction.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

type Pool = Arc<Mutex<Vec<TcpStream>>>;

/// Listens until the process ends; the port.
pub(crate) fn start(server: u16) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let pool = Pool::default();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let pool = pool.clone();
            std::thread::spawn(move || serve(client, server, &pool));
        }
    });
    Ok(port)
}

fn serve(mut client: TcpStream, server: u16, pool: &Pool) -> Result<()> {
    let mut mine = TcpStream::connect(("127.0.0.1", server))?;
    let mut head = [0; 4];
    client.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_be_bytes(head) as usize - 4];
    client.read_exact(&mut body)?;
    mine.write_all(&[&head[..], &body].concat())?;
    answer(&mut mine, &mut client)?;
    pool.lock().unwrap().push(mine);
    let mut kept = None;
    loop {
        let Some(request) = request(&mut client)? else { return Ok(()) };
        let free = || pool.lock().unwrap().pop();
        let mut server = loop {
            match kept.take().or_else(free) {
                Some(server) => break server,
                None => std::thread::yield_now(),
            }
        };
        server.write_all(&request)?;
        match answer(&mut server, &mut client)? {
            b'I' => pool.lock().unwrap().push(server),
            _ => kept = Some(server),
        }
    }
}

/// Everything up to where the client waits for an answer; none when it says goodbye.
fn request(client: &mut TcpStream) -> Result<Option<Vec<u8>>> {
    let mut all = Vec::new();
    loop {
        let (kind, message) = message(client)?;
        all.extend(message);
        match kind {
            b'X' => return Ok(None),
            b'Q' | b'S' => return Ok(Some(all)),
            _ => {}
        }
    }
}

/// Passes the answer on, and what a login wants of the client; the state of the transaction after
/// it.
fn answer(server: &mut TcpStream, client: &mut TcpStream) -> Result<u8> {
    loop {
        let (kind, passed) = message(server)?;
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
