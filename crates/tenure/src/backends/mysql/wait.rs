//! Waiting: `until_free` and `until_lost`. One poll task per client serves all of its waiters; it
//! runs only while there are any.
//!
//! One wake-up, from the release of client A to the grant of client B:
//!
//!  1. B's acquire finds the lock held and adds a queue entry with B's wake id (column `bell`).
//!  2. B calls [`until_free`]: a [`LocalWaiter`] is added, and the poll task is started.
//!  3. The poll task opens the [`WakeConnection`]. It holds the lock `tenure:bell:<wake id>`, and
//!     waits in `SELECT SLEEP(10)`.
//!  4. A's release makes B's claim the owner (handoff), with B's wake id from the queue entry.
//!  5. A executes `KILL QUERY IS_USED_LOCK('tenure:bell:<wake id>')`: in the packet of the release,
//!     or, in `mode=session` and `mode=row`, after it has released the server's own lock. A's
//!     release is done after that: its process may end.
//!  6. The server ends the SLEEP of B's wake connection, which notifies the poll task.
//!  7. The poll task reads the rows of all keys that its client waits for, in one SELECT.
//!  8. The row names B's claim as owner, with a token above all that B has seen: B's waiter gets
//!     the grant.
//!  9. In `mode=session` and `mode=row`, `until_free` now acquires the server's own lock.
//!
//! **Invariant.** A grant is delivered only if its token is above every token that the claim was
//! shown, and only to a waiter that was added before the poll began; see [`Waiters::deliver`].
//!
//! **Lost wake-ups.** A `KILL QUERY` between two statements of the wake connection has no effect,
//! and an expiry wakes no client. So the task also polls from time to time ([`PollInterval`]), and
//! when the first lease ends that is waited for.

mod local_waiter;
mod poll_interval;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::acquire::{SERVER_LOCK_FIRST_RETRY, ServerLockAttempt, acquire_server_lock};
use super::connection::ConnectOptions;
use super::layout::rows::{LockSnapshot, SharedGrant};
use super::lease::{LockTables, QUERY_LIMIT};
use super::wake_connection::{WakeConnection, WakeTarget, wake_limit, wake_sql};
use super::{Context, ServerLocks};
use crate::backend::{Claim, Grant};
use crate::error::Result;
use crate::key::Key;
use crate::support::sync::Mutex;
use local_waiter::{LocalWaiter, PollResult, WaitFor};
use poll_interval::PollInterval;

/// How long the poll task and the wake connection stay when no claim waits.
const IDLE: Duration = Duration::from_secs(15);
/// The limit of a request that wakes another client.
const WAKE_REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// The longest pause before the server's own lock is tried again.
const SERVER_LOCK_MAX_RETRY: Duration = Duration::from_secs(1);

/// Waits until the claim has the turn, and then acquires the server's own lock if the mode has one.
/// A foreign client may hold that lock for any time: the longer the claim has had the turn, the
/// less often it is tried. An evicted holder releases it within milliseconds.
///
/// A grant that is not delivered, because this future was dropped, is found by the claim's next
/// acquire, or removed by its release.
pub(super) async fn until_free(context: &Context, claim: &Claim) -> Option<Grant> {
    let turn = context.waiters.until(claim, WaitFor::Free).await?;
    loop {
        match acquire_server_lock(context, claim, turn.token).await.ok()? {
            ServerLockAttempt::Granted(token) => return Some(Grant { token, ..turn }),
            ServerLockAttempt::Blocked { turn_age } => {
                let pause = turn_age.clamp(SERVER_LOCK_FIRST_RETRY, SERVER_LOCK_MAX_RETRY);
                tokio::time::sleep(pause).await;
            }
            ServerLockAttempt::TurnOver => return None,
        }
    }
}

/// Waits until the connection that has the server's own lock is lost, or a poll shows that the
/// claim is not the owner. In `mode=lease` an eviction shows at the next renewal: waiting here
/// would double the connections of clients that only hold.
pub(super) async fn until_lost(context: &Context, claim: &Claim) {
    let held_over = match &context.server_locks {
        ServerLocks::None => std::future::pending().await,
        ServerLocks::Named(locks) => {
            locks.connection_id(claim).map(|id| (context.tables.main().clone(), id))
        }
        ServerLocks::Row(locks) => locks.connection(claim),
    };
    let Some((connection, id)) = held_over else { return };
    tokio::select! {
        () = connection.until_lost(&id) => {}
        _no_grant = context.waiters.until(claim, WaitFor::Lost) => {}
    }
}

/// The waiters of one client, and what its poll task needs.
pub(super) struct Waiters {
    tables: Arc<LockTables>,
    /// How to open the wake connection; `None` to poll without one.
    wake_options: Option<ConnectOptions>,
    runtime: tokio::runtime::Handle,
    state: Mutex<WaitersState>,
    /// Poll now: another client, or another claim of this one, has changed a row.
    woken: Arc<Notify>,
    /// A waiter was added.
    added: Notify,
}

#[derive(Default)]
struct WaitersState {
    waiters: HashMap<u64, LocalWaiter>,
    /// The number of the newest waiter.
    newest: u64,
    /// Whether the poll task runs.
    is_polling: bool,
    /// Whether the client was dropped.
    is_closed: bool,
}

impl Waiters {
    pub(super) fn new(
        tables: Arc<LockTables>,
        wake_options: Option<ConnectOptions>,
        runtime: tokio::runtime::Handle,
    ) -> Waiters {
        Waiters {
            tables,
            wake_options,
            runtime,
            state: Mutex::default(),
            woken: Arc::default(),
            added: Notify::new(),
        }
    }

    /// Wakes the clients whose claims were handed the lock, or were evicted, and waits for that;
    /// see [`wake_limit`].
    pub(super) async fn wake(&self, targets: &[WakeTarget], ttl: Duration) {
        let mut requests = Vec::new();
        for target in targets {
            match target {
                WakeTarget::ThisClient => self.woken.notify_one(),
                WakeTarget::Client { wake_id } => requests.push(wake_sql(wake_id)),
            }
        }
        if requests.is_empty() {
            return;
        }
        let main = self.tables.main().clone();
        // A task of its own, which goes on when it is not waited for any more. Each wake-up is a
        // packet of its own, because one that fails ends its packet.
        let waking = self.runtime.spawn(async move {
            for sql in requests {
                drop(main.execute_once(sql, WAKE_REQUEST_LIMIT).await);
            }
        });
        drop(tokio::time::timeout(wake_limit(ttl), waking).await);
    }

    /// Ends the poll task: the client is dropped.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.woken.notify_one();
    }

    /// Returns when the wait is over; with a grant if the claim was granted.
    async fn until(self: &Arc<Self>, claim: &Claim, wait_for: WaitFor) -> Option<Grant> {
        let (reply, response) = oneshot::channel();
        let owner = claim.owner.to_string();
        let _registration = self.add(LocalWaiter { claim: claim.clone(), owner, wait_for, reply });
        match response.await {
            Ok(grant) => grant,
            // The poll task has ended with its runtime.
            Err(_) => std::future::pending().await,
        }
    }

    /// Adds a waiter, and starts the poll task if it does not run.
    fn add(self: &Arc<Self>, waiter: LocalWaiter) -> WaiterRegistration {
        let mut state = self.state.lock();
        let number = state.insert(waiter);
        if !std::mem::replace(&mut state.is_polling, true) {
            self.runtime.spawn(poll_for_all(self.clone()));
        }
        drop(state);
        self.added.notify_one();
        WaiterRegistration { waiters: self.clone(), number }
    }

    fn has_waiters(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Ends the poll task if no claim has waited for a while.
    fn stop_if_idle(&self, idle_since: Instant) -> ControlFlow<()> {
        let mut state = self.state.lock();
        // Under the lock, so that a waiter that is added after this starts a new task.
        if state.waiters.is_empty() && (state.is_closed || idle_since.elapsed() >= IDLE) {
            state.is_polling = false;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// How many queue entries are in front of this client's first waiter, as far as is known.
    fn ahead(&self) -> u32 {
        let state = self.state.lock();
        let ahead = |waiter: &LocalWaiter| self.tables.hints.ahead(waiter.claim.owner);
        state.waiters.values().map(ahead).min().unwrap_or(0)
    }

    fn start_wake_connection(&self) -> Option<WakeConnection> {
        let options = self.wake_options.clone()?;
        Some(WakeConnection::start(&self.tables, options, self.woken.clone(), &self.runtime))
    }

    fn poll_scope(&self) -> PollScope {
        let state = self.state.lock();
        let mut keys: Vec<_> =
            state.waiters.values().map(|waiter| waiter.claim.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let in_other_modes = state.waiters.values().filter(|waiter| waiter.is_in_other_mode());
        let in_other_modes = in_other_modes.map(|waiter| waiter.owner.clone()).collect();
        PollScope { keys, in_other_modes, newest_waiter: state.newest }
    }

    /// Reads the rows of the keys and ends the waits that are over. Returns when the first lease
    /// expires that is still waited for.
    async fn poll(&self, scope: &PollScope) -> Result<Duration> {
        let statements = &self.tables.statements;
        let sql = match &*scope.in_other_modes {
            [] => LockSnapshot::select(statements, &scope.keys),
            owners => LockSnapshot::select_in_modes(statements, &scope.keys, owners),
        };
        let response = self.tables.main().execute(sql, QUERY_LIMIT).await?;
        let mut result_sets = response.result_sets.iter();
        let rows = result_sets.next().into_iter().flatten();
        let snapshots = rows.map(LockSnapshot::read).collect::<Result<Vec<_>>>()?;
        let rows = result_sets.next().into_iter().flatten();
        let shared = rows.map(SharedGrant::read).collect::<Result<Vec<_>>>()?;
        Ok(self.deliver(scope, &snapshots, &shared))
    }

    /// Ends the waits that are over, of waiters that were added before the poll began.
    ///
    /// The response to a poll may be late. In the meantime the grant that it shows can have
    /// expired, another client can have got the lock, and the claim can have been told so over
    /// another connection. The waiter that the claim adds after that has a higher number than all
    /// waiters of the poll, so that the late poll cannot give it the old grant. A poll that began
    /// after the waiter was added is newer than every response that the claim has had.
    fn deliver(
        &self,
        scope: &PollScope,
        snapshots: &[LockSnapshot],
        shared: &[SharedGrant],
    ) -> Duration {
        let by_key: HashMap<&[u8], &LockSnapshot> =
            snapshots.iter().map(|snapshot| (&*snapshot.key, snapshot)).collect();
        let by_owner: HashMap<&str, &SharedGrant> =
            shared.iter().map(|grant| (&*grant.owner, grant)).collect();
        let mut next_expiry = IDLE;
        let mut state = self.state.lock();
        let numbers: Vec<u64> = state.waiters.keys().copied().collect();
        for number in numbers.into_iter().filter(|number| *number <= scope.newest_waiter) {
            let Some(waiter) = state.waiters.get(&number) else { continue };
            let snapshot = by_key.get(waiter.claim.key.as_str().as_bytes()).copied();
            let shared = by_owner.get(&*waiter.owner).copied();
            let grant = match waiter.check(snapshot, shared, &self.tables.hints) {
                PollResult::KeepWaiting => {
                    let expiry = snapshot.map_or(IDLE, |snapshot| snapshot.recheck_in);
                    next_expiry = next_expiry.min(expiry);
                    continue;
                }
                PollResult::Wake => None,
                PollResult::Granted(grant) => Some(grant),
            };
            if let Some(waiter) = state.waiters.remove(&number) {
                // The caller may have stopped waiting: its next acquire then finds the grant.
                let _ignored = waiter.reply.send(grant);
            }
        }
        next_expiry
    }
}

impl WaitersState {
    /// Adds a waiter under the next number.
    fn insert(&mut self, waiter: LocalWaiter) -> u64 {
        self.newest += 1;
        self.waiters.insert(self.newest, waiter);
        self.newest
    }
}

/// Removes a waiter when it is dropped.
struct WaiterRegistration {
    waiters: Arc<Waiters>,
    number: u64,
}

impl Drop for WaiterRegistration {
    fn drop(&mut self) {
        self.waiters.state.lock().waiters.remove(&self.number);
    }
}

/// What a poll is about, fixed when it begins.
struct PollScope {
    /// The keys, each once.
    keys: Vec<Key>,
    /// The owners of the waiters in other modes than the exclusive one.
    in_other_modes: Vec<String>,
    newest_waiter: u64,
}

/// The poll task: polls, ends waits, and sleeps until the next reason to poll.
async fn poll_for_all(waiters: Arc<Waiters>) {
    let mut wake_connection: Option<WakeConnection> = None;
    let mut interval = PollInterval::new(waiters.wake_options.is_some());
    let mut idle_since = Instant::now();
    // The end of the first lease that is waited for.
    let mut next_expiry = IDLE;
    loop {
        let mut pause = IDLE;
        if waiters.has_waiters() {
            idle_since = Instant::now();
            pause = interval.next(waiters.ahead()).min(next_expiry);
            wake_connection = wake_connection.or_else(|| waiters.start_wake_connection());
        } else if waiters.stop_if_idle(idle_since).is_break() {
            return;
        }
        tokio::select! {
            () = waiters.woken.notified() => interval.reset(),
            () = tokio::time::sleep(pause) => {}
            () = waiters.added.notified() => {
                interval.reset();
                // An open wake connection is told of every handoff since the acquire of the new
                // waiter; and the engine acquires again when the lease ends that it was told of.
                if wake_connection.as_ref().is_some_and(WakeConnection::is_open) {
                    continue;
                }
            }
        }
        let scope = waiters.poll_scope();
        if !scope.keys.is_empty() {
            // Without a response: poll again after the interval.
            next_expiry = waiters.poll(&scope).await.unwrap_or(IDLE);
        }
    }
}

#[cfg(test)]
mod tests;
