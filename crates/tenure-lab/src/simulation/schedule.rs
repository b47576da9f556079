//! One schedule: clients that acquire the lock and write, a nemesis that injects faults, and a
//! history of it all on the virtual clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::{Attempt, Client, Config, Event as ClientEvent, Guard};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Cut, UnreliableConnection};
use super::random::Random;
use super::server::SimulatedServer;
use crate::history::{Event, EventKind, Register};
use crate::lease_events::{LeaseRegistry, was_held};
use crate::registers::{RegisterRequest, Registers};
use crate::sync::Mutex;

pub(super) const LEASE: Duration = Duration::from_secs(2);
const CLIENTS: usize = 3;
const KEY: &str = "k";
/// The lane of the faults.
const NEMESIS: &str = "nemesis";
/// The `id` of each fault, as in the catalogue of scenarios: a stop, a cut, lost responses, and a
/// server that jumps in time or loses its locks.
const STOP: &str = "F03";
const CUT: &str = "F10";
const NO_RESPONSES: &str = "F11";
const SERVER_FAULT: &str = "F07";

/// What all parts of a schedule share.
pub(super) struct Schedule {
    start: Instant,
    server: SimulatedServer,
    /// The current connection of each client.
    connections: Mutex<Vec<UnreliableConnection>>,
    leases: LeaseRegistry,
    state: Mutex<ScheduleState>,
}

#[derive(Default)]
struct ScheduleState {
    events: Vec<Event>,
    /// Number of attempts so far.
    holds: u64,
    registers: Registers,
    /// The values that each attempt read.
    read: HashMap<(u64, Register), u64>,
    /// Whether the server ended or lost a lease too early: then only the fence helps.
    server_failed: bool,
}

impl Schedule {
    pub(super) fn new(broken: bool) -> Schedule {
        Schedule {
            start: Instant::now(),
            server: SimulatedServer::new(broken),
            connections: Mutex::default(),
            leases: LeaseRegistry::default(),
            state: Mutex::default(),
        }
    }

    /// Names of the clients.
    pub(super) fn names() -> impl Iterator<Item = String> {
        (0..CLIENTS).map(name)
    }

    /// The events, and whether the server kept every lease to its end.
    pub(super) fn take_events(&self) -> (Vec<Event>, bool) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.events), !state.server_failed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn after(&self, left: Duration) -> u64 {
        self.now().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    fn record(&self, lane: &str, kind: EventKind) {
        let at = self.now();
        self.state.lock().events.push(Event { at, lane: lane.to_owned(), kind });
    }

    /// Runs the whole schedule; an error says what was awaited in vain.
    pub(super) async fn run(self: Arc<Schedule>, seed: u64) -> Result<(), String> {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let random = Random::new(seed, 10 + number as u64);
            let connection = UnreliableConnection::new(self.server.clone(), random);
            self.connections.lock().push(connection);
            clients.spawn(run_client(self.clone(), number, Random::new(seed, number as u64)));
        }
        let nemesis = tokio::spawn(run_nemesis(self.clone(), Random::new(seed, 100)));
        while let Some(ended) = clients.join_next().await {
            ended.map_err(|error| format!("a client panicked: {error}"))?;
        }
        nemesis.abort();
        self.settle().await
    }

    /// Ends all faults: then the lock has to become free, and a new client has to get it.
    async fn settle(&self) -> Result<(), String> {
        for (number, connection) in self.connections.lock().iter().enumerate() {
            connection.set_cut(Cut::Open);
            connection.set_stopped(false);
            let (text, target) = ("all healed".to_owned(), name(number));
            self.record(NEMESIS, EventKind::Healed { text, target });
        }
        let connection = UnreliableConnection::new(self.server.clone(), Random::new(0, 0));
        let last = Config::default().ttl(LEASE).owner("last").with_backend(connection);
        // A clock that jumped back may keep a lock for that much longer.
        let limit = LEASE * 3 + Duration::from_secs(60);
        let guard = match timeout(limit, last.lock(KEY).acquire()).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => return Err(format!("the last client was refused: {error}")),
            Err(_) => return Err("the lock did not come free after all faults were over".into()),
        };
        guard.release().await.map_err(|error| format!("the last release failed: {error}"))?;
        sleep(LEASE * 2).await;
        if self.server.is_held() {
            return Err("a lock is still held after all clients have released".into());
        }
        Ok(())
    }

    /// A client whose renewals and losses are recorded.
    fn connect(self: &Arc<Schedule>, connection: &UnreliableConnection, name: &str) -> Client {
        let schedule = Arc::downgrade(self);
        let lane = name.to_owned();
        let observer = move |event: &ClientEvent| {
            let Some(schedule) = schedule.upgrade() else { return };
            match schedule.leases.describe(event, |left| schedule.after(left)) {
                // Of a lease that is already over: there is no new deadline to record.
                Some(EventKind::Renewed { deadline: None, .. }) | None => {}
                Some(kind) => schedule.record(&lane, kind),
            }
        };
        let config = Config::default().ttl(LEASE).owner(name);
        config.observe(observer).with_backend(connection.clone())
    }

    /// The client reads the registers, and remembers what the fence let it read.
    fn read(&self, lane: &str, hold: u64, token: u64) {
        for register in Register::ALL {
            let kind = {
                let mut state = self.state.lock();
                let request = request(lane, hold, register, token, None);
                let (response, kind) = state.registers.execute(&request);
                if !response.refused {
                    state.read.insert((hold, register), response.value);
                }
                kind
            };
            self.record(lane, kind);
        }
    }

    /// The client writes the registers that it could read.
    fn write(&self, lane: &str, hold: u64, token: u64) {
        for register in Register::ALL {
            let kind = {
                let mut state = self.state.lock();
                let Some(read) = state.read.remove(&(hold, register)) else { continue };
                let request = request(lane, hold, register, token, Some(read + 1));
                state.registers.execute(&request).1
            };
            self.record(lane, kind);
        }
    }
}

fn request(
    lane: &str,
    hold: u64,
    register: Register,
    token: u64,
    value: Option<u64>,
) -> RegisterRequest {
    RegisterRequest { client: lane.to_owned(), hold, register, token: Some(token), value }
}

fn name(number: usize) -> String {
    char::from(b'A' + number as u8).to_string()
}

/// One client: acquires by all methods that there are, works, and releases in all ways that there
/// are.
async fn run_client(schedule: Arc<Schedule>, number: usize, mut random: Random) {
    let lane = name(number);
    let mut connection = schedule.connections.lock()[number].clone();
    let mut client = schedule.connect(&connection, &lane);
    for round in 0..4 + random.below(4) {
        sleep(random.millis(1500)).await;
        connection.until_running().await;
        let hold = {
            let mut state = schedule.state.lock();
            state.holds += 1;
            state.holds
        };
        schedule.record(&lane, EventKind::Asked { hold, key: KEY.into() });
        let guard = match acquire(&client, &mut random).await {
            Ok(guard) => guard,
            Err(reason) => {
                connection.until_running().await;
                schedule.record(&lane, reason.event(hold));
                continue;
            }
        };
        let token = guard.token().get();
        schedule.leases.add(hold, &guard);
        let deadline = guard.check().map_or_else(|_| schedule.now(), |left| schedule.after(left));
        let deadline = Some(deadline);
        schedule.record(&lane, EventKind::Granted { hold, token: Some(token), deadline });
        schedule.read(&lane, hold, token);
        let is_long = random.once_in(5);
        sleep(random.millis(if is_long { 9000 } else { 900 })).await;
        connection.until_running().await;
        if random.once_in(12) {
            // The process crashes, and a new one starts in its place.
            schedule.record(&lane, EventKind::Ended { how: "crashed".into() });
            connection.crash();
            let restarted = Random::new(random.below(u64::MAX), round);
            connection = UnreliableConnection::new(schedule.server.clone(), restarted);
            schedule.connections.lock()[number] = connection.clone();
            drop(guard);
            client = schedule.connect(&connection, &lane);
            continue;
        }
        write_and_release(&schedule, &lane, hold, guard, &mut random).await;
    }
}

/// Writes, with or without a check of the guard before, and releases.
async fn write_and_release(
    schedule: &Schedule,
    lane: &str,
    hold: u64,
    guard: Guard,
    random: &mut Random,
) {
    let checks = random.once_in(2);
    if !checks || guard.check().is_ok() {
        schedule.write(lane, hold, guard.token().get());
    }
    schedule.record(lane, EventKind::Releasing { hold });
    if random.once_in(3) {
        // Released in the background.
        return drop(guard);
    }
    let own = was_held(&guard.release().await);
    schedule.record(lane, EventKind::Released { hold, own });
}

/// Why there is no guard.
enum NotGranted {
    Busy,
    /// The outcome is unknown.
    Unconfirmed(String),
}

impl NotGranted {
    fn event(self, hold: u64) -> EventKind {
        match self {
            NotGranted::Busy => EventKind::Refused { hold, why: "busy".into() },
            NotGranted::Unconfirmed(why) => EventKind::Unanswered { hold, why },
        }
    }
}

async fn acquire(client: &Client, random: &mut Random) -> Result<Guard, NotGranted> {
    let lock = client.lock(KEY);
    let gave_up = |_| NotGranted::Unconfirmed("gave up".into());
    let attempt = match random.below(5) {
        0 => lock.try_acquire().await,
        1 => lock.acquire_within(random.millis(4000)).await,
        // Dropped at any point.
        2 => {
            let acquired = timeout(random.millis(5000), lock.acquire()).await;
            acquired.map_err(gave_up)?.map(Attempt::Granted)
        }
        3 => {
            let acquired = timeout(LEASE * 20, lock.without_renewal().acquire()).await;
            acquired.map_err(gave_up)?.map(Attempt::Granted)
        }
        _ => {
            let acquired = timeout(LEASE * 20, lock.acquire()).await;
            acquired.map_err(gave_up)?.map(Attempt::Granted)
        }
    };
    match attempt {
        Ok(Attempt::Granted(guard)) => Ok(guard),
        Ok(Attempt::Busy(_)) => Err(NotGranted::Busy),
        Err(error) => Err(NotGranted::Unconfirmed(error.to_string())),
    }
}

/// Cuts and stops clients, lets the server's clock jump, and lets the server lose its locks.
async fn run_nemesis(schedule: Arc<Schedule>, mut random: Random) {
    // In half of the schedules the server does not fail: there no two clients may hold at once.
    let spares_server = random.once_in(2);
    loop {
        sleep(random.millis(4000)).await;
        let number = random.below(CLIENTS as u64) as usize;
        let connection = schedule.connections.lock()[number].clone();
        let target = name(number);
        let duration = random.millis(7000);
        let lasting = |id: &str, text: String| {
            let target = target.clone();
            let fault = EventKind::Fault { id: id.into(), text, target, lasts: true };
            schedule.record(NEMESIS, fault);
        };
        match random.below(if spares_server { 4 } else { 7 }) {
            0 | 1 => {
                lasting(STOP, format!("{target} is stopped"));
                connection.set_stopped(true);
            }
            2 => {
                lasting(CUT, format!("{target} is cut off"));
                connection.set_cut(Cut::Both);
            }
            3 => {
                let cut = if random.once_in(2) { Cut::Responses } else { Cut::Refused };
                lasting(NO_RESPONSES, format!("{target} gets no responses"));
                connection.set_cut(cut);
            }
            fault => {
                fail_server(&schedule, fault, &mut random);
                continue;
            }
        }
        sleep(duration).await;
        connection.set_cut(Cut::Open);
        connection.set_stopped(false);
        schedule.record(NEMESIS, EventKind::Healed { text: format!("{target} is back"), target });
    }
}

/// The server's clock jumps, or the server loses its locks.
fn fail_server(schedule: &Schedule, fault: u64, random: &mut Random) {
    schedule.state.lock().server_failed = true;
    let text = match fault {
        4 => {
            schedule.server.jump(random.below(6000) as i64);
            "clock forward"
        }
        5 => {
            schedule.server.jump(-(random.below(6000) as i64));
            "clock back"
        }
        _ => {
            schedule.server.forget();
            "the lock is forgotten"
        }
    };
    let (id, text, target) = (SERVER_FAULT.to_owned(), text.to_owned(), "server".to_owned());
    schedule.record(NEMESIS, EventKind::Fault { id, text, target, lasts: false });
}
