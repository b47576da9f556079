//! HTTP 1.0, for etcd's gateway and Consul.

use std::io::{self, Read, Write};

use super::{connect, unexpected};

/// Sends one request to a port on loopback. Returns the status and the body.
///
/// # Errors
/// When the connection fails, or there is no response for five seconds.
pub fn request(port: u16, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = connect(port)?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) =
        response.split_once("\r\n\r\n").ok_or_else(|| unexpected("no HTTP response"))?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.ok_or_else(|| unexpected(head))?, body.to_owned()))
}

/// The body of a `GET`, if its status is 200.
///
/// # Errors
/// As [`request`], and for another status.
pub fn get(port: u16, path: &str) -> io::Result<String> {
    ok_body(request(port, "GET", path, "")?)
}

/// The body of a `POST`, if its status is 200.
///
/// # Errors
/// As [`request`], and for another status.
pub fn post(port: u16, path: &str, body: &str) -> io::Result<String> {
    ok_body(request(port, "POST", path, body)?)
}

fn ok_body((status, body): (u16, String)) -> io::Result<String> {
    if status != 200 {
        return Err(unexpected(format!("status {status}: {}", body.trim())));
    }
    Ok(body)
}

/// The value of the first `"name": "value"` in a JSON text, numbers and booleans included.
/// Enough for flat objects; spaces do not matter.
pub fn json_field(json: &str, name: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    match rest.strip_prefix('"') {
        Some(text) => text.split('"').next().map(str::to_owned),
        None => rest.split([',', '}', ']']).next().map(|word| word.trim().to_owned()),
    }
}
