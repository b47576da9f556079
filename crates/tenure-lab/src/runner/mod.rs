//! Drives one run: starts the resource and the clients as processes of their own, gives them
//! commands, injects faults, and records what happens.
//!
//! Nothing here sleeps to make something happen. The runner waits for an event of a process, or
//! until the server shows a state, and then gives the next command or injects the next fault. So a
//! scenario takes the same course on a slow machine.
//!
//! A scenario is written with the methods of [`Runner`]; each file has one kind of them:
//!
//! - `mod`: start and end of a run, start of clients.
//! - `commands`: what clients do: acquire, read, write, release.
//! - `faults`: signals to clients, and what the history says about faults.
//! - `observe`: the state of the lock at the server, and what was recorded so far.
//!
//! Behind it:
//!
//! - `client_process`: the runner's end of a client process.
//! - `recorder`: collects the events of all processes.
//! - `server_observer`: the lab's own connection to the server.

mod client_process;
mod commands;
mod faults;
mod observe;
mod recorder;
mod server_observer;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use self::client_process::ClientProcess;
pub(crate) use self::commands::{AcquireOutcome, StepOutcome};
pub(crate) use self::faults::Unsupported;
use self::recorder::Recorder;
use self::server_observer::ServerObserver;
use crate::clock::{Clock, nanos};
use crate::history::{Event, EventKind, Header, History, Lane, LaneKind};
use crate::roles::protocol::{CLOCKS, ClientConfig, DONE, READY};
use crate::schemes::{LockSpec, with_session};
use crate::server_setup::{Route, ServerSetup};

/// The lane of the lab itself, which injects the faults.
pub(crate) const LAB: &str = "lab";
/// The lane of the servers.
pub(crate) const SERVER: &str = "server";
/// The lane of the protected resource.
const RESOURCE: &str = "resource";
/// How long the runner waits for an event that has to come.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// A run in progress.
pub(crate) struct Runner<'a> {
    pub(crate) lock: &'static LockSpec,
    pub(crate) setup: &'a ServerSetup,
    pub(crate) key: String,
    /// The lease that clients request.
    pub(crate) lease: Duration,
    /// How long the runner waits for a client that waits for the lock.
    pub(crate) limit: Duration,
    program: PathBuf,
    clock: Clock,
    recorder: Arc<Recorder>,
    resource: Child,
    /// The thread that records the events of the resource.
    follower: Option<JoinHandle<()>>,
    /// Port of the resource.
    port: u16,
    clients: BTreeMap<String, ClientProcess>,
    lanes: Vec<Lane>,
    /// The number of attempts so far.
    holds: u64,
    observer: Option<ServerObserver>,
}

impl<'a> Runner<'a> {
    /// Starts a run: the resource is ready when this returns.
    pub(crate) fn start(
        setup: &'a ServerSetup,
        lock: &'static LockSpec,
        (lease, limit): (Duration, Duration),
        program: &Path,
    ) -> Result<Runner<'a>> {
        let clock = Clock::begin();
        let recorder = Recorder::new(clock);
        let mut resource = Command::new(program)
            .args(["lab", "play", &format!("resource:{}", clock.start())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the resource")?;
        let output = resource.stdout.take().context("the resource has no stdout")?;
        let mut output = BufReader::new(output);
        let mut port = String::new();
        output.read_line(&mut port)?;
        let port = port.trim().parse().context("the resource did not print its port")?;
        let follower = Some(recorder.follow(output));
        let mut runner = Runner {
            lock,
            setup,
            key: format!("lab/{:08x}", clock.start() as u32),
            lease,
            limit,
            program: program.to_owned(),
            clock,
            recorder,
            resource,
            follower,
            port,
            clients: BTreeMap::new(),
            lanes: Vec::new(),
            holds: 0,
            observer: None,
        };
        runner.measure("lease", lease.as_secs_f64() * 1e3, "ms");
        Ok(runner)
    }

    /// Starts a client with its own route to the server; it is connected when this returns.
    pub(crate) fn start_client(&mut self, name: &str) -> Result<()> {
        let route = self.setup.route()?;
        self.start_client_on(name, route, &[])
    }

    /// Starts a client whose wall clock is ahead by this much, and whose machine can be suspended.
    pub(crate) fn start_client_with_clock(&mut self, name: &str, offset_ms: i64) -> Result<()> {
        let clock = tenure_servers::shifted_clock(&self.clock_file(name), offset_ms)?;
        let route = self.setup.route()?;
        self.start_client_on(name, route, &clock)
    }

    /// The file that controls the clocks of a client.
    fn clock_file(&self, name: &str) -> PathBuf {
        self.setup.folder().join(format!("{name}.clock"))
    }

    /// Starts a client with this route to the server and these environment variables.
    pub(crate) fn start_client_on(
        &mut self,
        name: &str,
        route: Route,
        environment: &[(&'static str, OsString)],
    ) -> Result<()> {
        let config = ClientConfig {
            name: name.to_owned(),
            lock: self.lock.name.to_owned(),
            url: with_session(&route.url, self.lease),
            lease_ms: u64::try_from(self.lease.as_millis())?,
            resource: self.port,
            start: self.clock.start(),
        };
        let client =
            ClientProcess::start(&self.program, &config, route, environment, &self.recorder)?;
        let since = client.since;
        self.lanes.push(Lane { name: name.to_owned(), kind: LaneKind::Client });
        self.clients.insert(name.to_owned(), client);
        let ready = |event: &Event| note_of(event, name).filter(|text| *text == READY).map(drop);
        let started = self.recorder.wait_for(since, EVENT_LIMIT, ready);
        started.with_context(|| format!("{name} is not ready after {EVENT_LIMIT:?}"))
    }

    fn client(&mut self, name: &str) -> Result<&mut ClientProcess> {
        self.clients.get_mut(name).with_context(|| format!("no client {name}"))
    }

    /// The route of a client to the server.
    pub(crate) fn route(&mut self, name: &str) -> Result<&Route> {
        Ok(&self.client(name)?.route)
    }

    /// Now, on the run's clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Ends the run: kills all processes and returns what they reported, as one history.
    pub(crate) fn finish(mut self, header: Header) -> Result<History> {
        for client in self.clients.values_mut() {
            client.kill()?;
        }
        self.resource.kill()?;
        self.resource.wait()?;
        if let Some(follower) = self.follower.take() {
            drop(follower.join());
        }
        let mut lanes = std::mem::take(&mut self.lanes);
        if self.lock.topology.is_some() {
            lanes.push(Lane { name: SERVER.to_owned(), kind: LaneKind::Server });
        }
        lanes.push(Lane { name: RESOURCE.to_owned(), kind: LaneKind::Resource });
        lanes.push(Lane { name: LAB.to_owned(), kind: LaneKind::Fault });
        let mut events = self.recorder.take_events();
        events.retain(|event| !is_internal(event));
        Ok(History::new(Header { lanes, lease: nanos(self.lease), ..header }, events))
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        // Both fail if `finish` has done it already.
        let _ignored = self.resource.kill();
        let _ignored = self.resource.wait();
    }
}

/// The text of a client's note.
fn note_of<'e>(event: &'e Event, name: &str) -> Option<&'e str> {
    match &event.kind {
        EventKind::Note { text } if event.lane == name => Some(text),
        _ => None,
    }
}

/// Whether an event was a message of a client to the runner, which is not part of the history.
fn is_internal(event: &Event) -> bool {
    match &event.kind {
        EventKind::Note { text } => {
            text == READY || [DONE, CLOCKS].iter().any(|prefix| text.starts_with(prefix))
        }
        _ => false,
    }
}
