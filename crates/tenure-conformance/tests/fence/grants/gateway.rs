//! JSON requests to etcd and Consul, all on one connection.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::registers::next_message;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// The server is on this machine, which may be busy.
const LONGEST: Duration = Duration::from_secs(60);

pub(super) struct Gateway(BufReader<TcpStream>);

impl Gateway {
    pub(super) async fn connect(url: &str) -> Result<Gateway> {
        let address = url.split_once("://").context("SCHEME://ADDRESS")?.1;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Gateway(BufReader::new(stream)))
    }

    /// Sends a request. Returns the status and the body of the response.
    pub(super) async fn request(&mut self, line: &str, body: &str) -> Result<(u16, String)> {
        let length = body.len();
        let text =
            format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
        let response = async {
            self.0.write_all(text.as_bytes()).await?;
            next_message(&mut self.0).await
        };
        let (line, _, body) = timeout(LONGEST, response).await.context("no response")??;
        Ok((line.split(' ').nth(1).context("a status")?.parse()?, body))
    }
}

/// Bytes as JSON carries them.
pub(super) fn encode(bytes: impl AsRef<[u8]>) -> String {
    let mut text = String::new();
    for chunk in bytes.as_ref().chunks(3) {
        let part = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = part(0) << 16 | part(1) << 8 | part(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at > chunk.len() { '=' } else { digit.into() });
        }
    }
    text
}

/// A number that was encoded as text.
pub(super) fn number(text: &str) -> Result<i64> {
    let mut bytes = Vec::new();
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = chunk.iter().try_fold(0_u32, |bits, digit| {
            let value = DIGITS.iter().position(|known| known == digit)?;
            Some(bits << 6 | value as u32)
        });
        let bits = bits.context("base64")? << (6 * (4 - chunk.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    Ok(String::from_utf8(bytes)?.parse()?)
}
