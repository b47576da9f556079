//! One schedule: clients that take the lock and write, a nemesis that breaks things, and a history
//! of it all on the virtual clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Attempt, Client, Config, ErrorKind, Event as Told, Guard, Lease, LostReason};
use tokio::time::{Instant, sleep, timeout};

use super::dice::Dice;
use super::server::Server;
use super::way::{Cut, Way};
use crate::history::{Event, Register, What};

pub(super) const LEASE: Duration = Duration::from_secs(2);
const CLIENTS: usize = 3;
const KEY: &str = "k";

/// What all parts of a schedule share.
pub(super) struct World {
    start: Instant,
    server: Server,
    ways: Mutex<Vec<Way>>,
    book: Mutex<Book>,
}

/// What is written down.
#[derive(Default)]
struct Book {
    events: Vec<Event>,
    holds: u64,
    /// The attempt and the lease of each token.
    leases: HashMap<u64, (u64, Lease)>,
    /// The value and the highest token of each register, and the order of effects.
    registers: HashMap<Register, (u64, u64)>,
    /// How many updates each register has taken, and had when an attempt read it.
    updates: HashMap<Register, u64>,
    based_on: HashMap<(u64, Register), (u64, u64)>,
    seq: u64,
    /// Whether the server itself broke its word: then only the fence helps.
    dishonest: bool,
}

impl World {
    pub(super) fn new(broken: bool) -> World {
        let server = Server::new(broken);
        World { start: Instant::now(), server, ways: Mutex::default(), book: Mutex::default() }
    }

    pub(super) fn names() -> impl Iterator<Item = String> {
        (0..CLIENTS).map(name)
    }

    /// The events, and whether the server kept its word.
    pub(super) fn story(&self) -> (Vec<Event>, bool) {
        let mut book = self.book();
        (std::mem::take(&mut book.events), !book.dishonest)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ways(&self) -> MutexGuard<'_, Vec<Way>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn after(&self, left: Duration) -> u64 {
        self.now().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    fn say(&self, lane: &str, what: What) {
        let at = self.now();
        self.book().events.push(Event { at, lane: lane.to_owned(), what });
    }

    /// Plays a whole schedule; an error says what never came.
    pub(super) async fn play(self: Arc<World>, seed: u64) -> Result<(), String> {
        let mut users = tokio::task::JoinSet::new();
        for number in 0..CLIENTS {
            let way = Way::new(self.server.clone(), Dice::new(seed, 10 + number as u64));
            self.ways().push(way);
            users.spawn(user(self.clone(), number, Dice::new(seed, number as u64)));
        }
        let nemesis = tokio::spawn(nemesis(self.clone(), Dice::new(seed, 100)));
        while let Some(ended) = users.join_next().await {
            ended.map_err(|error| format!("a user panicked: {error}"))?;
        }
        nemesis.abort();
        self.settle().await
    }

    /// With everything healed the lock has to come free, and to be had.
    async fn settle(&self) -> Result<(), String> {
        for (number, way) in self.ways().iter().enumerate() {
            way.cut(Cut::Open);
            way.stop(false);
            self.book().events.push(healed(self.now(), number));
        }
        let last = self.client(&Way::new(self.server.clone(), Dice::new(0, 0)), "last");
        // A clock that went back may keep a lock for so much longer.
        let limit = LEASE * 3 + Duration::from_secs(60);
        let got = timeout(limit, last.lock(KEY).acquire()).await;
        let guard = match got {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => return Err(format!("the last client was refused: {error}")),
            Err(_) => return Err("the lock did not come free after all faults were over".into()),
        };
        guard.release().await.map_err(|error| format!("the last release failed: {error}"))?;
        sleep(LEASE * 2).await;
        match self.server.is_held() {
            true => Err("something is still held after everybody has left".into()),
            false => Ok(()),
        }
    }

    fn client(self: &World, way: &Way, name: &str) -> Client {
        Config::default().ttl(LEASE).owner(name).over(way.clone())
    }

    /// A client whose renewals and losses are written down.
    fn told_client(self: &Arc<World>, way: &Way, name: &str) -> Client {
        let (world, lane) = (Arc::downgrade(self), name.to_owned());
        let tell = move |event: &Told| {
            let Some(world) = world.upgrade() else { return };
            if let Some(what) = world.describe(event) {
                world.say(&lane, what);
            }
        };
        Config::default().ttl(LEASE).owner(name).observe(tell).over(way.clone())
    }

    fn describe(&self, event: &Told) -> Option<What> {
        let book = self.book();
        match event {
            Told::Renewed { token, .. } => {
                let (hold, lease) = book.leases.get(&token.get())?;
                let deadline = lease.check().ok().map(|left| self.after(left))?;
                Some(What::Renewed { hold: *hold, deadline: Some(deadline) })
            }
            Told::Lost(lost) if lost.reason() != LostReason::Released => {
                let (hold, _) = book.leases.get(&lost.token().get())?;
                Some(What::Lost { hold: *hold, why: format!("{:?}", lost.reason()) })
            }
            _ => None,
        }
    }

    fn read(&self, lane: &str, hold: u64, token: u64, register: Register) {
        let mut book = self.book();
        book.seq += 1;
        let seq = book.seq;
        let (value, highest) = book.registers.get(&register).copied().unwrap_or_default();
        let refused = register == Register::ReadWrite && token < highest;
        if !refused {
            let updates = book.updates.get(&register).copied().unwrap_or_default();
            book.based_on.insert((hold, register), (value, updates));
            if register == Register::ReadWrite {
                book.registers.insert(register, (value, token));
            }
        }
        drop(book);
        let token = Some(token);
        self.say(lane, What::Read { hold, register, seq, value, token, refused });
    }

    fn write(&self, lane: &str, hold: u64, token: u64, register: Register) {
        let mut book = self.book();
        let Some((read, seen)) = book.based_on.remove(&(hold, register)) else { return };
        book.seq += 1;
        let (seq, value) = (book.seq, read + 1);
        let (_, highest) = book.registers.get(&register).copied().unwrap_or_default();
        let refused = register != Register::Plain && token < highest;
        let updates = book.updates.entry(register).or_default();
        let stale = !refused && *updates != seen;
        if !refused {
            *updates += 1;
            book.registers.insert(register, (value, token.max(highest)));
        }
        drop(book);
        let token = Some(token);
        self.say(lane, What::Wrote { hold, register, seq, value, token, refused, stale });
    }
}

const REGISTERS: [Register; 3] = [Register::Plain, Register::Write, Register::ReadWrite];

fn name(number: usize) -> String {
    char::from(b'A' + number as u8).to_string()
}

fn healed(at: u64, number: usize) -> Event {
    let target = name(number);
    Event { at, lane: "nemesis".into(), what: What::Healed { text: "all healed".into(), target } }
}

/// One user: asks in every way there is, works, and leaves in every way there is.
async fn user(world: Arc<World>, number: usize, mut dice: Dice) {
    let lane = name(number);
    let mut way = world.ways()[number].clone();
    let mut client = world.told_client(&way, &lane);
    for round in 0..4 + dice.below(4) {
        sleep(dice.millis(1500)).await;
        way.runs().await;
        let hold = {
            let mut book = world.book();
            book.holds += 1;
            book.holds
        };
        world.say(&lane, What::Asked { hold, key: KEY.into() });
        let guard = match ask(&client, &mut dice).await {
            Ok(guard) => guard,
            Err(what) => {
                way.runs().await;
                world.say(&lane, what.of(hold));
                continue;
            }
        };
        let token = guard.token().get();
        world.book().leases.insert(token, (hold, guard.lease().clone()));
        let deadline = guard.check().map_or_else(|_| world.now(), |left| world.after(left));
        world.say(&lane, What::Granted { hold, token: Some(token), deadline: Some(deadline) });
        for register in REGISTERS {
            world.read(&lane, hold, token, register);
        }
        let long = dice.once_in(5);
        sleep(dice.millis(if long { 9000 } else { 900 })).await;
        way.runs().await;
        if dice.once_in(12) {
            // Dead, and a new process in its place.
            world.say(&lane, What::Ended { how: "crashed".into() });
            way.die();
            way = Way::new(world.server.clone(), Dice::new(dice.below(u64::MAX), round));
            world.ways()[number] = way.clone();
            drop(guard);
            client = world.told_client(&way, &lane);
            continue;
        }
        leave(&world, &lane, hold, guard, &mut dice).await;
    }
}

/// Writes, looking at the guard first or not, and gives back.
async fn leave(world: &World, lane: &str, hold: u64, guard: Guard, dice: &mut Dice) {
    let token = guard.token().get();
    let careful = dice.once_in(2);
    if !careful || guard.check().is_ok() {
        for register in REGISTERS {
            world.write(lane, hold, token, register);
        }
    }
    world.say(lane, What::Releasing { hold });
    if dice.once_in(3) {
        // Given back in the background.
        return drop(guard);
    }
    let own = match guard.release().await {
        Ok(()) => Some(true),
        Err(error) if error.kind() == ErrorKind::Lost => Some(false),
        Err(_) => None,
    };
    world.say(lane, What::Released { hold, own });
}

/// Why there is no guard.
enum No {
    Busy,
    Doubt(String),
}

impl No {
    fn of(self, hold: u64) -> What {
        match self {
            No::Busy => What::Refused { hold, why: "busy".into() },
            No::Doubt(why) => What::Unanswered { hold, why },
        }
    }
}

async fn ask(client: &Client, dice: &mut Dice) -> Result<Guard, No> {
    let lock = client.lock(KEY);
    let attempt = match dice.below(5) {
        0 => lock.try_acquire().await,
        1 => lock.acquire_within(dice.millis(4000)).await,
        // Dropped in the middle, wherever that is.
        2 => match timeout(dice.millis(5000), lock.acquire()).await {
            Ok(guard) => guard.map(Attempt::Granted),
            Err(_) => return Err(No::Doubt("gave up".into())),
        },
        3 => timeout(LEASE * 20, lock.without_renewal().acquire())
            .await
            .map_err(|_| No::Doubt("gave up".into()))?
            .map(Attempt::Granted),
        _ => timeout(LEASE * 20, lock.acquire())
            .await
            .map_err(|_| No::Doubt("gave up".into()))?
            .map(Attempt::Granted),
    };
    match attempt {
        Ok(Attempt::Granted(guard)) => Ok(guard),
        Ok(Attempt::Busy(_)) => Err(No::Busy),
        Err(error) => Err(No::Doubt(error.to_string())),
    }
}

/// Cuts and stops clients, lets the server's clock jump, and lets it forget.
async fn nemesis(world: Arc<World>, mut dice: Dice) {
    // Some schedules have an honest server: there nobody may ever hold beside another.
    let honest = dice.once_in(2);
    loop {
        sleep(dice.millis(4000)).await;
        let number = dice.below(CLIENTS as u64) as usize;
        let (way, target) = (world.ways()[number].clone(), name(number));
        let span = dice.millis(7000);
        let fault = |id: &str, text: String, target: String, lasts| {
            world.say("nemesis", What::Fault { id: id.into(), text, target, lasts });
        };
        match dice.below(if honest { 4 } else { 7 }) {
            0 | 1 => {
                fault("F03", format!("{target} is stopped"), target.clone(), true);
                way.stop(true);
            }
            2 => {
                fault("F10", format!("{target} is cut off"), target.clone(), true);
                way.cut(Cut::Both);
            }
            3 => {
                let cut = if dice.once_in(2) { Cut::Answers } else { Cut::Refused };
                fault("F11", format!("{target} gets no answers"), target.clone(), true);
                way.cut(cut);
            }
            jump => {
                world.book().dishonest = true;
                match jump {
                    4 => world.server.jump(dice.below(6000) as i64),
                    5 => world.server.jump(-(dice.below(6000) as i64)),
                    _ => world.server.forget(),
                }
                let text = ["clock forward", "clock back", "the lock is forgotten"];
                let text = text[jump as usize - 4].to_owned();
                fault("F07", text, "server".into(), false);
                continue;
            }
        }
        sleep(span).await;
        way.cut(Cut::Open);
        way.stop(false);
        world.say("nemesis", What::Healed { text: format!("{target} is back"), target });
    }
}
