//! The stage of one run: the resource, the clients, the record, and the conductor's verbs.
//!
//! Nothing here sleeps to make something happen: the conductor waits for what a process says, or
//! for what the server shows, and then gives the next order or injects the next fault.

mod actor;
mod client;
mod clock;
mod faults;
mod looks;
mod naive;
mod observer;
mod own;
mod part;
mod recorder;
mod resource;
mod waits;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::actor::Actor;
use self::client::{CLOCKS, DONE, READY, STOPPED};
use self::clock::{Clock, nanos};
pub(crate) use self::faults::Unplayable;
use self::observer::Observer;
use self::part::{Order, Part};
use self::recorder::Recorder;
use crate::history::{Event, Header, History, Kind, Lane, What};
use crate::network;
use crate::rig::{Link, Rig};
use crate::schemes::{Lock, with_session};

/// Plays a part of a run, in a process that the lab started: `client`, or the resource.
///
/// # Errors
///
/// If it cannot; the lab sees it end.
pub fn play(part: &str) -> Result<()> {
    match part.split_once(':') {
        None if part == "client" => client::play(),
        Some(("resource", start)) => resource::play(start.parse()?),
        Some(("network", cell)) => {
            part::end_with_parent()?;
            network::inner(cell)
        }
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
    /// The lease that clients ask for.
    pub(crate) lease: Duration,
    /// How long one who waits is waited for.
    pub(crate) limit: Duration,
    program: PathBuf,
    clock: Clock,
    recorder: Arc<Recorder>,
    resource: Child,
    follower: Option<JoinHandle<()>>,
    port: u16,
    actors: BTreeMap<String, Actor>,
    lanes: Vec<Lane>,
    holds: u64,
    observer: Option<Observer>,
}

impl<'a> Stage<'a> {
    /// Sets the stage: the resource runs when this returns.
    pub(crate) fn set(
        rig: &'a Rig,
        lock: &'static Lock,
        (lease, limit): (Duration, Duration),
        program: &Path,
    ) -> Result<Stage<'a>> {
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
        let follower = Some(recorder.follow(output));
        let (actors, lanes) = (BTreeMap::new(), Vec::new());
        let key = format!("lab/{:08x}", clock.start() as u32);
        let program = program.to_owned();
        let observer = None;
        let mut stage = Stage {
            lock,
            rig,
            key,
            lease,
            limit,
            program,
            clock,
            recorder,
            resource,
            follower,
            port,
            actors,
            lanes,
            holds: 0,
            observer,
        };
        stage.measure("lease", lease.as_secs_f64() * 1e3, "ms");
        Ok(stage)
    }

    /// Starts a client with its own way to the server; it is connected when this returns.
    pub(crate) fn client(&mut self, name: &str) -> Result<()> {
        let link = self.rig.link()?;
        self.client_on(name, link, &[])
    }

    /// Starts a client whose wall clock is ahead, and whose machine can sleep.
    pub(crate) fn client_ahead(&mut self, name: &str, offset_ms: i64) -> Result<()> {
        let clock = tenure_servers::shifted_clock(&self.clock_file(name), offset_ms)?;
        let link = self.rig.link()?;
        self.client_on(name, link, &clock)
    }

    /// What decides about the clocks of a client.
    fn clock_file(&self, name: &str) -> PathBuf {
        self.rig.folder().join(format!("{name}.clock"))
    }

    /// Starts a client with this way to the server.
    pub(crate) fn client_on(
        &mut self,
        name: &str,
        link: Link,
        extra: &[(&'static str, OsString)],
    ) -> Result<()> {
        let part = Part {
            name: name.to_owned(),
            lock: self.lock.name.to_owned(),
            url: with_session(&link.url, self.lease),
            lease_ms: u64::try_from(self.lease.as_millis())?,
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
        self.request(name, key, (patience, false))
    }

    /// A client requests the lock for one lease that is not renewed, and waits for it.
    pub(crate) fn acquire_fixed(&mut self, name: &str) -> Result<u64> {
        let key = self.key.clone();
        self.request(name, &key, (None, true))
    }

    fn request(
        &mut self,
        name: &str,
        key: &str,
        (patience, fixed): (Option<Duration>, bool),
    ) -> Result<u64> {
        self.holds += 1;
        let hold = self.holds;
        self.actor(name)?.hold = hold;
        let patience_ms = patience.map(|patience| patience.as_millis() as u64);
        self.order(name, &Order::Take { hold, key: key.to_owned(), patience_ms, fixed })?;
        let asked =
            |event: &Event| matches!(event.what, What::Asked { hold: of, .. } if of == hold);
        let since = self.actor(name)?.since;
        let heard = self.recorder.wait(since, PATIENCE, |event| asked(event).then_some(()));
        heard.with_context(|| format!("{name} did not ask"))?;
        Ok(hold)
    }

    /// Waits for the answer to the last ask; none if there is none in that time.
    pub(crate) fn answer_within(&mut self, name: &str, limit: Duration) -> Result<Option<Answer>> {
        let hold = self.actor(name)?.hold;
        // It may have come before somebody asks for it.
        Ok(self.recorder.wait(0, limit, |event| answer_of(event, hold)))
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

    /// Takes the lock and gives it back, so that everything is connected and prepared. Code by hand
    /// needs only the connection, which another lock makes as well.
    pub(crate) fn warm(&mut self, name: &str) -> Result<()> {
        let rest = if self.lock.is_own() { "" } else { "-warm" };
        let key = format!("{}{rest}", self.key);
        self.ask_for(name, &key, None)?;
        self.expect_grant(name)?;
        self.release(name).map(drop)
    }

    pub(crate) fn expect_grant(&mut self, name: &str) -> Result<()> {
        match self.answer(name)? {
            Answer::Granted { .. } => Ok(()),
            Answer::Refused => {
                let hold = self.actor(name)?.hold;
                let why = self.why_refused(hold).unwrap_or_default();
                bail!("{name} did not get the lock: {why}")
            }
            Answer::Unanswered => bail!("{name} did not get the lock: no answer"),
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
            STOPPED => Some(Ok(None)),
            text => match (text.strip_prefix(DONE), text.strip_prefix("failed: ")) {
                (Some(last), _) => Some(Ok(last.parse().ok())),
                (_, Some(why)) => Some(Err(why.to_owned())),
                _ => None,
            },
        };
        let step = self.recorder.wait(since, PATIENCE, told);
        let step = step.with_context(|| format!("{name} does not get on"))?;
        let Some(last) = step.map_err(|why| anyhow::anyhow!("{name}: {why}"))? else {
            return Ok(Step::Stopped);
        };
        // What the resource says comes another way, and may come later.
        let effect = |event: &Event| match event.what {
            What::Read { seq, .. } | What::Wrote { seq, .. } => (seq >= last).then_some(()),
            _ => None,
        };
        let known = last == 0 || self.recorder.wait(0, PATIENCE, effect).is_some();
        if known { Ok(Step::Done) } else { bail!("the resource does not tell what {name} did") }
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

    /// Ends the run: everybody goes, and what they said is one history.
    pub(crate) fn finish(mut self, header: Header) -> Result<History> {
        for actor in self.actors.values_mut() {
            actor.kill()?;
        }
        self.resource.kill()?;
        self.resource.wait()?;
        if let Some(follower) = self.follower.take() {
            drop(follower.join());
        }
        let mut lanes = std::mem::take(&mut self.lanes);
        if self.lock.topology.is_some() {
            lanes.push(Lane { name: SERVER.to_owned(), kind: Kind::Server });
        }
        lanes.push(Lane { name: "resource".to_owned(), kind: Kind::Resource });
        lanes.push(Lane { name: FAULT.to_owned(), kind: Kind::Fault });
        let lease = nanos(self.lease);
        let own_talk = |event: &Event| match &event.what {
            What::Note { text } => {
                text == READY || [DONE, CLOCKS].iter().any(|word| text.starts_with(word))
            }
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
