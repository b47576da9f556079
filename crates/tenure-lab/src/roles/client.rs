//! A client process: executes the commands of the runner and reports what happened.
//!
//! The client holds locks on behalf of the scenario, so it must not help the lock under test: it
//! keeps a hand-written lock for as long as such a program would believe in it, and one of
//! tenure's for as long as the guard says.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::BufRead;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tenure::{ErrorKind, Guard};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use super::hand_written::{HandWrittenClient, HandWrittenHold};
use super::protocol::{CLOCKS, DONE, FAILED, READY, STOPPED};
use super::protocol::{ClientCommand, ClientConfig, emit, end_with_parent};
use super::resource::ResourceConnection;
use super::tenure_client::TenureClient;
use crate::clock::{Clock, nanos};
use crate::history::{EventKind, Register};
use crate::lease_events::was_held;
use crate::registers::{RegisterRequest, RegisterResponse};
use crate::schemes::LockSpec;

/// How long the client works between reading and writing: enough to be seen in a picture.
const WORK: Duration = Duration::from_millis(40);

/// Runs a client in this process: reads its configuration from stdin, then commands until the
/// input ends.
pub(super) fn run() -> Result<()> {
    end_with_parent()?;
    let mut lines = std::io::stdin().lock().lines();
    let first = lines.next().context("no configuration on stdin")??;
    let config: ClientConfig = serde_json::from_str(&first)?;
    drop(lines);
    let (sender, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || read_commands(&sender));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, execute_all(config, commands))
}

fn read_commands(sender: &mpsc::UnboundedSender<ClientCommand>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        if let Ok(command) = serde_json::from_str(&line) {
            // The receiver lives as long as the process.
            let _ignored = sender.send(command);
        }
    }
}

async fn execute_all(
    config: ClientConfig,
    mut commands: mpsc::UnboundedReceiver<ClientCommand>,
) -> Result<()> {
    let client = Rc::new(LabClient::connect(config).await?);
    client.emit(EventKind::Note { text: READY.to_owned() });
    // A task for each: a command may arrive while an earlier one still waits for the lock.
    while let Some(command) = commands.recv().await {
        let client = client.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = client.execute(command).await {
                client.emit(EventKind::Note { text: format!("{FAILED}{error:#}") });
            }
        });
    }
    // Exits like a process that was killed: no guard is dropped, so nothing is released.
    std::process::exit(0)
}

struct LabClient {
    config: ClientConfig,
    clock: Clock,
    lock_client: LockClient,
    /// The locks that this client believes to hold, by attempt.
    held: RefCell<HashMap<u64, Rc<HeldLock>>>,
    /// For each attempt that waits: dropping the sender cancels it.
    waiting: RefCell<HashMap<u64, oneshot::Sender<()>>>,
    /// When each attempt began, by `Instant` and by the run's clock.
    requested: RefCell<HashMap<u64, (Instant, u64)>>,
    resource: RefCell<ResourceConnection>,
    /// The values that each attempt read, in the order of the registers; none where the fence
    /// refused.
    read: RefCell<HashMap<u64, Vec<Option<u64>>>>,
}

enum LockClient {
    HandWritten(HandWrittenClient),
    Tenure(TenureClient),
}

enum HeldLock {
    HandWritten(HandWrittenHold),
    /// The guard until it is released, and the deadline at the grant.
    Tenure(RefCell<Option<Guard>>, u64),
}

impl LabClient {
    async fn connect(config: ClientConfig) -> Result<LabClient> {
        let clock = Clock::since(config.start);
        let lock = LockSpec::named(&config.lock)?;
        let lease = Duration::from_millis(config.lease_ms);
        let lock_client = match lock.hand_written(&config.url) {
            Some(scheme) => {
                let name = config.name.clone();
                let report = Rc::new(move |kind| emit(clock, &name, kind));
                let client = HandWrittenClient::new(scheme, lease, clock, report);
                client.connect().await?;
                LockClient::HandWritten(client)
            }
            None => LockClient::Tenure(TenureClient::connect(&config, clock).await?),
        };
        let resource = RefCell::new(ResourceConnection::open(config.resource)?);
        Ok(LabClient {
            config,
            clock,
            lock_client,
            held: RefCell::default(),
            waiting: RefCell::default(),
            requested: RefCell::default(),
            resource,
            read: RefCell::default(),
        })
    }

    fn emit(&self, kind: EventKind) {
        emit(self.clock, &self.config.name, kind);
    }

    async fn execute(&self, command: ClientCommand) -> Result<()> {
        match command {
            ClientCommand::Acquire { hold, key, wait_limit_ms, fixed_lease } => {
                let limit = wait_limit_ms.map(Duration::from_millis);
                self.acquire(hold, key, limit, fixed_lease).await;
                Ok(())
            }
            ClientCommand::Cancel { hold } => {
                drop(self.waiting.borrow_mut().remove(&hold));
                Ok(())
            }
            ClientCommand::Read { hold } => self.read(hold).await,
            ClientCommand::Write { hold, unchecked } => self.write(hold, unchecked),
            ClientCommand::Release { hold } => self.release(hold).await,
            ClientCommand::CompareClocks { hold } => self.compare_clocks(hold),
        }
    }

    async fn acquire(&self, hold: u64, key: String, limit: Option<Duration>, fixed_lease: bool) {
        let (cancel, cancelled) = oneshot::channel();
        self.waiting.borrow_mut().insert(hold, cancel);
        self.requested.borrow_mut().insert(hold, (Instant::now(), self.clock.now()));
        self.emit(EventKind::Asked { hold, key: key.clone() });
        let acquiring = async {
            Ok(match &self.lock_client {
                LockClient::HandWritten(client) => {
                    HeldLock::HandWritten(client.acquire(hold, &key, limit).await?)
                }
                LockClient::Tenure(client) => {
                    let guard = client.acquire(hold, &key, limit, fixed_lease).await?;
                    let deadline = client.deadline(&guard);
                    HeldLock::Tenure(RefCell::new(Some(guard)), deadline)
                }
            })
        };
        let acquired: tenure::Result<HeldLock> = tokio::select! {
            acquired = acquiring => acquired,
            _dropped = cancelled => {
                let why = "the acquire was dropped".to_owned();
                return self.emit(EventKind::Unanswered { hold, why });
            }
        };
        match acquired {
            Ok(held) => {
                let (token, deadline) = held.grant();
                self.held.borrow_mut().insert(hold, Rc::new(held));
                self.emit(EventKind::Granted { hold, token, deadline: Some(deadline) });
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.emit(EventKind::Unanswered { hold, why: error.to_string() });
            }
            Err(error) => self.emit(EventKind::Refused { hold, why: error.to_string() }),
        }
    }

    fn held(&self, hold: u64) -> Result<Rc<HeldLock>> {
        self.held.borrow().get(&hold).cloned().context("this client holds nothing")
    }

    async fn read(&self, hold: u64) -> Result<()> {
        let held = self.held(hold)?;
        if !held.is_believed() {
            self.emit(EventKind::Note { text: STOPPED.to_owned() });
            return Ok(());
        }
        let mut values = Vec::new();
        let mut last = 0;
        for register in Register::ALL {
            let response = self.execute_on_register(hold, &held, register, None)?;
            values.push((!response.refused).then_some(response.value));
            last = response.seq;
        }
        self.read.borrow_mut().insert(hold, values);
        // Stands for the work that the lock protects.
        tokio::time::sleep(WORK).await;
        self.emit(EventKind::Note { text: format!("{DONE}{last}") });
        Ok(())
    }

    /// Writes the registers that the client could read; where the fence refused the read, the
    /// update ends there.
    fn write(&self, hold: u64, unchecked: bool) -> Result<()> {
        let held = self.held(hold)?;
        if !unchecked && !held.is_believed() {
            self.emit(EventKind::Note { text: STOPPED.to_owned() });
            return Ok(());
        }
        let values = self.read.borrow().get(&hold).cloned().context("nothing was read")?;
        let mut last = 0;
        for (register, value) in Register::ALL.into_iter().zip(values) {
            let Some(value) = value else { continue };
            last = self.execute_on_register(hold, &held, register, Some(value + 1))?.seq;
        }
        self.emit(EventKind::Note { text: format!("{DONE}{last}") });
        Ok(())
    }

    fn execute_on_register(
        &self,
        hold: u64,
        held: &HeldLock,
        register: Register,
        value: Option<u64>,
    ) -> Result<RegisterResponse> {
        let client = self.config.name.clone();
        let (token, _) = held.grant();
        let request = RegisterRequest { client, hold, register, token, value };
        self.resource.borrow_mut().execute(&request)
    }

    fn compare_clocks(&self, hold: u64) -> Result<()> {
        let requested = self.requested.borrow().get(&hold).copied();
        let (instant, boot) = requested.context("this attempt never began")?;
        let by_instant = nanos(instant.elapsed());
        let by_boot = self.clock.now().saturating_sub(boot);
        self.emit(EventKind::Note { text: format!("{CLOCKS}{by_instant} {by_boot}") });
        Ok(())
    }

    async fn release(&self, hold: u64) -> Result<()> {
        let held = self.held(hold)?;
        self.emit(EventKind::Releasing { hold });
        let own = match (&self.lock_client, &*held) {
            (LockClient::HandWritten(client), HeldLock::HandWritten(hold)) => {
                client.release(hold).await.ok()
            }
            (_, HeldLock::Tenure(guard, _)) => match guard.take() {
                Some(guard) => was_held(&guard.release().await),
                None => None,
            },
            (LockClient::Tenure(_), HeldLock::HandWritten(_)) => None,
        };
        self.emit(EventKind::Released { hold, own });
        Ok(())
    }
}

impl HeldLock {
    /// The token and the deadline of the grant.
    fn grant(&self) -> (Option<u64>, u64) {
        match self {
            HeldLock::HandWritten(hold) => (hold.token, hold.deadline),
            HeldLock::Tenure(guard, deadline) => {
                (guard.borrow().as_ref().map(|guard| guard.token().get()), *deadline)
            }
        }
    }

    /// Whether the program still believes that it holds the lock. A hand-written one mostly does.
    fn is_believed(&self) -> bool {
        match self {
            HeldLock::HandWritten(hold) => hold.is_believed(),
            HeldLock::Tenure(guard, _) => {
                guard.borrow().as_ref().is_some_and(|guard| guard.check().is_ok())
            }
        }
    }
}
