//! One server process with its ports and its data, into which faults can be injected.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::ports::Port;
use crate::process::{Launch, Process, log_excerpt, tail};
use crate::proxy::Proxy;
use crate::secret::Secret;
use crate::servers;
use crate::wire::{self, redis};

/// How long a server may take to start. A slow machine under load starts a JVM in several seconds.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);

/// One server process. Every method may be called from any thread.
#[derive(Debug)]
pub struct Node {
    pub(crate) name: String,
    pub(crate) server: &'static str,
    pub(crate) role: Role,
    /// The port for clients first, then those for peers.
    pub(crate) ports: Vec<Port>,
    pub(crate) launch: Launch,
    pub(crate) stop: Signal,
    pub(crate) clock: Option<Clock>,
    /// The password that clients need.
    pub(crate) secret: Option<Secret>,
    pub(crate) process: Mutex<Option<Process>>,
}

/// The role of a node in its cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Keeps data.
    Member,
    /// Watches the members and tells clients which one is the master.
    Sentinel,
}

impl Node {
    /// The name within the cluster, such as `n1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The role in the cluster.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The address it listens on; always loopback.
    pub fn host(&self) -> &'static str {
        "127.0.0.1"
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.ports[0].number()
    }

    /// The port for clients with TLS, of a server that was started with
    /// [`Options::tls`](crate::Options::tls).
    pub fn tls_port(&self) -> u16 {
        self.ports.last().map_or(0, Port::number)
    }

    /// `host:port` for clients.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host(), self.port())
    }

    /// The URL of this node alone.
    pub fn url(&self) -> String {
        match self.server {
            "mysql" => servers::mysql::url(self),
            server => url(server, &self.address(), self.secret.as_ref()),
        }
    }

    /// The URL of this node at another address, such as that of a [`Proxy`] in front of it.
    pub fn url_at(&self, address: &str) -> String {
        self.url().replacen(&self.address(), address, 1)
    }

    /// The password that clients need, if the server requires one.
    pub fn password(&self) -> Option<String> {
        match self.server {
            "mysql" => servers::mysql::password(self).ok(),
            _ => self.secret.as_ref().map(|secret| secret.as_str().to_owned()),
        }
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        running(&mut self.process()).map(|process| process.id())
    }

    /// Whether the process runs; a paused one does.
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Shuts it down in the regular way; with SIGKILL if that takes longer than 15 s.
    ///
    /// # Errors
    /// When it does not run.
    pub fn stop(&self) -> Result<()> {
        self.with_process("stop", |process| {
            process.signal_tree(Signal::CONT);
            process.signal(self.stop);
            if process.wait(Duration::from_secs(15)).is_none() {
                process.kill();
            }
        })
    }

    /// `kill -9`, with its child processes. It has ended when this returns.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self) -> Result<()> {
        self.with_process("kill", Process::kill)
    }

    /// Starts it again on the same port with the same data, stopping it first if it runs, and waits
    /// until it responds. A member of a cluster responds before the cluster is
    /// [ready](crate::Cluster::wait_ready).
    ///
    /// # Errors
    /// When it does not start; with the end of its log.
    pub fn restart(&self) -> Result<()> {
        if self.is_running() {
            self.stop()?;
        }
        self.spawn()?;
        self.wait_response(START_LIMIT)
    }

    /// Stops the process and its children (SIGSTOP). Connections stay open and new
    /// ones are accepted by the kernel, but there is no response.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        self.with_process("pause", |process| process.signal_tree(Signal::STOP))
    }

    /// Continues a paused process (SIGCONT).
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.with_process("resume", |process| process.signal_tree(Signal::CONT))
    }

    /// Shifts its wall clock by this much from the real one: forward if positive, 0 to reset it.
    /// Takes effect at once and persists over restarts. Its monotonic clock is not changed.
    ///
    /// # Errors
    /// Unless it was started with [`Options::clock`](crate::Options::clock).
    pub fn shift_clock(&self, offset_ms: i64) -> Result<()> {
        let doing = || format!("shift the clock of {}", self.label());
        match &self.clock {
            Some(clock) => clock.set(offset_ms).map_err(|error| Error::failed(doing(), error)),
            None => Err(Error::failed(doing(), "it was started without Options::clock")),
        }
    }

    /// Starts a proxy in front of the client port, as a link that can be cut. Each call makes a
    /// separate link.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn proxy(&self) -> Result<Proxy> {
        Proxy::start(self.port())
    }

    /// Starts a proxy that connects to the server from these source ports.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn proxy_from(&self, source: Range<u16>) -> Result<Proxy> {
        Proxy::start_from(self.port(), source)
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.launch.log, lines)
    }

    /// The folder with its data.
    pub fn dir(&self) -> &Path {
        &self.launch.dir
    }

    /// The name in error messages.
    pub(crate) fn label(&self) -> String {
        format!("{} {}", self.server, self.name)
    }

    pub(crate) fn spawn(&self) -> Result<()> {
        let process = self.launch.spawn();
        let process =
            process.map_err(|error| Error::failed(format!("start {}", self.label()), error))?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Waits until the server responds. Fails at once if it has ended.
    pub(crate) fn wait_response(&self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let Err(reason) = self.probe() else { return Ok(()) };
            let reason = if !self.is_running() {
                "it has ended".to_owned()
            } else if Instant::now() >= end {
                format!("no response within {limit:?}: {reason}")
            } else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let reason = format!("{reason}{}", log_excerpt(&self.launch.log));
            return Err(Error::failed(format!("start {}", self.label()), reason));
        }
    }

    /// Sends a request to which the node can respond alone, without its peers.
    fn probe(&self) -> io::Result<()> {
        let port = self.port();
        let expect = |response: String, wanted: &str| {
            response.contains(wanted).then_some(()).ok_or_else(|| io::Error::other(response))
        };
        match self.server {
            "consul" => wire::http::get(port, "/v1/agent/self").map(drop),
            "etcd" => wire::http::get(port, "/version").map(drop),
            "mariadb" => wire::mysql::Mysql::connect(port)?.query("select 1").map(drop),
            "mysql" => servers::mysql::ready(self),
            "postgres" => wire::postgres::Postgres::connect(port)?.query("select 1").map(drop),
            "redis" => expect(format!("{:?}", redis::execute(port, &["PING"])?), "PONG"),
            _ => expect(wire::zookeeper::four_letters(port, "ruok")?, "imok"),
        }
    }

    fn with_process(&self, doing: &str, act: impl FnOnce(&mut Process)) -> Result<()> {
        match running(&mut self.process()) {
            Some(process) => {
                act(process);
                Ok(())
            }
            None => Err(Error::failed(format!("{doing} {}", self.label()), "it does not run")),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

fn running(process: &mut Option<Process>) -> Option<&mut Process> {
    let process = process.as_mut()?;
    process.ended().is_none().then_some(process)
}

/// The URL of a server at these addresses, separated by commas.
pub(crate) fn url(server: &str, addresses: &str, secret: Option<&Secret>) -> String {
    let login = secret.map_or(String::new(), |secret| format!(":{}@", secret.as_str()));
    match server {
        "mariadb" => format!("mysql://root{login}{addresses}/test"),
        "postgres" => format!("postgres://postgres{login}{addresses}/postgres"),
        "zookeeper" => format!("zk://{addresses}"),
        _ => format!("{server}://{login}{addresses}"),
    }
}
