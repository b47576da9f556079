//! Another process that uses the library: the test program itself, started again. It is told what
//! to do line by line, can be killed and stopped, and ends when the test does.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tenure::blocking::{self, Client, Guard};
use tenure::{Attempt, ErrorKind, FencingToken};

/// The environment variable that makes the test program a peer.
const PEER: &str = "TENURE_CONFORMANCE_PEER";

/// How long a holder may take to write the counter file.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// A process that does what it is told.
pub struct Peer {
    child: Child,
    commands: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the running program again as a peer on this store.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(url: &str) -> Result<Peer> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(PEER, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a peer")?;
        let commands = child.stdin.take().context("the peer has a stdin")?;
        let responses = BufReader::new(child.stdout.take().context("the peer has a stdout")?);
        Ok(Peer { child, commands, responses })
    }

    /// Sends a command without waiting for its response.
    ///
    /// # Errors
    ///
    /// If the peer is gone.
    pub fn send(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}").context("the peer is gone")
    }

    /// Waits for the next response.
    ///
    /// # Errors
    ///
    /// If the peer has ended, or its response is an error.
    pub fn response(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.responses.read_line(&mut line)? == 0 {
            bail!("the peer ended without a response");
        }
        match line.trim_end().strip_prefix("error ") {
            Some(error) => Err(anyhow!("the peer says: {error}")),
            None => Ok(line.trim_end().to_owned()),
        }
    }

    /// Sends a command and waits for its response.
    ///
    /// # Errors
    ///
    /// As for [`send`](Peer::send) and [`response`](Peer::response).
    pub fn execute(&mut self, command: &str) -> Result<String> {
        self.send(command)?;
        self.response()
    }

    /// Acquires a lock there.
    ///
    /// # Errors
    ///
    /// As for [`execute`](Peer::execute).
    pub fn acquire(&mut self, key: &str, ttl: Duration) -> Result<FencingToken> {
        Ok(self.execute(&format!("acquire {} {key}", ttl.as_millis()))?.parse()?)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a pid")?, signal)?)
    }

    /// Ends it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Closes its input and waits until it has ended by itself.
    ///
    /// # Errors
    ///
    /// If it failed.
    pub fn finish(self) -> Result<()> {
        let Peer { mut child, commands, .. } = self;
        drop(commands);
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(anyhow!("the peer ended with {status}")) }
    }
}

/// In the test program's `main`: plays the peer if this process was started as one.
pub fn play() -> bool {
    let Ok(url) = std::env::var(PEER) else { return false };
    // A stopped peer cannot see its input close; this ends it with the test that started it.
    let _unsupported = set_parent_process_death_signal(Some(Signal::KILL));
    let mut role = Role { url, client: None, guard: None };
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { break };
        match role.obey(&line) {
            Ok(response) => println!("{response}"),
            Err(error) => println!("error {error:#}"),
        }
    }
    true
}

struct Role {
    url: String,
    client: Option<Client>,
    guard: Option<Guard>,
}

impl Role {
    fn obey(&mut self, line: &str) -> Result<String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "acquire" | "shared" => {
                let (ttl, key) = rest.split_once(' ').context("acquire TTL KEY")?;
                let lock = self.client()?.lock(key).ttl(Duration::from_millis(ttl.parse()?));
                let guard = if verb == "shared" { lock.shared() } else { lock }.acquire()?;
                let token = guard.token();
                self.guard = Some(guard);
                Ok(token.to_string())
            }
            "check" => match self.guard.as_ref().context("nothing is held")?.check() {
                Ok(left) => Ok(format!("held {}", left.as_millis())),
                Err(lost) => Ok(format!("lost {:?}", lost.reason())),
            },
            "release" => {
                self.guard.take().context("nothing is held")?.release()?;
                Ok("released".into())
            }
            "drop" => {
                self.guard = None;
                self.client = None;
                Ok("dropped".into())
            }
            "release-and-exit" => {
                self.guard.take().context("nothing is held")?.release()?;
                std::process::exit(0);
            }
            "drop-and-exit" => {
                self.guard = None;
                self.client()?.flush()?;
                std::process::exit(0);
            }
            "evict-and-exit" => {
                let (token, key) = rest.split_once(' ').context("evict-and-exit TOKEN KEY")?;
                ensure!(self.client()?.lock(key).evict(token.parse()?)?, "there is no such grant");
                std::process::exit(0);
            }
            "race" => {
                let mut words = rest.splitn(3, ' ');
                let mut word = || words.next().context("race ROUNDS FILE KEY");
                let (rounds, file, key) = (word()?.parse()?, word()?, word()?);
                race(self.client()?, rounds, Path::new(file), key)
            }
            "race-pair" => {
                let mut words = rest.splitn(4, ' ');
                let mut word = || words.next().context("race-pair NUMBER ROUNDS FILE KEY");
                let (number, rounds) = (word()?.parse()?, word()?.parse()?);
                race_pair(self.client()?, number, rounds, Path::new(word()?), word()?)
            }
            other => bail!("no such command: {other}"),
        }
    }

    fn client(&mut self) -> Result<&Client> {
        match &mut self.client {
            Some(client) => Ok(client),
            none => Ok(none.insert(blocking::connect(&self.url)?)),
        }
    }
}

/// Adds to a counter in a file, each time under the lock. The file also has the last token: every
/// one has to be higher. Responds with the most grants to other processes during one wait: unlike
/// a time, that number does not depend on how often the machine stalls. The first wait does not
/// count, because it opens connections before it enters the queue.
fn race(client: &Client, rounds: u32, file: &Path, key: &str) -> Result<String> {
    let mut most_overtakes = 0;
    for round in 0..rounds {
        let before = count_outside(file)?;
        let guard = client.lock(key).acquire()?;
        let count = add_one(file, guard.token())?;
        if round > 0 {
            most_overtakes = most_overtakes.max(count.saturating_sub(before));
        }
        match guard.release() {
            Ok(()) => {}
            // A server that stalled for longer than a request may take. The client repeats the
            // release until the server responds.
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(most_overtakes.to_string())
}

/// Reads and writes a pair of equal numbers in a file: writers, a third of all, write one number
/// after the other; readers hold the lock shared, and must never see two that differ. Responds with
/// the number of its writes.
fn race_pair(client: &Client, number: u32, rounds: u32, file: &Path, key: &str) -> Result<String> {
    let mut writes = 0;
    for round in 0..rounds {
        let lock = client.lock(key);
        let writes_now = (number + round).is_multiple_of(3);
        let guard = if writes_now { lock.acquire()? } else { lock.shared().acquire()? };
        let (one, two) = read_counter(file)?;
        ensure!(one == two, "a torn pair: {one} and {two}");
        if writes_now {
            std::fs::write(file, format!("{} {two}.", one + 1))?;
            std::thread::yield_now();
            std::fs::write(file, format!("{} {}.", one + 1, two + 1))?;
            writes += 1;
        }
        match guard.release() {
            Err(error) if error.kind() != ErrorKind::Unavailable => return Err(error.into()),
            _ => {}
        }
    }
    Ok(writes.to_string())
}

/// The count, read without the lock. A holder may just have emptied the file to write it again.
fn count_outside(file: &Path) -> Result<u64> {
    let end = Instant::now() + READ_LIMIT;
    loop {
        if let Ok((count, _)) = read_counter(file) {
            return Ok(count);
        }
        ensure!(Instant::now() < end, "the counter file holds no two numbers for {READ_LIMIT:?}");
        std::thread::yield_now();
    }
}

/// Reads, adds and writes back, with nothing but the lock to make that safe. Returns the count
/// that it found.
fn add_one(file: &Path, token: FencingToken) -> Result<u64> {
    let (count, last) = read_counter(file)?;
    if token.get() <= last {
        bail!("token {token} came after {last}");
    }
    std::fs::write(file, format!("{} {token}.", count + 1))?;
    Ok(count)
}

/// The count and the last token. The final dot shows that the file was written whole.
fn read_counter(file: &Path) -> Result<(u64, u64)> {
    let text = std::fs::read_to_string(file)?;
    let whole = text.strip_suffix('.').context("the counter file ends with a dot")?;
    let (count, last) = whole.split_once(' ').context("the counter file holds two numbers")?;
    Ok((count.parse()?, last.parse()?))
}

/// Acquires a lock that must be free, without waiting.
///
/// # Errors
///
/// If it is busy.
pub fn take_now(client: &Client, key: &str) -> Result<Guard> {
    match client.lock(key).try_acquire()? {
        Attempt::Granted(guard) => Ok(guard),
        Attempt::Busy(busy) => bail!("{busy}"),
    }
}
