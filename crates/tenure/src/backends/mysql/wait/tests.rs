//! Which poll may deliver a grant to which waiter.

use super::super::config::LockMode;
use super::super::connection::Connection;
use super::super::layout::statements::Statements;
use super::*;
use crate::backend::Owner;
use crate::token::FencingToken;

fn waiters() -> Waiters {
    let demotions = Arc::default();
    let (opts, login) = Default::default();
    let options = ConnectOptions { opts, login, holds_locks: false, id_prefix: "", demotions };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let main = Connection::start(options, runtime.handle());
    let by_key = vec![main.clone()];
    let statements = Statements::new(LockMode::Lease, true);
    let tables = LockTables::new(statements, main, by_key, String::new());
    Waiters::new(Arc::new(tables), None, runtime.handle().clone())
}

fn wait(waiters: &Waiters, claim: &Claim) -> oneshot::Receiver<Option<Grant>> {
    let (reply, response) = oneshot::channel();
    let owner = claim.owner.to_string();
    let waiter = LocalWaiter { claim: claim.clone(), owner, wait_for: WaitFor::Free, reply };
    waiters.state.lock().insert(waiter);
    response
}

/// The claim holds with this token.
fn snapshot(claim: &Claim, token: u64) -> LockSnapshot {
    LockSnapshot {
        key: claim.key.as_str().as_bytes().to_vec(),
        owner: claim.owner.to_string(),
        token: FencingToken::new(token),
        recheck_in: IDLE,
        held_for: Duration::ZERO,
        is_free: false,
        queued: 0,
    }
}

/// As from a former primary, which is behind the one that requests go to.
#[test]
fn a_poll_of_an_outdated_row_grants_nothing() {
    let waiters = waiters();
    let claim = Claim::new(Key::new("k").unwrap(), Owner::random(), Duration::from_secs(2));
    waiters.tables.hints.record_queued(claim.owner, 0, 8);
    waiters.tables.hints.record_queued(claim.owner, 0, 7);
    let mut response = wait(&waiters, &claim);
    for token in [6, 8] {
        waiters.deliver(&waiters.poll_scope(), &[snapshot(&claim, token)], &[]);
        assert!(response.try_recv().is_err(), "token {token} was believed after 8 was shown");
    }
    waiters.deliver(&waiters.poll_scope(), &[snapshot(&claim, 9)], &[]);
    assert!(matches!(response.try_recv(), Ok(Some(_))));
}

#[test]
fn a_late_poll_grants_nothing_to_a_later_waiter() {
    let waiters = waiters();
    let claim = Claim::new(Key::new("k").unwrap(), Owner::random(), Duration::from_secs(2));
    let shown = [snapshot(&claim, 6)];
    let early = wait(&waiters, &claim);
    let late_poll = waiters.poll_scope();
    // It is dropped, the claim is told that another client has a later grant, and waits again.
    drop(early);
    waiters.state.lock().waiters.clear();
    let mut after = wait(&waiters, &claim);
    waiters.deliver(&late_poll, &shown, &[]);
    assert!(after.try_recv().is_err(), "the old grant was believed");
    // A poll that began after the waiter was added is newer than every response before it.
    waiters.deliver(&waiters.poll_scope(), &shown, &[]);
    assert!(matches!(after.try_recv(), Ok(Some(_))));
}
