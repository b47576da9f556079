//! The process of the protected resource: serves the three registers over TCP.
//!
//! It numbers the effects itself, so that their order does not depend on any clock, and it writes
//! the events itself, so that an effect is in the history even if its writer was killed right
//! after it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::protocol::{emit, end_with_parent};
use crate::clock::Clock;
use crate::registers::{RegisterRequest, RegisterResponse, Registers};
use crate::sync::Mutex;

/// The resource runs on the same machine and does next to nothing: longer means that it hangs.
const RESPONSE_LIMIT: Duration = Duration::from_secs(20);

/// A client's connection to the resource.
#[derive(Debug)]
pub(super) struct ResourceConnection {
    stream: BufReader<TcpStream>,
}

impl ResourceConnection {
    pub(super) fn open(port: u16) -> Result<ResourceConnection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(RESPONSE_LIMIT))?;
        Ok(ResourceConnection { stream: BufReader::new(stream) })
    }

    pub(super) fn execute(&mut self, request: &RegisterRequest) -> Result<RegisterResponse> {
        writeln!(self.stream.get_mut(), "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the resource has ended");
        }
        serde_json::from_str(&line).context("unexpected response from the resource")
    }
}

/// Runs the resource in this process: prints its port, then serves until its input ends.
pub(super) fn run(start: u64) -> Result<()> {
    end_with_parent()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let registers = Arc::new(Mutex::new(Registers::default()));
    let clock = Clock::since(start);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let registers = registers.clone();
            std::thread::spawn(move || serve(stream, &registers, clock));
        }
    });
    let mut end = String::new();
    while std::io::stdin().read_line(&mut end)? > 0 {}
    Ok(())
}

fn serve(stream: TcpStream, registers: &Mutex<Registers>, clock: Clock) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut output = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let request: RegisterRequest = serde_json::from_str(&line?)?;
        let response = {
            let mut registers = registers.lock();
            let (response, kind) = registers.execute(&request);
            // Under the mutex, so that events are written in the order of effects.
            emit(clock, &request.client, kind);
            response
        };
        writeln!(output, "{}", serde_json::to_string(&response)?)?;
    }
    Ok(())
}
