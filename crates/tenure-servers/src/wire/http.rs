//! HTTP 1.0, for etcd's gateway and Consul.

use std::io::{self, Read, Write};

use super::{connect, odd};

/// One request to a port on loopback; returns the status and the body.
///
/// # Errors
/// When the connection fails, or the server is silent for five seconds.
pub fn request(port: u16, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = connect(port)?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| odd("no HTTP answer"))?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.ok_or_else(|| odd(head))?, body.to_owned()))
}

/// The body of a `GET`, if its status is 200.
///
/// # Errors
/// As [`request`], and for another status.
pub fn get(port: u16, path: &str) -> io::Result<String> {
    match request(port, "GET", path, "")? {
        (200, body) => Ok(body),
        (status, body) => Err(odd(format!("status {status}: {}", body.trim()))),
    }
}

/// The body of a `POST`, if its status is 200.
///
/// # Errors
/// As [`request`], and for another status.
pub fn post(port: u16, path: &str, body: &str) -> io::Result<String> {
    match request(port, "POST", path, body)? {
        (200, body) => Ok(body),
        (status, body) => Err(odd(format!("status {status}: {}", body.trim()))),
    }
}

/// The value of the first `"name": "value"` in a JSON text, numbers and booleans included.
/// Enough for flat answers; spaces do not matter.
pub fn json_field(json: &str, name: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    match rest.strip_prefix('"') {
        Some(text) => text.split('"').next().map(str::to_owned),
        None => rest.split([',', '}', ']']).next().map(|word| word.trim().to_owned()),
    }
}
