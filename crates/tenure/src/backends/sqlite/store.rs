//! The open store: the connection and our session in it. It lives on one thread.

use std::collections::HashSet;
use std::{io, mem};

use rusqlite::Connection;

use super::beacon::{Beacon, Dead, Session, probe};
use super::bell::{self, Bell, Ring};
use super::boot::Boot;
use super::change::{Call, Change, Stop};
use super::fault;
use super::place::{Place, Settings};
use super::schema;
use crate::backend::Owner;
use crate::error::{Error, ErrorKind, Result};

/// An open store. Without a session until it claims something: to look needs none.
pub(super) struct Store {
    pub(super) conn: Connection,
    pub(super) place: Place,
    pub(super) boot: Boot,
    inherit: bool,
    beacon: Option<Beacon>,
    bell: Option<Bell>,
    /// Owners who were told that they are in the queue: they need not write to hear it again.
    pub(super) queued: HashSet<Owner>,
    /// Owners whose lock was taken by force, until that was reported.
    pub(super) evicted: HashSet<Owner>,
    /// Rings for ourselves, which need no bell.
    rung: Vec<(Owner, Ring)>,
    /// The file under our name is no longer the one that we opened.
    replaced: bool,
    chores: Chores,
}

/// What can wait until the answer was sent and nobody comes for the next.
#[derive(Default)]
struct Chores {
    checkpoint: bool,
    reserve: bool,
    sweep: bool,
}

impl Store {
    pub(super) fn open(settings: &Settings) -> Result<Store> {
        let place = Place::prepare(settings)?;
        let boot = Boot::read().map_err(|error| {
            let message = "cannot read the id of this boot; is `/proc` mounted?";
            Error::new(ErrorKind::Unsupported, message).with_source(error)
        })?;
        let conn = schema::connect(&place, &boot)?;
        Ok(Store {
            conn,
            place,
            boot,
            inherit: settings.inherit,
            beacon: None,
            bell: None,
            queued: HashSet::new(),
            evicted: HashSet::new(),
            rung: Vec::new(),
            replaced: false,
            chores: Chores::default(),
        })
    }

    /// Our session, which begins with its first claim.
    pub(super) fn session(&mut self) -> Result<Session> {
        if let Some(beacon) = &self.beacon {
            return Ok(beacon.session);
        }
        let lit = Beacon::light(&self.place, self.inherit);
        let beacon = lit.map_err(|error| fault::from_io(&self.place.sessions.path, error))?;
        let session = beacon.session;
        self.chores.sweep = session.sweeps();
        self.beacon = Some(beacon);
        Ok(session)
    }

    /// Our bell, which hangs as soon as somebody waits. Without one, waiters look more often.
    pub(super) fn bell(&mut self) -> Option<&Bell> {
        if self.bell.is_none() {
            let session = self.session().ok()?;
            self.bell = Bell::hang(&self.place, session).ok();
        }
        self.bell.as_ref()
    }

    pub(super) fn hung_bell(&self) -> Option<&Bell> {
        self.bell.as_ref()
    }

    /// Everything that was rung for owners of ours since the last call.
    pub(super) fn rung(&mut self) -> Vec<(Owner, Ring)> {
        let mut rung = mem::take(&mut self.rung);
        rung.extend(self.bell.iter().flat_map(|bell| std::iter::from_fn(|| bell.heard())));
        rung
    }

    pub(super) fn is_ours(&self, session: Session) -> bool {
        self.beacon.as_ref().is_some_and(|beacon| beacon.session == session)
    }

    /// Looks whether the file is still the one that we opened. Once it was not, it never is again.
    pub(super) fn in_place(&mut self) -> bool {
        self.replaced |= !self.place.is_in_place();
        !self.replaced
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced
    }

    /// The session, if it is known to be dead.
    pub(super) fn dead(&self, session: Session) -> Option<Dead> {
        if self.is_ours(session) { None } else { probe(&self.place, session) }
    }

    /// Makes one change: whole, or not at all. Whom it concerns is rung after the commit.
    pub(super) fn change<T>(
        &mut self,
        mut work: impl FnMut(&mut Change<'_>) -> Result<T, Stop>,
    ) -> Result<T> {
        // Others may spend a whole block between our reserving and our asking; not ten times.
        for _ in 0..10 {
            match self.attempt(&mut work) {
                Ok(done) => return Ok(done),
                Err(Stop::Spent) => self.reserve().map_err(|error| self.fault(error))?,
                Err(Stop::Sqlite(error)) => return Err(self.fault(error)),
            }
        }
        let message = format!("no fencing token is left in `{}`", self.place.file.display());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    fn attempt<T>(
        &mut self,
        work: &mut impl FnMut(&mut Change<'_>) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        self.run("BEGIN IMMEDIATE")?;
        let mut change = Change {
            conn: &self.conn,
            place: &self.place,
            session: self.beacon.as_ref().map(|beacon| beacon.session),
            now: self.boot.now_ms(),
            calls: Vec::new(),
            low: false,
        };
        let done = work(&mut change);
        let (calls, low) = (change.calls, change.low);
        let done = done.and_then(|done| Ok(self.run("COMMIT").map(|()| done)?));
        match &done {
            Ok(_) => {
                self.chores.checkpoint = true;
                self.chores.reserve |= low;
                self.ring(calls);
            }
            // SQLite may have rolled back by itself, as after a full disk.
            Err(_) if self.conn.is_autocommit() => {}
            Err(_) => self.run("ROLLBACK")?,
        }
        done
    }

    fn ring(&mut self, calls: Vec<Call>) {
        for Call { session, key, owner, ring } in calls {
            if self.is_ours(session) {
                self.rung.push((owner, ring));
                continue;
            }
            let rung = bell::ring(&self.place, session, owner, ring);
            // One without a bell, or with a full one, looks often or is stopped. But the bell of
            // another user may be none that we may write to, and its waiter counts on it.
            let denied = rung.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
            if denied && ring == Ring::Offered {
                let _lapses = self.change(|change| change.prolong(&key, owner));
            }
        }
    }

    /// Buries a dead session: its rows, then its files.
    pub(super) fn bury(&mut self, dead: Dead) -> Result<()> {
        self.change(|change| change.forget(dead.session))?;
        dead.clear(&self.place);
        Ok(())
    }

    /// Reserves another block of tokens, by a commit that is synced before anybody sees it.
    fn reserve(&self) -> rusqlite::Result<()> {
        schema::synced(&self.conn, || self.conn.execute(RESERVE, [schema::BLOCK]).map(drop))
    }

    pub(super) fn has_chores(&self) -> bool {
        self.chores.checkpoint || self.chores.reserve || self.chores.sweep
    }

    /// Does what could wait for the answer. What fails here is done by whoever comes next.
    pub(super) fn tidy(&mut self) {
        let chores = mem::take(&mut self.chores);
        if chores.reserve {
            let _later = self.reserve();
        }
        if chores.sweep {
            self.sweep();
        }
        if chores.checkpoint && schema::unmerged(&self.conn).is_ok_and(|n| n >= CHECKPOINT) {
            let _later = schema::merge(&self.conn);
        }
    }

    /// Buries everybody who is dead.
    pub(super) fn sweep(&mut self) {
        let names = self.place.sessions.names();
        for session in names.iter().filter_map(|name| Session::of_beacon(name)) {
            if let Some(dead) = self.dead(session) {
                let _later = self.bury(dead);
            }
        }
    }

    /// Ends the session: its rows go, whoever waits for them is told, and its files go.
    pub(super) fn close(mut self) {
        if let Some(beacon) = self.beacon.take() {
            let session = beacon.session;
            let has_rows = "SELECT EXISTS (SELECT 1 FROM claim WHERE session = ?1)";
            let clean = match self.conn.query_row(has_rows, [session.0], |row| row.get(0)) {
                Ok(false) => true,
                _ => self.change(|change| change.forget(session)).is_ok(),
            };
            if let Some(bell) = self.bell.take() {
                bell.take_down(&self.place);
            }
            // With rows left behind, the dark beacon is what tells the others.
            if clean {
                beacon.put_out(&self.place);
            }
        }
        self.tidy();
    }

    /// An error of SQLite, about this store.
    pub(super) fn fault(&self, error: rusqlite::Error) -> Error {
        fault::from_sqlite(&self.place, error)
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }
}

/// Pages of the log before they are put into the file: each first opener reads the whole log.
const CHECKPOINT: i64 = 200;

const RESERVE: &str = "UPDATE meta SET reserved = reserved + ?1 WHERE next >= reserved - ?1 / 4";
