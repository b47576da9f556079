//! The commands that a client of tenure sends for one acquire and release, as the server sees them:
//! the bare client sends the same ones, and they cannot go stale.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Value};
use anyhow::{Context, Result, ensure};
use tenure::Client;
use tenure_servers::Node;
use tenure_servers::wire::redis::execute;
use tokio::runtime::Runtime;

use crate::warm::Cycle;

/// The key of the recorded lock: part of all names that belong to it.
const KEY: &str = "recorded";
/// What ends the recording.
const END: &str = "end-of-recording";

/// The commands of one acquire and release, with all their arguments.
#[derive(Clone, Debug)]
pub(crate) struct Recording(Vec<Vec<Vec<u8>>>);

impl Recording {
    /// Records them from this client by `MONITOR`.
    pub(crate) fn of(runtime: &Runtime, client: &Client, node: &Node) -> Result<Recording> {
        let lock = client.lock(KEY);
        let cycle = || runtime.block_on(async { lock.acquire().await?.release().await });
        // The server has to know the scripts, and the client its channels.
        cycle()?;
        let mut monitor = Monitor::start(node)?;
        cycle()?;
        execute(node.port(), &["ECHO", END])?;
        let mut commands = Vec::new();
        loop {
            let words = monitor.next()?;
            if words.iter().any(|word| word == END.as_bytes()) {
                break;
            }
            if words.iter().any(|word| contains(word, KEY.as_bytes())) {
                commands.push(words);
            }
        }
        ensure!(commands.len() >= 2, "the recording has {} commands", commands.len());
        Ok(Recording(commands))
    }

    /// A bare client that sends them for another key.
    pub(crate) fn on(&self, connection: &MultiplexedConnection, key: &str) -> Replay {
        let renamed = |word: &Vec<u8>| replace(word, KEY.as_bytes(), key.as_bytes());
        let commands = self.0.iter().map(|words| words.iter().map(renamed).collect()).collect();
        Replay { connection: connection.clone(), commands, expected: Vec::new() }
    }
}

/// A bare client that sends what tenure sends.
#[derive(Clone)]
pub(crate) struct Replay {
    connection: MultiplexedConnection,
    commands: Vec<Vec<Vec<u8>>>,
    /// What the first responses looked like: a grant and a release.
    expected: Vec<Shape>,
}

impl Cycle for Replay {
    async fn once(&mut self) -> Result<()> {
        for (number, words) in self.commands.iter().enumerate() {
            let mut command = Cmd::new();
            for word in words {
                command.arg(word);
            }
            let response: Value = command.query_async(&mut self.connection).await?;
            let shape = Shape::of(&response);
            if self.expected.len() <= number {
                self.expected.push(shape);
            }
            ensure!(self.expected[number] == shape, "the lock was not free: {response:?}");
        }
        Ok(())
    }
}

/// What a response says besides its figures.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Shape {
    Number(i64),
    /// A list that begins with this number.
    List(Option<i64>),
    Other,
}

impl Shape {
    fn of(response: &Value) -> Shape {
        match response {
            Value::Int(number) => Shape::Number(*number),
            Value::Array(parts) => Shape::List(match parts.first() {
                Some(Value::Int(number)) => Some(*number),
                _ => None,
            }),
            _ => Shape::Other,
        }
    }
}

/// A connection on which a server says what it executes.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(node: &Node) -> Result<Monitor> {
        let stream = TcpStream::connect((node.host(), node.port()))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut monitor = Monitor(BufReader::new(stream));
        if let Some(password) = node.password() {
            monitor.say(&format!("AUTH {password}"))?;
        }
        monitor.say("MONITOR")?;
        Ok(monitor)
    }

    fn say(&mut self, command: &str) -> Result<()> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let response = self.line()?;
        ensure!(response.starts_with("+OK"), "{response}");
        Ok(())
    }

    /// The words of the next command that a client sent.
    fn next(&mut self) -> Result<Vec<Vec<u8>>> {
        loop {
            let line = self.line()?;
            let (source, words) = line.split_once("] ").context("a line of MONITOR")?;
            // What scripts call is marked.
            if !source.ends_with(" lua") {
                return Ok(unquote(words));
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).context("MONITOR")?;
        Ok(line.trim_end().to_owned())
    }
}

/// Reads words in quotes, as `MONITOR` writes them.
fn unquote(text: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut bytes = text.bytes();
    while bytes.by_ref().any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = bytes.next().filter(|byte| *byte != b'"') {
            if byte != b'\\' {
                word.push(byte);
                continue;
            }
            match bytes.next() {
                Some(b'n') => word.push(b'\n'),
                Some(b'r') => word.push(b'\r'),
                Some(b't') => word.push(b'\t'),
                Some(b'a') => word.push(7),
                Some(b'b') => word.push(8),
                Some(b'x') => {
                    let digits: Vec<u8> = bytes.by_ref().take(2).collect();
                    let digits = String::from_utf8_lossy(&digits).into_owned();
                    word.push(u8::from_str_radix(&digits, 16).unwrap_or(b'?'));
                }
                Some(other) => word.push(other),
                None => {}
            }
        }
        words.push(word);
    }
    words
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn replace(text: &[u8], part: &[u8], by: &[u8]) -> Vec<u8> {
    let mut result = Vec::new();
    let mut rest = text;
    while let Some(place) = rest.windows(part.len()).position(|window| window == part) {
        result.extend_from_slice(&rest[..place]);
        result.extend_from_slice(by);
        rest = &rest[place + part.len()..];
    }
    result.extend_from_slice(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_monitor_are_read() {
        let words = unquote(r#""EVALSHA" "a\"b" "x\ty\x01z" "" "p\\""#);
        let expected: [&[u8]; 5] = [b"EVALSHA", b"a\"b", b"x\ty\x01z", b"", b"p\\"];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_key_is_replaced_wherever_it_stands() {
        assert_eq!(replace(b"t:{recorded}:recorded", b"recorded", b"k"), b"t:{k}:k");
        assert!(contains(b"t:{recorded}", b"recorded"));
    }
}
