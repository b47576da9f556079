//! The protected resource: a process of its own with three registers side by side. It numbers its
//! effects, so that their order does not depend on any clock, and it records them itself, so that
//! an effect whose writer died at once is in the history too.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::part::{end_with_parent, say};
use crate::history::{Register, What};

/// The registers in the order in which clients go through them.
pub(crate) const REGISTERS: [Register; 3] = [Register::Plain, Register::Write, Register::ReadWrite];

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) client: String,
    pub(crate) hold: u64,
    pub(crate) register: Register,
    pub(crate) token: Option<u64>,
    /// To be written; none for a read.
    pub(crate) value: Option<u64>,
}

/// What it is answered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Its place in the order of effects.
    pub(crate) seq: u64,
    pub(crate) value: u64,
    pub(crate) refused: bool,
}

/// A client's way to the resource.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LONGEST))?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Result<Answer> {
        writeln!(self.stream.get_mut(), "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the resource has ended");
        }
        serde_json::from_str(&line).context("an odd answer of the resource")
    }
}

/// In the process that is the resource: tells its port, then serves until its input ends.
pub(crate) fn play(start: u64) -> Result<()> {
    end_with_parent()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let shop = Arc::new(Mutex::new(Shop::default()));
    let clock = Clock::since(start);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shop = shop.clone();
            std::thread::spawn(move || serve(stream, &shop, clock));
        }
    });
    let mut end = String::new();
    while std::io::stdin().read_line(&mut end)? > 0 {}
    Ok(())
}

fn serve(stream: TcpStream, shop: &Mutex<Shop>, clock: Clock) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut output = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = {
            let mut shop = shop.lock().unwrap_or_else(PoisonError::into_inner);
            let (answer, what) = shop.serve(&request);
            // Told before the lock is free, so that the lines come in the order of effects.
            say(clock, &request.client, what);
            answer
        };
        writeln!(output, "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

/// The three registers.
#[derive(Debug, Default)]
struct Shop {
    seq: u64,
    cells: HashMap<Register, Cell>,
}

#[derive(Debug, Default)]
struct Cell {
    value: u64,
    /// The highest token that the fence has seen.
    fence: u64,
    /// How many writes there were.
    version: u64,
    /// The version that each attempt has read.
    read: HashMap<u64, u64>,
}

impl Shop {
    fn serve(&mut self, request: &Request) -> (Answer, What) {
        self.seq += 1;
        let Request { hold, register, token, .. } = *request;
        let cell = self.cells.entry(register).or_default();
        // A fence looks at writes, or at reads too; without a token there is nothing to look at.
        let looks = match register {
            Register::Plain => false,
            Register::Write => request.value.is_some(),
            Register::ReadWrite => true,
        };
        let shown = token.filter(|_| looks);
        let refused = shown.is_some_and(|token| token < cell.fence);
        if !refused {
            cell.fence = cell.fence.max(shown.unwrap_or(0));
        }
        let (seq, mut stale) = (self.seq, false);
        let what = match request.value {
            None => {
                cell.read.insert(hold, cell.version);
                What::Read { hold, register, seq, value: cell.value, token, refused }
            }
            Some(value) => {
                if !refused {
                    stale = cell.read.get(&hold).is_some_and(|read| *read != cell.version);
                    cell.value = value;
                    cell.version += 1;
                }
                What::Wrote { hold, register, seq, value, token, refused, stale }
            }
        };
        (Answer { seq, value: cell.value, refused }, what)
    }
}

/// The resource is on the same machine and does next to nothing.
const LONGEST: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(shop: &mut Shop, hold: u64, register: Register, value: Option<u64>) -> (bool, bool) {
        let client = "A".to_owned();
        let request = Request { client, hold, register, token: Some(hold), value };
        match shop.serve(&request).1 {
            What::Wrote { refused, stale, .. } => (refused, stale),
            What::Read { refused, .. } => (refused, false),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_fence_on_both_stops_a_stale_write_before_the_new_holders_first() {
        let mut shop = Shop::default();
        let mut late = Vec::new();
        for register in REGISTERS {
            ask(&mut shop, 1, register, None);
            ask(&mut shop, 2, register, None);
            let (refused, _) = ask(&mut shop, 1, register, Some(1));
            let (_, stale) = ask(&mut shop, 2, register, Some(1));
            late.push((refused, stale));
        }
        assert_eq!(late, [(false, true), (false, true), (true, false)]);
    }
}
