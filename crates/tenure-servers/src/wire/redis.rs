//! Redis and Valkey: commands and their responses (RESP2).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::{connect, unexpected};
use crate::secret;

/// A connection to a Redis or a Sentinel.
#[derive(Debug)]
pub struct Redis {
    stream: BufReader<TcpStream>,
}

/// A response.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Value {
    /// `-ERR …`
    Error(String),
    /// `:1`
    Int(i64),
    /// `*2 …`
    List(Vec<Value>),
    /// No value.
    Nil,
    /// `+OK` or a string.
    Text(String),
}

impl Value {
    /// The text; `None` if it is another kind of value.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Redis {
    /// Connects to a port on loopback, with the password of the cluster that this process runs
    /// there.
    ///
    /// # Errors
    /// When there is no response within five seconds, or the password is refused.
    pub fn connect(port: u16) -> io::Result<Self> {
        let mut connection = Self::anonymous(port)?;
        if let Some(secret) = secret::of(port)
            && let Value::Error(reason) = connection.command(&["AUTH", secret.as_str()])?
        {
            return Err(unexpected(reason));
        }
        Ok(connection)
    }

    /// Connects without a password, as a foreign client would.
    ///
    /// # Errors
    /// When there is no response within five seconds.
    pub fn anonymous(port: u16) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(connect(port)?) })
    }

    /// Sends one command and reads its response. An error of the server is a [`Value::Error`].
    ///
    /// # Errors
    /// When the connection fails or the response takes longer than five seconds.
    pub fn command(&mut self, words: &[&str]) -> io::Result<Value> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.value()
    }

    fn value(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) =
            line.split_at_checked(1).ok_or_else(|| unexpected("an empty response"))?;
        let number = || rest.parse::<i64>().map_err(|_| unexpected(line));
        Ok(match kind {
            "+" => Value::Text(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => self.bulk(length)?,
                Err(_) => Value::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => {
                    Value::List((0..length).map(|_| self.value()).collect::<Result<_, _>>()?)
                }
                Err(_) => Value::Nil,
            },
            _ => return Err(unexpected(line)),
        })
    }

    fn bulk(&mut self, length: usize) -> io::Result<Value> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// Executes one command on a new connection.
///
/// # Errors
/// As [`Redis::command`].
pub fn execute(port: u16, words: &[&str]) -> io::Result<Value> {
    Redis::connect(port)?.command(words)
}
