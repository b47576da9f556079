//! The stage of one run: the resource, the clients, the record, and the conductor's verbs.
//!
//! Nothing here sleeps to make something happen: the conductor waits for what a process says, or
//! for what the server shows, and then gives the next order or injects the next fault.

mod actor;
mod client;
mod clock;
mod naive;
mod observer;
mod own;
mod part;
mod recorder;
mod resource;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use self::actor::Actor;
use self::client::{DONE, READY, STOPPED};
use self::clock::{Clock, nanos};
use self::observer::Observer;
use self::part::{Order, Part};
use self::recorder::Recorder;
use crate::history::{Event, Header, History, Kind, Lane, Register, What};
use crate::rig::{Link, Rig};
use crate::schemes::Lock;

/// Plays a part of a run, in a process that the lab started: `client`, or the resource.
///
/// # Errors
///
/// If it cannot; the lab sees it end.
pub fn play(part: &str) -> Result<()> {
    match part.split_once(':') {
        None if part == "client" => client::play(),
        Some(("resource", start)) => resource::play(start.parse()?),
        _ => bail!("no such part: {part}"),
    }
}

/// The answer to an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted { token: Option<u64> },
    Refused,
    Unanswered,
}

impl Answer {
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self, Answer::Granted { .. })
    }
}

/// How a step of work went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    /// The client knew that its lock was gone, and stopped.
    Stopped,
}

/// A run under way.
pub(crate) struct Stage<'a> {
    pub(crate) lock: &'static Lock,
    pub(crate) rig: &'a Rig,
    pub(crate) key: String,
    program: PathBuf,
    clock: Clock,
    recorder: Arc<Recorder>,
    resource: Child,
    port: u16,
    actors: BTreeMap<String, Actor>,
    lanes: Vec<Lane>,
    holds: u64,
    observer: Option<Observer>,
}

impl<'a> Stage<'a> {
    /// Sets the stage: the resource runs when this returns.
    pub(crate) fn set(rig: &'a Rig, lock: &'static Lock, program: &Path) -> Result<Stage<'a>> {
        let clock = Clock::begin();
        let recorder = Recorder::new(clock);
        let mut resource = Command::new(program)
            .args(["lab", "play", &format!("resource:{}", clock.start())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the resource")?;
        let output = resource.stdout.take().context("the resource has a stdout")?;
        let mut output = BufReader::new(output);
        let mut port = String::new();
        output.read_line(&mut port)?;
        let port = port.trim().parse().context("the resource did not tell its port")?;
        drop(recorder.follow(output));
        let (actors, lanes) = (BTreeMap::new(), Vec::new());
        let key = format!("lab/{:08x}", clock.start() as u32);
        let program = program.to_owned();
        let observer = None;
        let mut stage = Stage {
            lock, rig, key, program, clock, recorder, resource, port, actors, lanes,
            holds: 0, observer,
        };
        stage.measure("lease", lock.lease.as_secs_f64() * 1e3, "ms");
        Ok(stage)
    }

    // Clients.

    /// Starts a client with its own way to the server; it is connected when this returns.
    pub(crate) fn client(&mut self, name: &str) -> Result<()> {
        let link = self.rig.link()?;
        self.client_on(name, link, &[])
    }

    /// Starts a client with this way to the server.
    pub(crate) fn client_on(
        &mut self,
        name: &str,
        link: Link,
        extra: &[(String, String)],
    ) -> Result<()> {
        let part = Part {
            name: name.to_owned(),
            lock: self.lock.name.to_owned(),
            url: link.url.clone(),
            lease_ms: u64::try_from(self.lock.lease.as_millis())?,
            resource: self.port,
            start: self.clock.start(),
        };
        let actor = Actor::start(&self.program, &part, link, extra, &self.recorder)?;
        let since = actor.since;
        self.lanes.push(Lane { name: name.to_owned(), kind: Kind::Client });
        self.actors.insert(name.to_owned(), actor);
        let ready = |event: &Event| note_of(event, name).filter(|text| *text == READY).map(drop);
        self.recorder.wait(since, PATIENCE, ready).with_context(|| format!("{name} is not ready"))
    }

    fn actor(&mut self, name: &str) -> Result<&mut Actor> {
        self.actors.get_mut(name).with_context(|| format!("no client {name}"))
    }

    fn order(&mut self, name: &str, order: &Order) -> Result<()> {
        let place = self.recorder.place();
        let actor = self.actor(name)?;
        actor.since = place;
        actor.tell(order)
    }

    /// A client asks, for as long as its patience lasts; the answer is waited for elsewhere.
    pub(crate) fn ask(&mut self, name: &str, patience: Option<Duration>) -> Result<u64> {
        let key = self.key.clone();
        self.ask_for(name, &key, patience)
    }

    /// The same for another key.
    pub(crate) fn ask_for(
        &mut self,
        name: &str,
        key: &str,
        patience: Option<Duration>,
    ) -> Result<u64> {
        self.holds += 1;
        let hold = self.holds;
        self.actor(name)?.hold = hold;
        let patience_ms = patience.map(|patience| patience.as_millis() as u64);
        self.order(name, &Order::Take { hold, key: key.to_owned(), patience_ms })?;
        let asked = |event: &Event| matches!(event.what, What::Asked { hold: of, .. } if of == hold);
        let since = self.actor(name)?.since;
        let heard = self.recorder.wait(since, PATIENCE, |event| asked(event).then_some(()));
        heard.with_context(|| format!("{name} did not ask"))?;
        Ok(hold)
    }

    /// Waits for the answer to the last ask; none if there is none in that time.
    pub(crate) fn answer_within(&mut self, name: &str, limit: Duration) -> Result<Option<Answer>> {
        let actor = self.actor(name)?;
        let (hold, since) = (actor.hold, actor.since);
        Ok(self.recorder.wait(since, limit, |event| answer_of(event, hold)))
    }

    /// Waits for the answer to the last ask.
    pub(crate) fn answer(&mut self, name: &str) -> Result<Answer> {
        let answer = self.answer_within(name, PATIENCE)?;
        answer.with_context(|| format!("{name} got no answer within {PATIENCE:?}"))
    }

    /// Asks once, without waiting.
    pub(crate) fn attempt(&mut self, name: &str) -> Result<Answer> {
        self.ask(name, Some(Duration::ZERO))?;
        self.answer(name)
    }

    /// Asks, waits until it is granted, and reads the registers.
    pub(crate) fn enter(&mut self, name: &str) -> Result<()> {
        self.ask(name, None)?;
        self.expect_grant(name)?;
        self.read(name).map(drop)
    }

    pub(crate) fn expect_grant(&mut self, name: &str) -> Result<()> {
        match self.answer(name)? {
            Answer::Granted { .. } => Ok(()),
            other => bail!("{name} should have got the lock: {other:?}"),
        }
    }

    /// Reads the three registers, if it still holds as far as it knows.
    pub(crate) fn read(&mut self, name: &str) -> Result<Step> {
        let hold = self.actor(name)?.hold;
        self.order(name, &Order::Read { hold })?;
        self.step(name)
    }

    /// Writes what it read plus one, after a look whether it still holds.
    pub(crate) fn write(&mut self, name: &str) -> Result<Step> {
        let hold = self.actor(name)?.hold;
        self.order(name, &Order::Write { hold, blind: false })?;
        self.step(name)
    }

    /// Writes as one who looked just before the fault.
    pub(crate) fn write_blind(&mut self, name: &str) -> Result<Step> {
        let hold = self.actor(name)?.hold;
        self.order(name, &Order::Write { hold, blind: true })?;
        self.step(name)
    }

    fn step(&mut self, name: &str) -> Result<Step> {
        let since = self.actor(name)?.since;
        let told = |event: &Event| match note_of(event, name)? {
            DONE => Some(Ok(Step::Done)),
            STOPPED => Some(Ok(Step::Stopped)),
            text => text.strip_prefix("failed: ").map(|why| Err(why.to_owned())),
        };
        let step = self.recorder.wait(since, PATIENCE, told);
        let step = step.with_context(|| format!("{name} does not get on"))?;
        step.map_err(|why| anyhow::anyhow!("{name}: {why}"))
    }

    /// Gives the lock back; whether it was still its own, if somebody answered.
    pub(crate) fn release(&mut self, name: &str) -> Result<Option<bool>> {
        let hold = self.actor(name)?.hold;
        self.order(name, &Order::Release { hold })?;
        let since = self.actor(name)?.since;
        let told = |event: &Event| match event.what {
            What::Released { hold: of, own } if of == hold => Some(own),
            _ => None,
        };
        let own = self.recorder.wait(since, PATIENCE, told);
        own.with_context(|| format!("{name} does not get rid of its lock"))
    }

    /// Reads, writes and gives back.
    pub(crate) fn finish_work(&mut self, name: &str) -> Result<()> {
        self.write(name)?;
        self.release(name).map(drop)
    }

    /// Drops an ask that is under way.
    pub(crate) fn abandon(&mut self, name: &str) -> Result<()> {
        let hold = self.actor(name)?.hold;
        self.order(name, &Order::Abandon { hold })?;
        self.answer(name).map(drop)
    }

    /// Waits until a client is told, or finds out, that it lost its lock.
    pub(crate) fn lost_within(&mut self, name: &str, limit: Duration) -> Result<bool> {
        let hold = self.actor(name)?.hold;
        let lost = |event: &Event| matches!(event.what, What::Lost { hold: of, .. } if of == hold);
        let told = self.recorder.wait(0, limit, |event| lost(event).then_some(()));
        Ok(told.is_some())
    }

    // Faults.

    /// A fault begins that lasts until it is healed.
    pub(crate) fn fault(&self, id: &str, text: &str, target: &str) {
        self.wound(id, text, target, true);
    }

    /// A fault happens.
    pub(crate) fn blow(&self, id: &str, text: &str, target: &str) {
        self.wound(id, text, target, false);
    }

    fn wound(&self, id: &str, text: &str, target: &str, lasts: bool) {
        let (id, text, target) = (id.to_owned(), text.to_owned(), target.to_owned());
        self.recorder.note(FAULT, What::Fault { id, text, target, lasts });
    }

    pub(crate) fn healed(&self, text: &str, target: &str) {
        let (text, target) = (text.to_owned(), target.to_owned());
        self.recorder.note(FAULT, What::Healed { text, target });
    }

    /// Stops a client where it is.
    pub(crate) fn stop(&mut self, name: &str, id: &str) -> Result<()> {
        self.fault(id, &format!("{name} is stopped"), name);
        self.actor(name)?.signal(Signal::STOP)
    }

    /// Lets a stopped client go on.
    pub(crate) fn go_on(&mut self, name: &str) -> Result<()> {
        self.healed(&format!("{name} goes on"), name);
        self.actor(name)?.signal(Signal::CONT)
    }

    /// Kills a client.
    pub(crate) fn kill(&mut self, name: &str, id: &str) -> Result<()> {
        self.actor(name)?.kill()?;
        self.recorder.note(name, What::Ended { how: "killed".to_owned() });
        self.blow(id, &format!("{name} is killed"), name);
        Ok(())
    }

    /// The way of a client to the server.
    pub(crate) fn link(&mut self, name: &str) -> Result<&Link> {
        Ok(&self.actor(name)?.link)
    }

    // Looks.

    /// Asks the server who holds the lock, and writes the answer down.
    pub(crate) fn look(&mut self) -> Result<bool> {
        let observer = match self.observer.take() {
            Some(observer) => observer,
            None => Observer::open(self.lock, &self.rig.direct(), &self.key)?,
        };
        let seen = observer.look();
        self.observer = Some(observer);
        let seen = seen?;
        let until = |left| self.clock.after(left);
        let holder = seen.as_ref().map(|holding| holding.holder.name.clone());
        let until = seen.as_ref().and_then(|holding| holding.holder.ttl_left).map(until);
        let held = seen.is_some();
        self.recorder.note(SERVER, What::Seen { holder, until });
        Ok(held)
    }

    /// Waits until the server shows the lock as held, or as free.
    pub(crate) fn wait_held(&mut self, wanted: bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.look()? != wanted {
            if Instant::now() >= end {
                bail!("the server never showed the lock as {}", if wanted { "held" } else { "free" });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Takes the lock away from its holder, as an operator would.
    pub(crate) fn evict(&mut self, token: Option<u64>) -> Result<()> {
        self.look()?;
        let observer = self.observer.as_ref().context("nobody looks")?;
        match observer.evict(token.unwrap_or(1))? {
            true => Ok(()),
            false => bail!("there was nothing to take away"),
        }
    }

    /// A figure of this run.
    pub(crate) fn measure(&mut self, name: &str, value: f64, unit: &str) {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        self.recorder.note(FAULT, What::Measured { name, value, unit });
    }

    /// Something worth a mark.
    pub(crate) fn remark(&self, lane: &str, text: &str) {
        self.recorder.note(lane, What::Note { text: text.to_owned() });
    }

    /// What the client that read last found in the register without a fence.
    pub(crate) fn plain_value(&self) -> u64 {
        self.recorder.last(|event| match event.what {
            What::Read { register: Register::Plain, value, .. } => Some(value),
            _ => None,
        })
        .unwrap_or(0)
    }

    /// How many writes the register without a fence took.
    pub(crate) fn sales(&self) -> usize {
        let sale = |event: &Event| {
            matches!(event.what, What::Wrote { register: Register::Plain, .. })
        };
        self.recorder.count(sale)
    }

    /// Now, on the run's clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Ends the run: everybody goes, and what they said is one history.
    pub(crate) fn finish(mut self, header: Header) -> Result<History> {
        for actor in self.actors.values_mut() {
            actor.kill()?;
        }
        self.resource.kill()?;
        self.resource.wait()?;
        let mut lanes = std::mem::take(&mut self.lanes);
        if self.lock.topology.is_some() {
            lanes.push(Lane { name: SERVER.to_owned(), kind: Kind::Server });
        }
        lanes.push(Lane { name: "resource".to_owned(), kind: Kind::Resource });
        lanes.push(Lane { name: FAULT.to_owned(), kind: Kind::Fault });
        let lease = nanos(self.lock.lease);
        let own_talk = |event: &Event| match &event.what {
            What::Note { text } => [READY, DONE].contains(&text.as_str()),
            _ => false,
        };
        let mut events = self.recorder.take();
        events.retain(|event| !own_talk(event));
        Ok(History::new(Header { lanes, lease, ..header }, events))
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // One that was waited for needs no killing.
        let _ended = self.resource.kill();
        let _reaped = self.resource.wait();
    }
}

fn note_of<'e>(event: &'e Event, name: &str) -> Option<&'e str> {
    match &event.what {
        What::Note { text } if event.lane == name => Some(text),
        _ => None,
    }
}

fn answer_of(event: &Event, attempt: u64) -> Option<Answer> {
    match event.what {
        What::Granted { hold, token, .. } if hold == attempt => Some(Answer::Granted { token }),
        What::Refused { hold, .. } if hold == attempt => Some(Answer::Refused),
        What::Unanswered { hold, .. } if hold == attempt => Some(Answer::Unanswered),
        _ => None,
    }
}

/// The lane of the lab itself.
pub(crate) const FAULT: &str = "lab";
/// The lane of the servers.
pub(crate) const SERVER: &str = "server";
/// How long the conductor waits for what has to come.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the server is looked at while waiting for it to show something.
const LOOK_EVERY: Duration = Duration::from_millis(5);
