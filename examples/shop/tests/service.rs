//! The program itself, twice, on a Redis and a PostgreSQL: it sells, answers busy items with their
//! holder, and ends in order at SIGTERM.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Completion, Trial};
use rustix::process::{Pid, Signal, kill_process};
use tenure_servers::{Cluster, Options, Topology, require, start};

/// Long enough for two servers on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let trial = Trial::ignorable_test("the_shop_sells_and_ends_in_order", || match servers() {
        Ok(Some((redis, postgres))) => match run(&redis, &postgres) {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => Err(format!("{error:?}").into()),
        },
        Ok(None) => Ok(Completion::ignored_with("Redis or PostgreSQL cannot be had")),
        Err(error) => Err(format!("{error:?}").into()),
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

fn servers() -> Result<Option<(Cluster, Cluster)>> {
    let mut both = Vec::new();
    for topology in [Topology::Redis, Topology::Postgres] {
        match start(topology, &Options::default()) {
            Ok(server) => both.push(server),
            Err(error) if error.is_missing() && !require(topology.name()) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    let postgres = both.pop().context("a PostgreSQL")?;
    Ok(both.pop().map(|redis| (redis, postgres)))
}

fn run(redis: &Cluster, postgres: &Cluster) -> Result<()> {
    let one = Shop::start(redis, postgres)?;
    let two = Shop::start(redis, postgres)?;
    let (status, body) = one.request("POST /items/42/sell")?;
    ensure!(status == 200 && body.contains(r#""left":99"#), "{status} {body}");
    let (status, body) = two.request("POST /items/42/sell")?;
    ensure!(status == 200 && body.contains(r#""left":98"#), "{status} {body}");
    ensure!(one.request("POST /items/43/sell")?.0 == 200);
    ensure!(two.request("POST /items/43/sell")?.0 == 410, "it is sold out");

    // Another program holds the lock of the item.
    let locks = tenure::blocking::connect(&redis.url_with("owner=backup&prefix=shop/"))?;
    let guard = locks.lock("stock/42").note("stocktaking").acquire()?;
    let (status, body) = one.request("POST /items/42/sell")?;
    ensure!(status == 409, "{status} {body}");
    ensure!(body.contains(r#""owner":"backup""#) && body.contains("stocktaking"), "{body}");
    guard.release()?;
    ensure!(one.request("POST /items/42/sell")?.0 == 200);

    // One of them leads. When it ends, the other one does at once, and not after a lease.
    until("a leader", || Ok(one.leads()? != two.leads()?))?;
    let (leader, next) = if one.leads()? { (one, two) } else { (two, one) };
    leader.end()?;
    until("the next leader", || next.leads())?;
    next.end()?;
    ensure!(locks.list("")?.is_empty(), "a lock was left");
    Ok(())
}

/// A running shop.
struct Shop {
    process: Child,
    lines: Receiver<String>,
    address: String,
}

impl Shop {
    fn start(redis: &Cluster, postgres: &Cluster) -> Result<Shop> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
        command.env("LOCK_URL", redis.url()).env("DATABASE_URL", postgres.url()).env("PORT", "0");
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(process.stdout.take().context("a pipe")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(std::result::Result::ok) {
                drop(sender.send(line));
            }
        });
        let mut shop = Shop { process, lines, address: String::new() };
        let line = shop.lines.recv_timeout(LIMIT).context("the shop did not start")?;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        shop.address = address.context(line.clone())?.0.to_owned();
        Ok(shop)
    }

    /// Status and body of a response.
    fn request(&self, what: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        write!(
            stream,
            "{what} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let status = text.split(' ').nth(1).context("a status")?.parse()?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, body.to_owned()))
    }

    fn leads(&self) -> Result<bool> {
        Ok(self.request("GET /stocktaking")?.1 != "null")
    }

    /// Ends it by SIGTERM.
    fn end(mut self) -> Result<()> {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM)?;
        let last = self.lines.recv_timeout(LIMIT).context("the shop did not end")?;
        ensure!(last == "closed", "{last}");
        let status = self.process.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // If it has ended already, there is nothing to kill.
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = std::time::Instant::now() + LIMIT;
    while std::time::Instant::now() < end {
        if holds()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("{what}: not within {LIMIT:?}")
}
