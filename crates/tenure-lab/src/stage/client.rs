//! One client: a process of its own, which does what it is told and says what happened.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::BufRead;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tenure::{ErrorKind, Guard};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use super::clock::{Clock, nanos};
use super::naive::{Hold, Naive};
use super::own::Own;
use super::part::{Order, Part, end_with_parent, say};
use super::resource::{Connection, REGISTERS, Request};
use crate::history::What;
use crate::schemes::Lock;

/// In the process that is a client: reads its part, then orders until its input ends.
pub(crate) fn play() -> Result<()> {
    end_with_parent()?;
    let mut lines = std::io::stdin().lock().lines();
    let first = lines.next().context("no part to play")??;
    let part: Part = serde_json::from_str(&first)?;
    drop(lines);
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || read_orders(&sender));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, obey(part, orders))
}

fn read_orders(sender: &mpsc::UnboundedSender<Order>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        if let Ok(order) = serde_json::from_str(&line) {
            // The receiver lives as long as the process.
            let _ended = sender.send(order);
        }
    }
}

async fn obey(part: Part, mut orders: mpsc::UnboundedReceiver<Order>) -> Result<()> {
    let client = Rc::new(Client::start(part).await?);
    client.say(What::Note { text: READY.to_owned() });
    // Each on its own: an order may come while another one waits.
    while let Some(order) = orders.recv().await {
        let client = client.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = client.obey(order).await {
                client.say(What::Note { text: format!("failed: {error:#}") });
            }
        });
    }
    // Ends as a killed one would: what it holds is not given back in good order.
    std::process::exit(0)
}

struct Client {
    part: Part,
    clock: Clock,
    locks: Locks,
    holds: RefCell<HashMap<u64, Rc<Held>>>,
    asking: RefCell<HashMap<u64, oneshot::Sender<()>>>,
    /// When each attempt was asked for, by two clocks.
    asked: RefCell<HashMap<u64, (Instant, u64)>>,
    resource: RefCell<Connection>,
    /// What was read, by attempt: in the order of the registers, none where refused.
    read: RefCell<HashMap<u64, Vec<Option<u64>>>>,
}

enum Locks {
    Naive(Naive),
    Own(Own),
}

enum Held {
    Naive(Hold),
    Own(RefCell<Option<Guard>>, u64),
}

impl Client {
    async fn start(part: Part) -> Result<Client> {
        let clock = Clock::since(part.start);
        let lock = Lock::named(&part.lock)?;
        let lease = Duration::from_millis(part.lease_ms);
        let locks = match lock.by_hand(&part.url) {
            Some(scheme) => {
                let name = part.name.clone();
                let tell = Rc::new(move |what| say(clock, &name, what));
                let naive = Naive::new(scheme, lease, clock, tell);
                naive.greet().await?;
                Locks::Naive(naive)
            }
            None => Locks::Own(Own::connect(&part, clock).await?),
        };
        let resource = RefCell::new(Connection::open(part.resource)?);
        let (holds, asking, asked, read) = Default::default();
        Ok(Client { part, clock, locks, holds, asking, asked, resource, read })
    }

    fn say(&self, what: What) {
        say(self.clock, &self.part.name, what);
    }

    async fn obey(&self, order: Order) -> Result<()> {
        match order {
            Order::Take { hold, key, patience_ms, fixed } => {
                self.take(hold, key, (patience_ms, fixed)).await
            }
            Order::Abandon { hold } => {
                drop(self.asking.borrow_mut().remove(&hold));
                Ok(())
            }
            Order::Read { hold } => self.read(hold).await,
            Order::Write { hold, blind } => self.write(hold, blind),
            Order::Release { hold } => self.release(hold).await,
            Order::Clocks { hold } => self.clocks(hold),
        }
    }

    async fn take(
        &self,
        hold: u64,
        key: String,
        (patience_ms, fixed): (Option<u64>, bool),
    ) -> Result<()> {
        let patience = patience_ms.map(Duration::from_millis);
        let (abandon, abandoned) = oneshot::channel();
        self.asking.borrow_mut().insert(hold, abandon);
        self.asked.borrow_mut().insert(hold, (Instant::now(), self.clock.now()));
        self.say(What::Asked { hold, key: key.clone() });
        let asking = async {
            Ok(match &self.locks {
                Locks::Naive(naive) => Held::Naive(naive.take(hold, &key, patience).await?),
                Locks::Own(own) => {
                    let guard = own.take(hold, &key, patience, fixed).await?;
                    let deadline = own.deadline(&guard);
                    Held::Own(RefCell::new(Some(guard)), deadline)
                }
            })
        };
        let answer: tenure::Result<Held> = tokio::select! {
            answer = asking => answer,
            _dropped = abandoned => {
                self.say(What::Unanswered { hold, why: "the ask was dropped".to_owned() });
                return Ok(());
            }
        };
        match answer {
            Ok(held) => {
                let (token, deadline) = held.granted();
                self.holds.borrow_mut().insert(hold, Rc::new(held));
                self.say(What::Granted { hold, token, deadline: Some(deadline) });
            }
            // A grant that was undone is an answer, and a clear one.
            Err(error)
                if error.kind() == ErrorKind::Unavailable
                    && !error.to_string().ends_with("it is undone") =>
            {
                self.say(What::Unanswered { hold, why: error.to_string() });
            }
            Err(error) => self.say(What::Refused { hold, why: error.to_string() }),
        }
        Ok(())
    }

    fn held(&self, hold: u64) -> Result<Rc<Held>> {
        self.holds.borrow().get(&hold).cloned().context("nothing is held")
    }

    async fn read(&self, hold: u64) -> Result<()> {
        let held = self.held(hold)?;
        if !held.believes() {
            self.say(What::Note { text: STOPPED.to_owned() });
            return Ok(());
        }
        let (mut values, mut last) = (Vec::new(), 0);
        for register in REGISTERS {
            let (client, (token, _)) = (self.part.name.clone(), held.granted());
            let request = Request { client, hold, register, token, value: None };
            let answer = self.resource.borrow_mut().ask(&request)?;
            values.push((!answer.refused).then_some(answer.value));
            last = answer.seq;
        }
        self.read.borrow_mut().insert(hold, values);
        // The work that the lock is there for.
        tokio::time::sleep(WORK).await;
        self.say(What::Note { text: format!("{DONE}{last}") });
        Ok(())
    }

    /// Writes where it could read: whoever was refused stops there.
    fn write(&self, hold: u64, blind: bool) -> Result<()> {
        let held = self.held(hold)?;
        if !blind && !held.believes() {
            self.say(What::Note { text: STOPPED.to_owned() });
            return Ok(());
        }
        let values = self.read.borrow().get(&hold).cloned().context("nothing was read")?;
        let mut last = 0;
        for (register, value) in REGISTERS.into_iter().zip(values) {
            let Some(value) = value else { continue };
            let (client, (token, _)) = (self.part.name.clone(), held.granted());
            let request = Request { client, hold, register, token, value: Some(value + 1) };
            last = self.resource.borrow_mut().ask(&request)?.seq;
        }
        self.say(What::Note { text: format!("{DONE}{last}") });
        Ok(())
    }

    fn clocks(&self, hold: u64) -> Result<()> {
        let asked = self.asked.borrow().get(&hold).copied();
        let (instant, boot) = asked.context("nothing was asked for")?;
        let (instant, boot) = (nanos(instant.elapsed()), self.clock.now().saturating_sub(boot));
        self.say(What::Note { text: format!("{CLOCKS}{instant} {boot}") });
        Ok(())
    }

    async fn release(&self, hold: u64) -> Result<()> {
        let held = self.held(hold)?;
        self.say(What::Releasing { hold });
        let own = match (&self.locks, &*held) {
            (Locks::Naive(naive), Held::Naive(hold)) => naive.release(hold).await.ok(),
            (_, Held::Own(guard, _)) => match guard.take() {
                Some(guard) => released(guard.release().await),
                None => None,
            },
            (Locks::Own(_), Held::Naive(_)) => None,
        };
        self.say(What::Released { hold, own });
        Ok(())
    }
}

impl Held {
    /// The token and the deadline.
    fn granted(&self) -> (Option<u64>, u64) {
        match self {
            Held::Naive(hold) => (hold.token, hold.deadline),
            Held::Own(guard, deadline) => {
                (guard.borrow().as_ref().map(|guard| guard.token().get()), *deadline)
            }
        }
    }

    /// Whether the program still believes that it holds: by hand it mostly does.
    fn believes(&self) -> bool {
        match self {
            Held::Naive(hold) => hold.believes(),
            Held::Own(guard, _) => {
                guard.borrow().as_ref().is_some_and(|guard| guard.check().is_ok())
            }
        }
    }
}

fn released(answer: tenure::Result<()>) -> Option<bool> {
    match answer {
        Ok(()) => Some(true),
        Err(error) if error.kind() == ErrorKind::Lost => Some(false),
        Err(_) => None,
    }
}

/// How long it works between reading and writing: enough to be seen in a picture.
const WORK: Duration = Duration::from_millis(40);
/// A client says so when it is connected.
pub(crate) const READY: &str = "ready";
/// A client says so when a step of its work is done, and which effect was the last of it.
pub(crate) const DONE: &str = "done ";
/// A client says so before two figures in nanoseconds: how long ago it asked, by `Instant` and by
/// the clock that runs while the machine sleeps.
pub(crate) const CLOCKS: &str = "clocks ";
/// A client says so when it did not do a step, because it knows that it no longer holds.
pub(crate) const STOPPED: &str = "does not go on: it knows that its lock is gone";
